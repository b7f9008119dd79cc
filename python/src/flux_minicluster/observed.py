"""What is known of a MiniCluster and its pods. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

Object = Mapping[str, Any]

GROUP = "flux-framework.org"
VERSION = "v1alpha2"
CLUSTER_LABEL = "flux-framework.org/minicluster"
RUN_ANNOTATION = "flux-framework.org/run"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
_INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
_JOB_UID_LABEL = "batch.kubernetes.io/controller-uid"
# How many earlier pods of its index a Job counts as failed, and as disrupted.
_REPLACED_ANNOTATIONS = (
    "batch.kubernetes.io/job-index-failure-count",
    "batch.kubernetes.io/job-index-ignored-failure-count",
)
# Path of the agent in pods.
AGENT = "/etc/flux-agent/bin/flux-agent"
# How much longer than its grace period the deletion of a pod may take. Clocks may differ, too.
KUBELET_DELAY = timedelta(seconds=60)


def runs_program(spec: Object) -> bool:
    """Whether a program runs in the instance, and ends it. Otherwise the instance stays up until it is stopped."""
    containers = spec.get("containers") or [{}]
    runner = next((it for it in containers if it.get("runFlux")), containers[0])
    texts = (runner.get("command"), (runner.get("commands") or {}).get("script"))
    # Diagnostics run instead of the command.
    is_idle = spec.get("interactive") or runner.get("diagnostics")
    return not is_idle and any(isinstance(text, str) and text.strip() for text in texts)


@dataclass(frozen=True)
class Start:
    """One run of a container: the pod's uid, and how often it was restarted."""

    uid: str
    restarts: int


@dataclass
class Observed:
    """A MiniCluster and its brokers' pods, as last seen."""

    cluster: dict[str, Any] | None = None
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def status(self) -> dict[str, Any]:
        return (self.cluster or {}).get("status") or {}

    @property
    def reason(self) -> str:
        return self.status.get("reason") or ""

    @property
    def message(self) -> str:
        return self.status.get("message") or ""

    @property
    def size(self) -> int:
        return int((self.cluster or {}).get("spec", {}).get("size", 0))

    @property
    def quorum(self) -> int | None:
        """How many brokers the job waits for. None: as many as the size was when the Job was created."""
        spec = (self.cluster or {}).get("spec", {})
        if spec.get("minSize"):
            return int(spec["minSize"])
        # Without maxSize, the maximum is the size with which the first Job was created.
        has_changed = (self.status.get("maximumSize") or self.size) != self.size
        return None if spec.get("maxSize") or has_changed else self.size

    def is_true(self, condition: str) -> bool:
        conditions = self.status.get("conditions") or []
        return any(it["type"] == condition and it["status"] == "True" for it in conditions)

    @property
    def is_invalid(self) -> bool:
        return self.status.get("phase") == "Invalid"

    @property
    def runs_program(self) -> bool:
        """Whether a program runs in the instance, and ends it. Otherwise the instance stays up until it is stopped."""
        return runs_program((self.cluster or {}).get("spec", {}))

    @property
    def has_been_up(self) -> bool:
        return self.is_true("JobMiniClusterReady") or bool((self.status.get("timeline") or {}).get("ready"))

    @property
    def own_pods(self) -> list[dict[str, Any]]:
        """Its pods, without those of another MiniCluster of its name."""
        return own_pods(self.cluster, self.pods.values())

    @property
    def latest_pods(self) -> list[dict[str, Any]]:
        """The latest pod of each index. The pods that these have replaced may still exist."""
        latest: dict[int, dict[str, Any]] = {}
        for pod in sorted(self.own_pods, key=_created):
            if (index := index_of(pod)) is not None:
                latest[index] = pod
        return list(latest.values())

    @property
    def lead(self) -> dict[str, Any] | None:
        return latest_of(0, self.own_pods)

    def started_lead(self) -> tuple[dict[str, Any], Start] | None:
        """The lead and its runner's start, if it has started, so that there is a log to read."""
        lead = self.lead
        start = started(lead) if lead is not None else None
        return (lead, start) if lead is not None and start is not None else None


def own_pods(cluster: Object | None, pods: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The pods of this MiniCluster's Jobs. One that was deleted may have had the same name, and have pods still."""
    status = (cluster or {}).get("status") or {}
    jobs = {status.get("jobUid"), *(it.get("jobUid") for it in status.get("restarts") or [])} - {None}
    return [pod for pod in pods if (pod["metadata"].get("labels") or {}).get(_JOB_UID_LABEL) in jobs]


def latest_of(index: int, pods: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """The latest pod of a completion index."""
    matching = [pod for pod in pods if index_of(pod) == index]
    return max(matching, key=_created, default=None)


def _created(pod: Object) -> str:
    return str(pod["metadata"].get("creationTimestamp") or "")


def index_of(pod: Object) -> int | None:
    text = (pod["metadata"].get("labels") or {}).get(_INDEX_LABEL, "")
    return int(text) if text.isdigit() else None


def name_of(pod: Object) -> str:
    return str(pod["metadata"]["name"])


def runner_of(pod: Object) -> str:
    """Name of the container that runs Flux: its entrypoint is the agent. Webhooks may have put others before it."""
    containers = pod["spec"]["containers"]
    runners = [it for it in containers if (it.get("command") or [""])[0] == AGENT]
    return str((runners or containers)[0]["name"])


def _runner_status(pod: Object) -> Object:
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return next((it for it in statuses if it["name"] == runner_of(pod)), {})


def _runner_state(pod: Object) -> Object:
    state: Object = _runner_status(pod).get("state") or {}
    return state


def started(pod: Object) -> Start | None:
    """The runner's current start, which may have ended. None: it has not started, or waits for its next start."""
    if not {"running", "terminated"} & set(_runner_state(pod)):
        return None
    return Start(pod["metadata"].get("uid", ""), restarts_of(pod))


def restarts_of(pod: Object) -> int:
    """How often the runner was restarted."""
    return int(_runner_status(pod).get("restartCount", 0))


def is_running(pod: Object) -> bool:
    return "running" in _runner_state(pod)


def is_finished(status: Object) -> bool:
    """Whether the MiniCluster with this status has ended."""
    return status.get("phase") in ("Completed", "Failed")


def was_restarted(pod: Object) -> bool:
    """Whether the runner has ended before. It may wait to be restarted."""
    return restarts_of(pod) > 0 or bool(_last_end(pod))


def _last_end(pod: Object) -> Object:
    """The end of the runner's earlier start."""
    end: Object = (_runner_status(pod).get("lastState") or {}).get("terminated") or {}
    return end


def _termination(end: Object) -> Object:
    """The agent's report of an end. Empty: there is none."""
    try:
        termination = json.loads((end.get("message") or "").split("\n")[0])
    except ValueError:
        return {}
    return termination if isinstance(termination, dict) and termination.get("version") == 1 else {}


def was_shut_down(pod: Object) -> bool:
    """Whether the runner's earlier start ended because somebody shut the instance down. It runs nothing again."""
    return _termination(_last_end(pod)).get("shutDown") is True


def replaces(pod: Object) -> bool:
    """Whether the Job created the pod as a replacement for an earlier pod of its index."""
    annotations = pod["metadata"].get("annotations") or {}
    return any(annotations.get(it, "0") != "0" for it in _REPLACED_ANNOTATIONS)


def has_failed_before_program(pod: Object) -> bool:
    """Whether the runner's earlier start has failed before it ran the program.

    Either the runtime could not start the container, or the agent reports a failure of its own or of a snippet.
    """
    end = _last_end(pod)
    if end.get("reason") in ("StartError", "ContainerCannotRun"):
        return True
    termination = _termination(end)
    if termination.get("programCode") is not None:
        return False
    if termination.get("by") == "agent":
        # In these cases, the agent did not run the program again, has a bug, or names no cause.
        return termination.get("category") not in (None, "lead-lost", "internal")
    return termination.get("by") == "snippet"


def is_over(pod: Object, start: Start) -> bool:
    """Whether this start of the runner is over."""
    phase = (pod.get("status") or {}).get("phase")
    return (
        pod["metadata"].get("uid", "") != start.uid
        or phase in ("Succeeded", "Failed")
        or "terminated" in _runner_state(pod)
        or restarts_of(pod) > start.restarts
    )


def is_overdue(pod: Object, now: datetime) -> bool:
    """Whether a deleted pod should have been gone for a while. Its node is probably dead, and its state stays."""
    # The end of the grace period.
    deadline = pod["metadata"].get("deletionTimestamp")
    return deadline is not None and now - time_of(deadline) > KUBELET_DELAY


def time_of(text: str) -> datetime:
    # Python 3.10 does not read the Z.
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def is_scheduled(pod: Object) -> bool:
    return bool(pod["spec"].get("nodeName"))


def initializing(pod: Object) -> tuple[str, str] | None:
    """The first init container that is not done, and why it waits."""
    # A sidecar (an init container that keeps running) is done once it has started. Of the others, `started` only says
    # that they run.
    sidecars = {it["name"] for it in pod["spec"].get("initContainers") or [] if it.get("restartPolicy") == "Always"}
    for container in (pod.get("status") or {}).get("initContainerStatuses") or []:
        state = container.get("state") or {}
        has_succeeded = "terminated" in state and state["terminated"].get("exitCode") == 0
        if not (has_succeeded or (container["name"] in sidecars and container.get("started"))):
            return container["name"], (state.get("waiting") or {}).get("reason", "")
    return None


def state_of(pod: Object) -> str:
    """The pod's state in a few words."""
    if pod["metadata"].get("deletionTimestamp"):
        return "is being deleted"
    status = pod.get("status") or {}
    for container in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        state = container.get("state") or {}
        waits_for = (state.get("waiting") or {}).get("reason")
        if waits_for and waits_for not in ("ContainerCreating", "PodInitializing"):
            return f"{container['name']}: {waits_for}"
        code = (state.get("terminated") or {}).get("exitCode", 0)
        if code != 0:
            return f"{container['name']} ended with {code}"
    phase = status.get("phase")
    if phase == "Succeeded":
        return "ended with 0"
    if phase == "Running" and is_running(pod):
        return "running"
    if phase == "Failed":
        return status.get("reason") or "failed"
    if not is_scheduled(pod):
        return "not scheduled"
    container_and_reason = initializing(pod)
    return f"starting: {container_and_reason[0]}" if container_and_reason else "starting"

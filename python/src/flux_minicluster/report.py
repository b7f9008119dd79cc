"""What a MiniCluster does, or why it does not start: one page, and the usage of a running instance."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from . import observed, program
from .errors import CallFailed, remedy_for
from .target import Target
from .text import printable

MAX_WARNINGS = 6
MAX_PODS = 16
NO_OPERATOR = (
    "The operator has not processed it yet. If that does not change, the operator is not running or watches another "
    "namespace: ask your administrator."
)


@dataclass(frozen=True)
class PodLine:
    index: int
    name: str
    node: str
    state: str


@dataclass(frozen=True)
class Warning_:
    object: str
    reason: str
    message: str
    count: int


@dataclass(frozen=True)
class Report:
    """What `why()` found. As text it is one page."""

    name: str
    namespace: str
    phase: str
    size: int
    ready: int
    exit_code: int | None
    reason: str | None
    message: str | None
    restarts: int
    pods: list[PodLine]
    warnings: list[Warning_]
    instance: dict[str, Any] | None
    """The agent's status of the instance, from the lead."""
    remedy: str | None
    silence: str | None = None
    """Why there is no status of the instance, if the lead's agent did not answer in time."""

    def __str__(self) -> str:
        first = f"{self.name} {self.phase}: {self.ready} of {self.size} brokers ready"
        first += f", exit code {self.exit_code}" if self.exit_code is not None else ""
        times = "once" if self.restarts == 1 else f"{self.restarts} times"
        lines = [first + (f", restarted {times}" if self.restarts else "")]
        if self.reason or self.message:
            lines.append(": ".join(filter(None, [self.reason, self.message])))
        if self.pods:
            lines.append("")
        for pod in self.pods[:MAX_PODS]:
            lines.append(f"  {pod.index:<5} {pod.name:<32} {pod.node:<20} {pod.state}".rstrip())
        if len(self.pods) > MAX_PODS:
            lines.append(f"  and {len(self.pods) - MAX_PODS} more")
        if self.instance is not None and self.instance.get("lines"):
            lines += ["", "What the lead's agent says"]
            lines += [f"  {line[0]:<10} {line[1]}" for line in self.instance["lines"]]
        if self.silence:
            lines += ["", self.silence]
        if self.warnings:
            lines += ["", "Warnings"]
        for warning in self.warnings:
            times = f" ({warning.count} times)" if warning.count > 1 else ""
            lines.append(f"  {warning.object}: {warning.reason}{times}: {warning.message.rstrip()}")
        if self.remedy:
            lines += ["", "What it means and what to do", *(f"  {line}".rstrip() for line in self.remedy.splitlines())]
        return printable("\n".join(lines))


async def report(target: Target, name: str, uid: str | None) -> Report:
    """The report. `uid`: as of `Target.cluster`."""
    cluster = await target.cluster(name, uid)
    pods = observed.own_pods(cluster, await target.pods_of(name))
    lead = observed.latest_of(0, pods)
    instance: dict[str, Any] | None = None
    silence: str | None = None
    if lead is not None and observed.is_running(lead):
        try:
            instance = json.loads((await program.report(target, lead, ["status", "--json"])).stdout)
        except program.SilentAgent as error:
            silence = error.message
        except (CallFailed, ValueError):
            pass
    # Events of the MiniCluster, of its Job, which has the same name, and of the lead.
    names = [name] + ([observed.name_of(lead)] if lead is not None else [])
    events = [event for object_name in names for event in await target.events_of(object_name)]
    return build(target.namespace, cluster, pods, events, instance, silence)


def build(
    namespace: str,
    cluster: dict[str, Any],
    pods: list[dict[str, Any]],
    events: list[dict[str, Any]],
    instance: dict[str, Any] | None,
    silence: str | None = None,
) -> Report:
    """The report of what was read."""
    status = cluster.get("status") or {}
    phase = status.get("phase") or "Unseen"
    remedy = None if phase == "Completed" else remedy_for(status.get("reason"))
    lines = [
        PodLine(index, observed.name_of(pod), pod["spec"].get("nodeName") or "", observed.state_of(pod))
        for pod in pods
        if (index := observed.index_of(pod)) is not None
    ]
    warnings = [_warning(event) for event in sorted(events, key=_time) if event.get("type") == "Warning"]
    return Report(
        name=cluster["metadata"]["name"],
        namespace=namespace,
        phase=phase,
        size=cluster["spec"].get("size", 0),
        ready=status.get("readySize") or 0,
        exit_code=status.get("exitCode"),
        reason=status.get("reason"),
        message=status.get("message"),
        restarts=status.get("restartCount") or 0,
        pods=sorted(lines, key=lambda line: (line.state == "running", line.index)),
        warnings=warnings[-MAX_WARNINGS:],
        instance=instance,
        remedy=remedy if status else NO_OPERATOR,
        silence=silence,
    )


def _time(event: dict[str, Any]) -> str:
    # A scheduler's event that occurs again has only the time of its `series`.
    event_time = (event.get("series") or {}).get("lastObservedTime") or event.get("eventTime") or ""
    last = max(event_time, event.get("lastTimestamp") or "")
    return last or event["metadata"].get("creationTimestamp") or ""


def _warning(event: dict[str, Any]) -> Warning_:
    about = event.get("involvedObject") or {}
    count = (event.get("series") or {}).get("count") or event.get("count") or 1
    return Warning_(
        object=f"{about.get('kind', '')} {about.get('name', '')}",
        reason=event.get("reason") or "",
        message=event.get("message") or "",
        count=count,
    )


class _Part(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="allow")


class Brokers(_Part):
    """Number of brokers."""

    size: int = 0
    online: int | None = None


class Count(_Part):
    """Amount of one resource."""

    total: int = 0
    used: int = 0
    free: int = 0
    down: int = 0


class Host(_Part):
    """A node as the instance sees it."""

    rank: int = 0
    name: str = ""
    state: str = "unknown"
    cores: int = 0
    cores_used: int = 0
    gpus: int = 0
    gpus_used: int = 0


class Resources(_Part):
    """Resources of the instance."""

    nodes: Count = Count()
    cores: Count = Count()
    gpus: Count = Count()
    hosts: list[Host] = []


class Usage(_Part):
    """Usage of a running instance at one moment."""

    state: str = ""
    """State of the lead's broker; jobs run in state `run`."""
    seconds: int = 0
    """Seconds in this state."""
    brokers: Brokers = Brokers()
    resources: Resources | None = None
    """None until all brokers have reported their resources."""
    jobs: dict[str, Any] | None = None
    """Number of jobs by state. None: the job manager does not run yet, or does not answer."""


async def usage(target: Target, name: str, uid: str | None) -> Usage:
    lead = await program.running_lead(target, name, uid)
    answer = await program.report(target, lead, ["usage"])
    if answer.code != 0:
        text = (answer.stderr or answer.stdout).decode(errors="replace").strip()
        raise CallFailed(text or f"the agent has no usage (exit code {answer.code})", name=name)
    return Usage.model_validate_json(answer.stdout)

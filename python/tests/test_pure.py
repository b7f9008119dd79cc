"""Functions that need no server: words, resumed logs, progress, remedies, models."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pickle
import re
import shlex
import subprocess
import sys
import threading
import time
import unicodedata
from collections.abc import AsyncIterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from flux_minicluster import Invalid, bridge, errors, executor, manifest, models, proxy, screen
from flux_minicluster.errors import remedy_for
from flux_minicluster.manifest import Wanted
from flux_minicluster.observed import Observed, is_overdue, runner_of
from flux_minicluster.progress import Stage, State, stages
from flux_minicluster.report import _time as report_time
from flux_minicluster.report import build
from flux_minicluster.result import Result, code_of
from flux_minicluster.resume import Resume
from flux_minicluster.target import Access, _refusal
from flux_minicluster.words import join

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("word", ["a", "", "a b", "$HOME", "it's", "'", '"x"', "a\nb", "a;b", "é", "-", r"\$"])
def test_quoted_word_is_split_unchanged(word: str) -> None:
    assert shlex.split(join(["x", word, "y"])) == ["x", word, "y"]
    # The agent replaces `$NAME` outside of single quotes.
    assert "$" not in re.sub(r"'[^']*'", "", join([word]))


LOG = (
    b"2026-01-01T00:00:00.100000000Z a\n2026-01-01T00:00:00.100000000Z b\n2026-01-01T00:00:00.100000000Z b\n"
    b"2026-01-01T00:00:00.2Z \n2026-01-01T00:00:01.000000001Z c d  e\n2026-01-01T00:00:01.5Z 50 %\r100 %\n"
    b"2026-01-01T00:00:03Z end"
)
TEXT = b"a\nb\nb\n\nc d  e\n50 %\r100 %\nend"


def read(log: bytes, cuts: list[int], chunk: int) -> bytes:
    """What is printed of `log` if the connection breaks after each of `cuts` bytes."""
    resume = Resume()
    printed = b""
    for cut in [*cuts, len(log)]:
        since = (resume.connect() or "").encode()
        assert b"." not in since, "the API server rounds to whole seconds"
        sent, place = b"", 0
        # Each line by itself is left out if it is older: they need not be in the order of their times.
        for line in re.findall(rb"[^\n]*\n|[^\n]+", log):
            sent += line[: max(cut - place, 0)] if line[:19] >= since[:19] else b""
            place += len(line)
        for start in range(0, len(sent), chunk):
            printed += resume.feed(sent[start : start + chunk])
    assert not resume.end(), cuts
    return printed


def test_lines_that_were_rotated_away_are_missed() -> None:
    resume = Resume()
    resume.connect()
    resume.feed(b"2026-01-01T00:00:00.1Z a\n")
    assert not resume.end()
    resume.connect()
    assert resume.feed(b"2026-01-01T00:00:00.3Z c\n") == b"c\n"
    assert resume.end(), "b was between them"
    resume.begin_log()
    resume.connect()
    assert resume.feed(b"2026-01-01T00:00:00.4Z d\n") == b"d\n"
    assert not resume.end(), "another container has other lines"


def test_log_is_printed_without_its_times() -> None:
    assert read(LOG, [], 1000) == TEXT


@pytest.mark.parametrize("chunk", [1, 3, 1000])
def test_each_byte_comes_once_wherever_the_connection_breaks(chunk: int) -> None:
    for first in range(len(LOG) + 1):
        assert read(LOG, [first], chunk) == TEXT, f"broken after {first}"
        for second in range(first, len(LOG) + 1, 7):
            assert read(LOG, [first, second, second], chunk) == TEXT, f"broken after {first} and {second}"


def test_lines_out_of_order_come_once() -> None:
    """containerd takes the time of a line before it waits for the other stream's lines."""
    log = b"2026-01-01T00:00:01Z a\n"
    log += b"".join(
        b"2026-01-01T00:00:02.%dZ %d\n" % (time, number) for number, time in enumerate((3, 1, 2, 3, 3, 1, 4, 2))
    )
    text = b"a\n0\n1\n2\n3\n4\n5\n6\n7\n"
    for first in range(len(log) + 1):
        for second in range(first, len(log) + 1, 7):
            assert read(log, [first, second], 1000) == text, f"broken after {first} and {second}"
    # The connection breaks after both lines.
    assert read(b"2026-01-01T00:00:02Z a\n2026-01-01T00:00:01Z b\n", [46], 1000) == b"a\nb\n"


def test_line_after_the_clocks_went_back_is_new() -> None:
    resume = Resume()
    resume.connect()
    assert resume.feed(b"2026-10-25T02:30:00.5+02:00 a\n2026-10-25T02:00:00.1+01:00 b\n") == b"a\nb\n"
    assert resume.connect() == "2026-10-25T01:00:00Z"
    log = [b"2026-10-25T02:%s+01:00 %s\n" % it for it in ((b"00:00.1", b"b"), (b"10:00", b"c"), (b"31:00", b"d"))]
    assert resume.feed(b"".join(log)) == b"c\nd\n"
    assert not resume.end()
    assert resume.connect() == "2026-10-25T01:31:00Z"


def test_line_with_an_impossible_time_is_a_message() -> None:
    resume = Resume()
    resume.connect()
    assert resume.feed(b"2026-13-01T00:00:00Z a\n") == b""
    assert resume.message() == "2026-13-01T00:00:00Z a"


def test_rest_of_a_line_whose_beginning_is_older_is_no_gap() -> None:
    """The kubelet leaves out the first part of a split line, and sends the rest without a time."""
    resume = Resume()
    resume.connect()
    assert resume.feed(b"2026-01-01T00:00:12.9Z long line\n2026-01-01T00:00:13.2Z b\n") == b"long line\nb\n"
    assert resume.connect() == "2026-01-01T00:00:13Z"
    assert resume.feed(b"line\n2026-01-01T00:00:13.2Z b\n2026-01-01T00:00:13.3Z c\n") == b"c\n"
    assert not resume.end()
    assert resume.message() == ""


def test_message_of_the_kubelet_is_no_line_of_the_log() -> None:
    line, text = b"2026-01-01T00:00:00.1Z a\n", b"failed to watch: too many open files"
    resume = Resume()
    for sent, new in ((text, b""), (line + text, b"a\n"), (line + text, b""), (text + b"\n", b"")):
        resume.connect()
        assert resume.feed(sent) == new
        assert resume.message() == text.decode()
    resume.connect()
    resume.feed(b"x" * 3000)
    assert len(resume.message()) == 1024


def test_failure_without_a_code_is_no_success() -> None:
    assert [code_of(code, code == 0) for code in range(256)] == list(range(256))
    assert (code_of(None, True), code_of(0, True), code_of(None, False)) == (0, 0, 1)
    assert (code_of(-1, False), code_of(0, False)) == (1, 1)


def test_each_step_is_a_bar_that_begins_where_the_one_before_ended() -> None:
    cluster = {
        "metadata": {"name": "mc", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "status": {
            "startTime": "2026-01-01T00:00:01Z",
            "completionTime": "2026-01-01T00:00:10Z",
            "exitCode": 7,
            "reason": "<NonZeroExitCode>",
            # It was never ready.
            "timeline": {"scheduled": "2026-01-01T00:00:02Z", "running": "2026-01-01T00:00:04Z"},
        },
    }
    result = Result.of(cluster, "")
    assert [(step.begin, step.seconds) for step in result.steps] == [(0, 1), (1, 1), (2, 2), (4, 6)]
    shown = result._repr_html_()
    assert "exit code 7, &lt;NonZeroExitCode&gt;" in shown and shown.count("<rect") == 4
    assert "the job runs" in shown and "brokers connect" not in shown
    bare = Result.of({"metadata": {"name": "mc"}}, "")
    assert bare.steps == () and "<svg" not in bare._repr_html_()


def seen(status: dict[str, Any], *pods: dict[str, Any]) -> Observed:
    cluster = {
        "metadata": {"name": "mc"},
        "spec": {"size": 2, "containers": [{}]},
        "status": {"jobUid": "job", **status},
    }
    return Observed(cluster, {pod["metadata"]["name"]: pod for pod in pods})


def pod(index: int, is_scheduled: bool, status: dict[str, Any]) -> dict[str, Any]:
    return {
        "metadata": {
            "name": f"mc-{index}-x",
            "uid": f"u{index}",
            "labels": {
                "batch.kubernetes.io/job-completion-index": str(index),
                "batch.kubernetes.io/controller-uid": "job",
            },
        },
        "spec": {"containers": [{"name": "main"}], **({"nodeName": "n1"} if is_scheduled else {})},
        "status": status,
    }


RUNNING = {"containerStatuses": [{"name": "main", "restartCount": 0, "state": {"running": {}}}]}


def test_each_step_of_a_start_has_its_line() -> None:
    nothing = stages(seen({}))
    assert (nothing[0].state, nothing[0].text) == (State.NOW, "0 of 2: the operator has not created any yet")
    assert {it.state for it in nothing[1:]} == {State.LATER}

    init = {"initContainerStatuses": [{"name": "flux-agent", "state": {"waiting": {"reason": "PodInitializing"}}}]}
    placed = stages(seen({}, pod(0, True, init), pod(1, False, {})))
    assert placed[0].text == "0 of 2 running, 1 scheduled"
    assert placed[1].text == "the agent is being installed in the lead's pod"

    # The kubelet sets `started` for each init container that runs.
    statuses = {"initContainerStatuses": [{"name": "flux-view", "started": True, "state": {"running": {}}}]}
    for policy, text in [
        (None, "init container flux-view prepares the lead's pod"),
        ("Always", "the lead's image is pulled and started"),
    ]:
        lead = pod(0, True, statuses)
        lead["spec"]["initContainers"] = [{"name": "flux-view", "restartPolicy": policy}]
        assert stages(seen({}, lead))[1].text == text

    waits = {"reason": "BrokersNotReady", "message": "rank 1 is missing", "readySize": 1}
    running = stages(seen(waits, pod(0, True, RUNNING), pod(1, True, {})))
    assert running[2].text == "1 of 2 ready; rank 1 is missing"
    assert running[3].text == "1 ready; needed: 2 brokers"

    # Brokers may wait for the services.
    services = {"reason": "ErrImagePull", "message": "services pod mc-services: no such image"}
    waiting = stages(seen(services, pod(0, True, RUNNING), pod(1, True, RUNNING)))[2]
    text = "0 of 2 ready; ErrImagePull: services pod mc-services: no such image"
    assert (waiting.state, waiting.text) == (State.STUCK, text)

    up = {"readySize": 2, "conditions": [{"type": "JobMiniClusterReady", "status": "True"}]}
    assert {it.state for it in stages(seen(up, pod(0, True, RUNNING), pod(1, True, RUNNING)))} == {State.DONE}


def test_progress_counts_an_index_once_when_its_pod_is_replaced() -> None:
    def follower(name: str, created: str, state: str) -> dict[str, Any]:
        found = pod(1, True, {"containerStatuses": [{"name": "main", "restartCount": 0, "state": {state: {}}}]})
        found["metadata"] |= {"name": name, "creationTimestamp": created}
        return found

    ended = follower("mc-1-a", "2026-01-01T00:00:00Z", "terminated")
    running = follower("mc-1-b", "2026-01-01T00:00:09Z", "running")
    shown = stages(seen({}, pod(0, True, {}), ended, running))[0]
    assert (shown.state, shown.text) == (State.NOW, "1 of 2 running, 2 scheduled")


def test_runner_is_found_when_webhook_adds_container_first() -> None:
    runner = {"name": "app", "command": ["/etc/flux-agent/bin/flux-agent", "run"]}
    assert runner_of({"spec": {"containers": [{"name": "istio-proxy"}, runner]}}) == "app"
    assert runner_of({"spec": {"containers": [{"name": "main"}]}}) == "main"


@pytest.mark.parametrize("seconds_ago, is_late", [(70, True), (50, False), (-20, False)])
def test_deleted_pod_is_overdue_a_minute_after_its_grace_period(seconds_ago: int, is_late: bool) -> None:
    deadline = datetime(2026, 1, 1, tzinfo=timezone.utc)
    pod = {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}
    assert is_overdue(pod, deadline + timedelta(seconds=seconds_ago)) is is_late
    assert not is_overdue({"metadata": {}}, deadline)


@pytest.mark.parametrize(
    "spec, text",
    [
        ({"containers": [{"image": "a"}]}, "the instance is up"),
        ({"containers": [{"command": "x"}], "interactive": True}, "the instance is up"),
        ({"containers": [{"command": "x"}]}, "the job starts"),
        ({"containers": [{"commands": {"script": "x"}}]}, "the job starts"),
        ({"containers": [{"command": "side"}, {"runFlux": True}]}, "the instance is up"),
        ({"containers": [{"command": "x", "diagnostics": True}]}, "the instance is up"),
    ],
)
def test_quorum_starts_the_job_if_there_is_one(spec: dict[str, Any], text: str) -> None:
    up = seen({"timeline": {"ready": "2026-01-01T00:00:00Z"}})
    assert up.cluster is not None
    up.cluster["spec"] = {"size": 2, **spec}
    assert stages(up)[3].text == f"2 brokers: {text}"


def test_start_that_does_not_go_on_says_why() -> None:
    suspended = [{"type": "Suspended", "status": "True"}]
    queued = stages(seen({"reason": "Queued", "message": "waits in queue team: no cpu", "conditions": suspended}))[0]
    assert (queued.state, queued.text) == (State.STUCK, "waits in queue team: no cpu")
    stuck = stages(seen({"reason": "Unschedulable", "message": "0/1 nodes: insufficient cpu"}, pod(0, False, {})))[0]
    assert stuck.text == "0 of 2 running; Unschedulable: 0/1 nodes: insufficient cpu"


def test_every_reason_of_the_operator_has_a_remedy() -> None:
    page = (REPOSITORY / "docs/reference/conditions.md").read_text()  # made from the operator's vocabulary
    reasons = re.findall(r"^\| \[?([A-Z]\w+)(?:\]\S+)? \|", page, re.MULTILINE)
    assert len(reasons) > 80
    for reason in reasons:
        remedy = remedy_for(reason)
        assert remedy and "`" not in remedy and "](" not in remedy, reason
    assert remedy_for("NoSuchReason") is None
    assert remedy_for("Deleted") == "The pod was deleted."


FILE = """
apiVersion: flux-framework.org/v1alpha2
kind: MiniCluster
metadata: {name: mine, namespace: team, labels: {kueue.x-k8s.io/queue-name: q}}
spec:
  size: 3
  tasks: 6
  containers:
  - {image: side, name: side, runFlux: false}
  - {image: main, command: old, runFlux: true, environment: {A: '1'}, secrets: {B: {name: s, key: k}}}
"""


def test_arguments_change_what_a_file_says_and_nothing_else() -> None:
    document = manifest.from_text("kind: ConfigMap\n---" + FILE, "f.yaml")
    made = manifest.build(Wanted(command=["new", "a b"], size=5, environment={"B": "2"}, document=document), "abcde")
    assert made["metadata"]["name"] == "mine" and made["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "q"}
    assert (made["spec"]["size"], made["spec"]["tasks"]) == (5, 6)
    side, main = made["spec"]["containers"]
    assert side == {"image": "side", "name": "side", "runFlux": False}
    assert (main["image"], main["command"], main["environment"]) == ("main", "new 'a b'", {"A": "1", "B": "2"})
    assert main["secrets"] == {}, "a variable can have one source only"
    assert document["spec"]["size"] == 3, "the caller's document is unchanged"


def test_waits_that_are_polled_wait_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """On Windows, Ctrl-C takes effect only between two waits."""
    monkeypatch.setattr(bridge, "WAIT_SECONDS", 0.02)

    async def work(*_: Any) -> int:
        await asyncio.sleep(0.2)
        return 4

    async def fail() -> None:
        await asyncio.sleep(0.2)
        raise TimeoutError("its own")

    async def items() -> AsyncIterator[int]:
        yield await work()

    assert bridge.block(work()) == bridge.drive(work, screen.Silent()) == 4
    assert list(bridge.iterate(items())) == [4]
    with pytest.raises(TimeoutError, match="its own"):
        bridge.block(fail())


def test_iterator_is_not_read_far_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "ITEMS_AHEAD", 3)
    made = 0

    async def items() -> AsyncIterator[int]:
        nonlocal made
        for made in range(1, 11):
            yield made

    all_items = bridge.iterate(items())
    assert next(all_items) == 1
    time.sleep(0.3)
    assert made <= 4
    assert list(all_items) == list(range(2, 11))


class Number:
    """A number of another package, as numpy's are."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


def test_sizes_may_be_numbers_of_other_packages() -> None:
    spec = manifest.build(Wanted(size=Number(4), tasks=Number(8)), "abcde")["spec"]
    assert json.loads(json.dumps(spec)) == {"size": 4, "tasks": 8, "containers": [{}]}


def test_command_replaces_a_script_and_the_lines_of_a_batch() -> None:
    file = FILE.replace("command: old", "batch: true, batchRaw: true, diagnostics: true, commands: {script: a, pre: b}")
    file = file.replace("size: 3", "size: 3\n  interactive: true")
    made = manifest.build(Wanted(command=["new"], document=manifest.from_text(file, "f.yaml")), "abcde")
    main = made["spec"]["containers"][1]
    assert (main["command"], main["commands"]) == ("new", {"pre": "b"})
    assert not {"batch", "batchRaw", "diagnostics"} & main.keys()
    assert "interactive" not in made["spec"]


def spec_of(spec: manifest.Spec | None = None, **wanted: Any) -> dict[str, Any]:
    document = manifest.from_spec(spec) if spec is not None else None
    built: dict[str, Any] = manifest.build(Wanted(document=document, **wanted), "abcde")["spec"]
    return built


@pytest.mark.parametrize("spec", [{}, {"containers": []}, {"containers": None}, {"containers": [{}]}])
def test_spec_changes_no_other_argument(spec: dict[str, Any]) -> None:
    for wanted in (Wanted(), Wanted(command=["x"]), Wanted("app:1", ["x"], tasks=3, size=2, verbose=True)):
        arguments = {name: value for name, value in vars(wanted).items() if name != "document"}
        assert spec_of({"deadlineSeconds": 600, **spec}, **arguments) == {
            "deadlineSeconds": 600,
            **spec_of(**arguments),
        }
    own = {"size": 2, "tasks": 1, "logging": {"timed": True}}
    assert spec_of({**own, **spec}, image="app:1", command=["x"]) == {
        **own,
        "containers": [{"image": "app:1", "command": "x"}],
    }


def test_file_is_run_quietly_unless_it_says_otherwise() -> None:
    def logging(text: str, **wanted: Any) -> Any:
        return spec_of(manifest.from_text(text, "f.yaml"), **wanted).get("logging")

    assert logging(FILE) == {"quiet": True} and logging(FILE, verbose=True) is None
    assert logging(FILE.replace("command: old, ", "")) is None
    assert logging(FILE.replace("command: old", "command: ' '")) is None
    assert logging(FILE.replace("command: old", "commands: {script: old}")) == {"quiet": True}
    assert logging(FILE.replace("size: 3", "size: 3\n  interactive: true")) is None
    assert logging(FILE.replace("size: 3", "size: 3\n  logging: {timed: true}")) == {"timed": True}


def test_file_keeps_the_api_s_defaults() -> None:
    document = manifest.from_text(FILE.replace("  size: 3\n  tasks: 6\n", ""), "f.yaml")
    assert not {"size", "tasks"} & set(spec_of(document))


def test_kept_minicluster_of_the_older_version_keeps_its_pods() -> None:
    spec = {"size": 1, "cleanupMiniCluster": True, "ttlSecondsAfterFinished": 0}
    document = {"apiVersion": "flux-framework.org/v1alpha1", "kind": "MiniCluster", "spec": spec}
    manifest.keep(document)
    assert spec == {"size": 1, "cleanup": False}


def test_file_without_a_minicluster_is_invalid() -> None:
    for text in ("kind: ConfigMap", "a: [", ""):
        with pytest.raises(Invalid, match=r"f\.yaml"):
            manifest.from_text(text, "f.yaml")


def test_typed_spec_is_sent_in_the_api_s_spelling() -> None:
    spec = models.MiniClusterSpec(size=2, max_size=4, containers=[models.Container(image="a", run_flux=True)])
    assert manifest.from_spec(spec)["spec"] == {
        "size": 2,
        "maxSize": 4,
        "tasks": 0,
        "containers": [{"image": "a", "runFlux": True}],
    }


def test_field_of_a_newer_operator_is_kept() -> None:
    status = models.MiniClusterStatus.model_validate({"size": 1, "newField": {"a": 1}})
    assert status.model_dump(by_alias=True, exclude_unset=True) == {"size": 1, "newField": {"a": 1}}


def schema() -> Any:
    crd = yaml.safe_load((REPOSITORY / "chart/crd/crd.yaml").read_text())
    return next(it for it in crd["spec"]["versions"] if it["name"] == "v1alpha2")["schema"]["openAPIV3Schema"]


def model_in(annotation: Any) -> type[BaseModel] | None:
    """The model in `list[X] | None` and the like."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = (model_in(it) for it in getattr(annotation, "__args__", ()))
    return next((it for it in inner if it is not None), None)


def test_models_have_every_field_with_its_description() -> None:
    seen_fields = []

    def compare(model: type[BaseModel], node: Any, path: str) -> None:
        fields = {field.alias or name: field for name, field in model.model_fields.items()}
        for name, value in node["properties"].items():
            field = fields[name]
            description = " ".join(value.get("description", "").split())
            assert " ".join((field.description or "").split()) == description, f"{path}.{name}"
            assert field.is_required() == (name in node.get("required", ())), f"{path}.{name}"
            seen_fields.append(name)
            inner = value
            while "properties" not in inner and (
                "items" in inner or isinstance(inner.get("additionalProperties"), dict)
            ):
                inner = inner.get("items") or inner["additionalProperties"]
            if "properties" in inner:
                below = model_in(field.annotation)
                assert below is not None, f"{path}.{name}"
                compare(below, inner, f"{path}.{name}")

    compare(models.MiniCluster, schema(), "")
    assert len(seen_fields) > 250


def test_generated_files_are_not_stale() -> None:
    generate = REPOSITORY / "python/tools/generate.py"
    run = subprocess.run([sys.executable, generate, "--check"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_report_is_one_page_with_the_remedy() -> None:
    status = {"phase": "Pending", "reason": "Unschedulable", "message": "0/1 nodes", "readySize": 1}
    cluster = {"metadata": {"name": "mc"}, "spec": {"size": 2}, "status": status}
    event = {
        "type": "Warning",
        "reason": "FailedScheduling",
        "message": "0/1 nodes\n",
        "count": 3,
        "involvedObject": {"kind": "Pod", "name": "mc-1-x"},
        "metadata": {},
    }
    normal = {**event, "type": "Normal"}
    text = str(
        build(
            "team", cluster, [pod(0, True, {**RUNNING, "phase": "Running"}), pod(1, False, {})], [event, normal], None
        )
    )
    lines = text.splitlines()
    assert lines[:2] == ["mc Pending: 1 of 2 brokers ready", "Unschedulable: 0/1 nodes"]
    assert lines.index("  1     mc-1-x                                                not scheduled") < lines.index(
        "  0     mc-0-x                           n1                   running"
    )
    assert "  Pod mc-1-x: FailedScheduling (3 times): 0/1 nodes" in lines
    assert (remedy_for("Unschedulable") or "?").splitlines()[0] in text
    assert "has not processed it yet" in str(build("team", {**cluster, "status": {}}, [], [], None))


def test_package_imports_without_optional_packages() -> None:
    """No module of the package needs IPython or cloudpickle."""
    block = "import sys; sys.modules['IPython'] = sys.modules['cloudpickle'] = None; import flux_minicluster"
    subprocess.run([sys.executable, "-c", block], check=True, env=dict(os.environ))


def test_errors_survive_another_process() -> None:
    for error in (
        errors.Invalid([errors.Problem("spec.size", "must be at least 1")], message=None),
        errors.NotAllowed("no", status=403, remedy="ask"),
    ):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), copy.reason) == (type(error), str(error), error.reason)


MINICLUSTERS = "/apis/flux-framework.org/v1alpha2/namespaces/team/miniclusters"
NO_RESOURCE = "the server could not find the requested resource"


@pytest.mark.parametrize(
    "path, answer, kind",
    [
        (MINICLUSTERS, "404 page not found", errors.OperatorMissing),
        (MINICLUSTERS, {"message": NO_RESOURCE}, errors.OperatorMissing),
        (f"{MINICLUSTERS}/mc", {"message": 'miniclusters "mc" not found'}, errors.NotFound),
        ("/api/v1/namespaces/team/pods/x", {"message": 'pods "x" not found'}, errors.NotFound),
        ("/api/v1/namespaces/team/pods", "404 page not found", errors.CallFailed),
        ("/api/v1/namespaces/team/pods/x", "<html>404</html>", errors.CallFailed),
        ("/api/v1/namespaces/team/pods/x/log", {"message": NO_RESOURCE, "details": {"name": "x"}}, errors.CallFailed),
    ],
)
def test_only_api_server_says_that_operator_or_object_is_missing(path: str, answer: Any, kind: type[Exception]) -> None:
    text = answer if isinstance(answer, str) else json.dumps(answer)
    assert type(_refusal("GET", path, 404, text)) is kind


PROXY = "http://proxy.corp:3128"


@pytest.mark.parametrize(
    "server, no_proxy, is_used",
    [
        ("https://api.cloud.example:6443", "", True),
        # The proxy's own address does not count.
        ("https://api.cloud.example:6443", ".corp,10.0.0.0/8,,localhost", True),
        ("https://api.cloud.example:6443", "*", False),
        ("https://api.cloud.example:6443", ".cloud.example", False),
        ("https://api.cloud.example:6443", "*.Cloud.example", False),
        ("https://api.cloud.example:6443", "other, api.cloud.example", False),
        ("https://api.cloud.example:6443", "cloud.example", False),
        ("https://api.cloud.example:6443", "cloud.example:6443", False),
        ("https://api.cloud.example:6443", "cloud.example:443", True),
        ("https://api.cloud.example:6443", "loud.example, :6443, 10.0.0.0/99", True),
        ("https://cloud.example", ".cloud.example", True),
        ("https://cloud.example", "cloud.example:443", False),
        ("https://10.1.2.3:6443", "10.0.0.0/8", False),
        ("https://10.1.2.3:6443", "10.1.2.3", False),
        ("https://10.1.2.3:6443", "10.1.2.3:443,11.0.0.0/8,fd00::/8", True),
        ("https://[fd00::1]:6443", "fd00::/8", False),
        ("https://[fd00::1]:6443", "fd00:0::1", False),
        ("https://[fd00::1]:6443", "[fd00::1]:6443", False),
        ("https://[fd00::1]:6443", "[fd00::1]:443,fd00::2", True),
        ("https://127.0.0.1:6443", "", False),
        ("https://localhost:6443", "", False),
        ("https://[::1]:6443", "", False),
    ],
)
def test_proxy_of_the_environment_is_kubectl_s(server: str, no_proxy: str, is_used: bool) -> None:
    for names in (("HTTPS_PROXY", "NO_PROXY"), ("https_proxy", "no_proxy")):
        environment = dict(zip(names, (PROXY, no_proxy), strict=True))
        assert proxy.of_environment(server, environment) == (PROXY if is_used else None), names
    assert proxy.of_environment(server, {"NO_PROXY": no_proxy}) is None


def test_proxy_variable_is_that_of_the_url_s_scheme() -> None:
    environment = {"HTTPS_PROXY": "proxy:1", "HTTP_PROXY": "https://proxy:2"}
    assert proxy.of_environment("https://a", environment) == "http://proxy:1"
    assert proxy.of_environment("http://a", environment) == "https://proxy:2"


@pytest.mark.parametrize("is_one", [True, False])
def test_message_ends_the_line_of_output_in_the_same_file(is_one: bool) -> None:
    code = (
        "from flux_minicluster.screen import Lines, Output\n"
        "screen = Lines(Output(True))\n"
        "for data in (b'half a line', b'rest\\n'): screen.put(data); screen.say('message')\n"
    )
    stderr = subprocess.STDOUT if is_one else subprocess.PIPE
    run = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=stderr, text=True, check=True)
    if is_one:
        assert run.stdout == "half a line\nmessage\nrest\nmessage\n"
    else:
        assert (run.stdout, run.stderr) == ("half a linerest\n", "message\nmessage\n")


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "ascii", "utf-8"])
@pytest.mark.parametrize("kind", [screen.Lines, screen.Terminal])
def test_text_that_a_stream_cannot_encode_is_replaced(
    monkeypatch: pytest.MonkeyPatch, kind: type[screen.Lines], encoding: str
) -> None:
    def shown(text: str) -> str:
        return text.encode(encoding, "replace").decode(encoding)

    streams = {name: io.TextIOWrapper(io.BytesIO(), encoding, errors="strict") for name in ("stdout", "stderr")}
    for name, stream in streams.items():
        monkeypatch.setattr(sys, name, stream)
    chosen = kind(screen.Output(True))
    for data in (b"a \xe2\x86", b"\x92 b\n", b"\xff\n"):
        chosen.put(data)
    chosen.say("no image \u2192")
    chosen.show([Stage("pods", State.NOW, "caf\u00e9 \u2192 1")])
    printed, messages = (stream.buffer.getvalue().decode(encoding) for stream in streams.values())
    assert printed == shown("a \u2192 b\n\N{REPLACEMENT CHARACTER}\n")
    assert messages.startswith(shown("no image \u2192\n")) and shown("caf\u00e9 \u2192 1\n") in messages


CODES = "\x1b]0;title\x07\t\u009b2J\ra\n\x7f"
PRINTABLE = "\ufffd]0;title\ufffd\t\ufffd2J\ufffda\n\ufffd"


@pytest.mark.parametrize("kind", [screen.Lines, screen.Terminal])
def test_screen_shows_no_terminal_codes_from_the_cluster(
    capsys: pytest.CaptureFixture[str], kind: type[screen.Lines]
) -> None:
    chosen = kind(screen.Output(True))
    chosen.say(CODES)
    chosen.show([Stage("pods", State.STUCK, CODES)])
    shown = capsys.readouterr().err
    assert shown.startswith(f"{PRINTABLE}\n")
    assert re.sub(r"[\n\t]", " ", PRINTABLE) + "\n" in shown
    chosen.put(CODES.encode())
    assert capsys.readouterr().out == CODES, "the job's own output"


def test_event_that_occurs_again_is_a_late_one() -> None:
    again = {
        "eventTime": "2026-01-01T00:00:10Z",
        "series": {"lastObservedTime": "2026-01-01T00:00:30Z"},
        "metadata": {"creationTimestamp": "2026-01-01T00:00:09Z"},
    }
    assert report_time(again) == "2026-01-01T00:00:30Z"
    assert report_time({**again, "series": None}) == "2026-01-01T00:00:10Z"


def test_report_errors_and_warnings_have_no_terminal_codes(caplog: pytest.LogCaptureFixture) -> None:
    status = {"phase": CODES, "reason": CODES, "message": CODES}
    event = {"type": "Warning", "reason": CODES, "message": CODES, "involvedObject": {"name": CODES}, "metadata": {}}
    cluster = {"metadata": {"name": "mc"}, "spec": {"size": 1}, "status": status}
    report = build("team", cluster, [], [event], {"lines": [["state", CODES]]})
    error = errors.CallFailed(CODES, name=CODES, remedy=CODES)
    executor.FluxExecutor(Access(), "mc")._warn(CODES)
    for text in (str(report), str(error), caplog.messages[0]):
        assert PRINTABLE in text
        assert not any(unicodedata.category(it) == "Cc" for it in text if it not in "\n\t")
    assert (report.message, error.message) == (CODES, CODES)


def test_error_handler_of_a_stream_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = io.TextIOWrapper(io.BytesIO(), "ascii", errors="backslashreplace")
    monkeypatch.setattr(sys, "stdout", stdout)
    screen.Output(True).put("\u2192".encode())
    assert stdout.buffer.getvalue() == b"\\u2192"


def test_threads_share_one_loop() -> None:
    bridge._loop_of.cache_clear()
    gate = threading.Barrier(8)
    loops: list[object] = []

    def first_call() -> None:
        gate.wait()
        loops.append(bridge.loop())

    threads = [threading.Thread(target=first_call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loops) == 8 and len(set(map(id, loops))) == 1


def test_second_cancel_is_no_error() -> None:
    class Executor:
        def _cancel(self, token: str) -> None:
            self.token = token

    future = executor.TaskFuture(Executor(), "t")  # type: ignore[arg-type]
    assert future.cancel() and future.cancel()

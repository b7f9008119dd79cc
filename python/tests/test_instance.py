"""A MiniCluster that is up or has ended: logs, why, usage, scale, stop, wait, `with`; with a fake API server."""

from __future__ import annotations

import asyncio
import json
import operator
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web
from fake_api import FakeApi, Object

from flux_minicluster import (
    CallFailed,
    JobFailed,
    Lost,
    MiniCluster,
    NotAllowed,
    NotFound,
    TimedOut,
    program,
    stop,
    target,
)
from flux_minicluster.follow import Follower
from flux_minicluster.screen import Silent


@pytest.fixture
def cluster(api: FakeApi) -> MiniCluster:
    api.put(
        "miniclusters",
        {"metadata": {"name": "mc", "uid": "u", "namespace": "team"}, "spec": {"size": 2, "containers": [{}]}},
    )
    return MiniCluster.attach("mc")


def test_attach_to_nothing_says_so(api: FakeApi) -> None:
    with pytest.raises(NotFound, match="none"):
        MiniCluster.attach("none")


def test_log_is_read_and_followed(cluster: MiniCluster, api: FakeApi) -> None:
    lead = api.start_job("mc")
    api.log(lead, "one", "50 %\r100 %")
    api.log("mc-1-x", "follower")
    assert list(cluster.logs()) == ["one", "50 %\r100 %"]
    assert list(cluster.logs(index=1)) == ["follower"]
    lines: Iterator[str] = cluster.logs(follow=True)
    assert [next(lines), next(lines)] == ["one", "50 %\r100 %"]
    api.cut()
    api.mend()
    api.log(lead, "three")
    assert next(lines) == "three"
    api.end_job("mc")
    assert list(lines) == []
    with pytest.raises(CallFailed, match="no pod with index 7"):
        list(cluster.logs(index=7))
    with pytest.raises(ValueError, match="leave out `follow`"):
        list(cluster.logs(follow=True, previous=True))


def test_line_without_an_end_is_passed_in_parts(cluster: MiniCluster, api: FakeApi) -> None:
    lead = api.start_job("mc")
    api.log(lead, "\r" * 200_000)
    api.end_job("mc")
    assert len("".join(cluster.logs())) == 200_000
    lines = list(cluster.logs(follow=True))
    assert len("".join(lines)) == 200_000


def test_log_that_nobody_reads_on_is_closed(cluster: MiniCluster, api: FakeApi) -> None:
    api.log(api.start_job("mc"), "one")
    lines = cluster.logs(follow=True)
    assert next(lines) == "one"
    lines.close()  # type: ignore[attr-defined]


def test_why_has_the_operator_s_reason_and_the_agent_s_words(cluster: MiniCluster, api: FakeApi) -> None:
    async def status(api: FakeApi, words: list[str], socket: web.WebSocketResponse) -> int:
        assert words == ["/etc/flux-agent/bin/flux-agent", "status", "--json"]
        await socket.send_bytes(b"\x01" + json.dumps({"lines": [["state", "waits for rank 1"]]}).encode())
        return 0

    api.programs["status"] = status
    assert "has not processed it yet" in str(cluster.why())
    api.start_job("mc")
    api.set_status("mc", reason="BrokersNotReady", message="rank 1 is missing", phase="Starting")
    report = cluster.why()
    assert (report.reason, report.size) == ("BrokersNotReady", 2)
    assert "state      waits for rank 1" in str(report) and report.remedy


def test_events_without_an_answer_fail_with_call_failed(
    cluster: MiniCluster, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.refusals[("GET", "/events")] = (403, {"message": "no"})
    assert cluster.why().warnings == []
    monkeypatch.setattr(target, "CALL_SECONDS", 0.5)
    api.silent.add(("GET", "/events"))
    with pytest.raises(CallFailed, match="cannot list the events of mc"):
        cluster.why()


def test_queue_without_an_answer_fails_with_call_failed(
    cluster: MiniCluster, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.refusals[("DELETE", "miniclusters")] = (403, {"message": "no"})
    monkeypatch.setattr(target, "CALL_SECONDS", 0.5)
    api.silent.add(("GET", "/jobs"))
    with pytest.raises(CallFailed, match="cannot get Job mc"):
        cluster.stop()


async def never(api: FakeApi, words: list[str], socket: web.WebSocketResponse) -> int:
    """As an agent that waits for a volume: it does not even note that its caller is gone."""
    await asyncio.Event().wait()
    return 0


async def endless(api: FakeApi, words: list[str], socket: web.WebSocketResponse) -> int:
    while not socket.closed:
        await socket.send_bytes(b"\x01" + b" " * (1 << 16))
    return 0


def test_agent_that_does_not_answer_is_not_waited_for(
    cluster: MiniCluster, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(stop, "PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(stop, "ATTEMPTS", 2)
    api.start_job("mc")
    api.events.append({"type": "Warning", "message": "a warning", "involvedObject": {"name": "mc"}, "metadata": {}})

    async def refuse(api: FakeApi, words: list[str], socket: web.WebSocketResponse) -> int:
        return 1

    api.programs |= {"status": never, "usage": never, "stop": refuse}
    begin = time.monotonic()
    report = cluster.why()
    assert report.instance is None
    assert "the lead's agent did not answer within 0.2 s; is a volume of the pod stuck?" in str(report)
    assert "a warning" in str(report)
    api.silent.add(("GET", "/exec"))
    assert "did not answer within 0.2 s" in str(cluster.why()), "also if the connection is not opened"
    api.silent.clear()
    with pytest.raises(CallFailed, match="did not answer within"):
        cluster.usage()
    with pytest.raises(CallFailed, match=r"not stopped: .* did not answer within"):
        cluster.stop()
    assert time.monotonic() - begin < 20
    assert api.get("miniclusters", "mc") is not None


def test_endless_answer_of_an_agent_is_cut_off(
    cluster: MiniCluster, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "MOST_ANSWER_BYTES", 1 << 20)
    api.start_job("mc")
    api.programs |= {"status": endless, "usage": endless}
    begin = time.monotonic()
    assert cluster.why().instance is None
    with pytest.raises(CallFailed, match="more than 1 MiB"):
        cluster.usage()
    assert time.monotonic() - begin < 10


def test_usage_is_the_answer_of_the_agent(cluster: MiniCluster, api: FakeApi) -> None:
    answer = {
        "state": "run",
        "seconds": 3,
        "brokers": {"size": 2, "online": 2},
        "resources": {
            "nodes": {"total": 2},
            "cores": {"total": 8, "used": 3},
            "hosts": [{"rank": 0, "name": "mc-0", "state": "up", "coresUsed": 3}],
        },
        "jobs": {"running": 1},
    }

    async def usage(api: FakeApi, words: list[str], socket: web.WebSocketResponse) -> int:
        text = json.dumps(answer).encode()
        for place in range(0, len(text), 10):
            await socket.send_bytes(b"\x01" + text[place : place + 10])
        return 0

    api.programs["usage"] = usage
    with pytest.raises(CallFailed, match="does not run"):
        cluster.usage()
    api.start_job("mc")
    found = cluster.usage()
    assert found.state == "run" and found.resources is not None and found.resources.cores.used == 3
    assert found.resources.hosts[0].cores_used == 3 and found.jobs == {"running": 1}


def test_scale_changes_the_size(cluster: MiniCluster, api: FakeApi) -> None:
    class Number:
        """As numpy's."""

        def __index__(self) -> int:
            return 9

    for size in (8, Number()):
        cluster.scale(size)
        assert api.get("miniclusters", "mc")["spec"]["size"] == operator.index(size)  # type: ignore[index]


def test_stop_deletes_what_does_not_run_yet(cluster: MiniCluster, api: FakeApi) -> None:
    assert cluster.stop().name == "DELETED"
    assert api.get("miniclusters", "mc") is None


def test_stop_without_permission_to_delete_suspends(cluster: MiniCluster, api: FakeApi) -> None:
    api.refusals[("DELETE", "miniclusters")] = (403, {"message": "no"})
    assert cluster.stop().name == "SUSPENDED"
    assert api.get("miniclusters", "mc")["spec"]["suspend"] is True  # type: ignore[index]


def test_stop_of_a_queued_one_without_permission_says_so(cluster: MiniCluster, api: FakeApi) -> None:
    queued = api.get("miniclusters", "mc")
    assert queued is not None
    queued["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "q"}
    api.put("miniclusters", queued)
    api.refusals[("DELETE", "miniclusters")] = (403, {"message": "no"})
    with pytest.raises(NotAllowed):
        cluster.stop()
    assert "suspend" not in api.get("miniclusters", "mc")["spec"]  # type: ignore[index]


def test_stop_in_a_default_queue_without_permission_says_so(cluster: MiniCluster, api: FakeApi) -> None:
    """Kueue has put the Job into the queue. The MiniCluster names none."""
    api.put("jobs", {"metadata": {"name": "mc", "labels": {"kueue.x-k8s.io/queue-name": "default"}}})
    api.refusals[("DELETE", "miniclusters")] = (403, {"message": "no"})
    with pytest.raises(NotAllowed):
        cluster.stop()
    assert "suspend" not in api.get("miniclusters", "mc")["spec"]  # type: ignore[index]


def test_delete_spares_another_one_of_the_same_name(cluster: MiniCluster, api: FakeApi) -> None:
    api.remove("miniclusters", "mc")
    api.put("miniclusters", {"metadata": {"name": "mc", "uid": "other"}, "spec": {"size": 1}})
    with pytest.raises(CallFailed):
        cluster.delete()
    assert api.get("miniclusters", "mc") is not None


def test_wait_knows_ready_finished_and_deleted(cluster: MiniCluster, api: FakeApi) -> None:
    with pytest.raises(TimedOut, match="instance is not up after"):
        cluster.wait("ready", timeout=0.3)
    threading.Timer(0.3, lambda: api.start_job("mc")).start()
    cluster.wait("ready", timeout=20)
    with pytest.raises(TimedOut, match="job has not ended within"):
        cluster.wait(timeout=0.3)
    threading.Timer(0.3, lambda: api.end_job("mc", 3)).start()
    cluster.wait(timeout=20)
    with pytest.raises(JobFailed):
        cluster.wait("ready", timeout=20)
    with pytest.raises(TimedOut):
        cluster.wait("deleted", timeout=0.3)
    threading.Timer(0.3, lambda: api.remove("miniclusters", "mc")).start()
    cluster.wait("deleted", timeout=20)
    assert api.get("miniclusters", "mc") is None


@pytest.mark.parametrize("is_refused", [True, False])
def test_wait_needs_neither_pods_nor_log(cluster: MiniCluster, api: FakeApi, is_refused: bool) -> None:
    if is_refused:
        api.refusals[("GET", "/pods")] = (403, {"message": "no"})
    else:
        api.silent.add(("GET", "/pods"))
    threading.Timer(0.3, lambda: api.log(api.start_job("mc"), "output")).start()
    cluster.wait("ready", timeout=20)
    threading.Timer(0.3, lambda: api.end_job("mc", 3)).start()
    cluster.wait(timeout=20)
    assert not any("/pods" in path for _, path in api.requests)


def test_block_creates_waits_and_deletes(api: FakeApi) -> None:
    api.on_create = lambda it: threading.Timer(0.3, lambda: api.start_job(it["metadata"]["name"])).start()
    with MiniCluster("app:1", size=2) as cluster:
        found = api.get("miniclusters", cluster.name)
        assert found is not None and found["status"]["readySize"] == 2
        assert "command" not in found["spec"]["containers"][0] and "logging" not in found["spec"]
        assert cluster.namespace == "team"
    assert api.get("miniclusters", cluster.name) is None


def test_block_that_fails_deletes_as_well(api: FakeApi) -> None:
    api.on_create = lambda it: api.start_job(it["metadata"]["name"])
    with pytest.raises(ZeroDivisionError), MiniCluster("app:1"):
        print(1 / 0)
    assert not any(kind == "miniclusters" for kind, _ in api.objects)


def test_instance_that_fails_to_start_raises_and_is_deleted(api: FakeApi) -> None:
    def fail(cluster: Object) -> None:
        name = cluster["metadata"]["name"]
        api.put_pod(name, 0, None)
        api.end_job(name, 242)

    api.on_create = fail
    with pytest.raises(JobFailed) as caught, MiniCluster("app:1"):
        pass
    assert caught.value.exit_code == 242
    assert not any(kind == "miniclusters" for kind, _ in api.objects)


def test_job_that_has_completed_stays_ready(api: FakeApi) -> None:
    """The log of a fast job is read after `wait("ready")`."""

    def end(cluster: Object) -> None:
        api.start_job(cluster["metadata"]["name"])
        api.end_job(cluster["metadata"]["name"])

    async def enter() -> None:
        async with MiniCluster("app:1") as cluster:
            await cluster.wait_async("ready", timeout=20)

    api.on_create = end
    cluster = MiniCluster("app:1").create()
    cluster.wait("ready", timeout=20)
    with cluster:
        pass
    asyncio.run(enter())
    assert not any(kind == "miniclusters" for kind, _ in api.objects)


def test_wait_for_an_unknown_state_fails_at_once(cluster: MiniCluster) -> None:
    for until in ("redy", None):
        with pytest.raises(ValueError, match="must be 'finished', 'ready' or 'deleted', not "):
            cluster.wait(until, timeout=20)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="must be"):
            asyncio.run(cluster.wait_async(until, timeout=20))  # type: ignore[arg-type]


def test_log_of_an_index_that_is_no_number_is_refused(cluster: MiniCluster, api: FakeApi) -> None:
    api.start_job("mc")
    with pytest.raises(TypeError, match="integer"):
        list(cluster.logs(index="0"))  # type: ignore[arg-type]


def test_result_after_delete_blames_nobody(cluster: MiniCluster, api: FakeApi) -> None:
    api.start_job("mc")
    cluster.delete()
    with pytest.raises(Lost, match="it is gone: how its job ended is unknown"):
        cluster.result()


def test_namesake_is_not_shown(cluster: MiniCluster, api: FakeApi) -> None:
    api.put("miniclusters", {"metadata": {"name": "mc", "uid": "other"}, "spec": {"size": 1}})
    for look in (cluster.status, cluster.why, cluster.usage, lambda: list(cluster.logs())):
        with pytest.raises(Lost, match="another MiniCluster has its name"):
            look()


def test_async_methods_do_the_same_as_the_blocking_ones(api: FakeApi) -> None:
    api.on_create = lambda it: api.start_job(it["metadata"]["name"])

    async def use() -> None:
        async with MiniCluster("app:1", name="mine") as cluster:
            await cluster.scale_async(3)
            assert [line async for line in cluster.logs_async()] == []
            assert (await cluster.status_async()).phase == "Running"
            assert (await cluster.why_async()).size == 3

    asyncio.run(use())
    assert api.get("miniclusters", "mine") is None


def test_file_is_run_with_the_size_of_the_argument(api: FakeApi, tmp_path: Path) -> None:
    file = tmp_path / "minicluster.yaml"
    file.write_text(
        "apiVersion: flux-framework.org/v1alpha2\nkind: MiniCluster\nmetadata: {name: mine}\n"
        "spec: {size: 3, containers: [{image: a, command: b}]}\n"
    )
    cluster = MiniCluster.from_file(file, size=2).create()
    api.start_job("mine")
    api.end_job("mine", 4)
    assert cluster.result(check=False).exit_code == 4
    containers = [{"image": "a", "command": "b"}]
    assert api.bodies[0]["spec"] == {"size": 2, "containers": containers, "logging": {"quiet": True}}


def test_task_that_never_began_leaves_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    async def cancel() -> None:
        follower = Follower(cast(target.Target, None), "mc", "u", Silent())
        task = follower._start(follower._timer("end", 60.0))
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(cancel())
    assert [str(it.message) for it in recwarn.list] == []


def test_file_with_several_miniclusters_is_noted(tmp_path: Path) -> None:
    item = "{kind: MiniCluster, metadata: {name: NAME, namespace: team}, spec: {}}"
    documents = [item.replace("NAME", name) for name in ("one", "two")]
    file = tmp_path / "miniclusters.yaml"
    for text in ("\n---\n".join(documents), f"kind: List\nitems: [{', '.join(documents)}]\n"):
        file.write_text(text)
        with pytest.warns(UserWarning, match="has 2 MiniClusters: only the first one, one, is used") as warned:
            cluster = MiniCluster.from_file(file)
        assert warned[0].filename == __file__
        assert repr(cluster) == "MiniCluster('not created', namespace='team')"


def test_api_server_that_stays_away_is_named(api: FakeApi) -> None:
    api.cut()
    begin = time.monotonic()
    with pytest.raises(CallFailed, match="cannot get MiniCluster mc"):
        MiniCluster.attach("mc")
    assert time.monotonic() - begin < 20
    api.mend()


@pytest.mark.parametrize("name", ["mc", None])
def test_minicluster_that_was_not_created_changes_nothing(cluster: MiniCluster, api: FakeApi, name: str | None) -> None:
    other = MiniCluster("app", size=1, name=name)
    other._access = cluster._access
    other.delete()
    changes: list[Callable[[], Any]] = [other.stop, lambda: other.scale(2)]
    if name is None:
        changes += [other.executor, lambda: other.submit(["true"])]
    for change in changes:
        with pytest.raises(ValueError, match="not created"):
            change()
    assert api.get("miniclusters", "mc")["spec"]["size"] == 2  # type: ignore[index]

"""What an end leaves behind, and what it must not: with a fake API server."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientConnectionError, web
from fake_api import FakeApi, FakeLog, Object, Program
from test_run import in_thread, log_in_by_plugin, names, press_ctrl_c, refuse, stop_program
from waiting import until

from flux_minicluster import (
    CallFailed,
    Lost,
    MiniCluster,
    NotAllowed,
    Result,
    Stopped,
    TimedOut,
    follow,
    logs,
    run,
    stop,
    target,
)
from flux_minicluster import program as program_module
from flux_minicluster.observed import QUEUE_LABEL
from flux_minicluster.screen import Silent
from flux_minicluster.stop import Way
from flux_minicluster.target import Access, Listed, Target


def program(code: int, output: Object | None = None) -> Program:
    async def answer(api: FakeApi, words: list[str], socket: web.WebSocketResponse) -> int:
        if output is not None:
            await socket.send_bytes(b"\x01" + json.dumps(output).encode())
        return code

    return answer


def running(api: FakeApi) -> MiniCluster:
    """A MiniCluster whose instance is up."""
    api.put("miniclusters", {"metadata": {"name": "mc", "uid": "u", "namespace": "team"}, "spec": {"size": 1}})
    api.start_job("mc")
    return MiniCluster.attach("mc")


def deletions(api: FakeApi) -> list[str]:
    return [path for method, path in api.requests if method == "DELETE"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop, "PAUSE_SECONDS", 0.05)


# ---- stop


@pytest.mark.parametrize("after", [{"snippet": None, "has_ended": True}, {"snippet": "post"}])
def test_stop_deletes_nothing_while_the_last_steps_run(api: FakeApi, after: dict[str, Any]) -> None:
    cluster = running(api)
    # The MiniCluster has not been seen up: the operator may only be late.
    api.set_status("mc", conditions={}, timeline={"running": "2026-01-01T00:00:00Z"})
    api.programs |= {"stop": program(1), "status": program(1, {"state": None} | after)}
    assert cluster.stop() is Way.ENDING
    assert deletions(api) == []


def test_stop_deletes_nothing_while_the_broker_does_not_answer(api: FakeApi) -> None:
    cluster = running(api)
    # The MiniCluster has not been seen up: the operator may only be late.
    api.set_status("mc", conditions={}, timeline={"running": "2026-01-01T00:00:00Z"})
    silent = {"has_broker": True, "state": None, "snippet": None}
    api.programs |= {"stop": program(1), "status": program(1, silent)}
    with pytest.raises(CallFailed):
        cluster.stop()
    assert deletions(api) == []


def test_stop_tries_again_when_its_answer_is_lost(api: FakeApi) -> None:
    cluster = running(api)
    calls = []

    async def lost_once(api: FakeApi, words: list[str], socket: web.WebSocketResponse) -> int:
        calls.append(words)
        if len(calls) == 1:
            assert socket._req is not None and socket._req.transport is not None
            socket._req.transport.abort()
        return 0

    api.programs["stop"] = lost_once
    assert cluster.stop() is Way.SHUT_DOWN
    assert len(calls) == 2 and deletions(api) == []


def test_stop_tries_again_when_a_refusal_follows_no_answer(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """An API server that starts does not know all roles yet."""
    cluster = running(api)
    api.programs["stop"] = program(0)
    original, failures = Target.pods_of, [NotAllowed("no role is known", status=403), CallFailed("starting")]

    async def pods_of(self: Target, name: str) -> Any:
        if failures:
            raise failures.pop()
        return await original(self, name)

    monkeypatch.setattr(Target, "pods_of", pods_of)
    assert cluster.stop() is Way.SHUT_DOWN


@pytest.mark.parametrize("status", [500, 503, 403])
def test_stop_deletes_nothing_when_exec_fails(api: FakeApi, status: int) -> None:
    cluster = running(api)
    refuse(api, "GET", "/exec", status, message="no")
    with pytest.raises(NotAllowed if status == 403 else CallFailed):
        cluster.stop()
    assert deletions(api) == []


def test_refused_stop_is_no_shutdown_when_the_lead_restarts(api: FakeApi) -> None:
    cluster = running(api)

    async def status(api: FakeApi, words: list[str], socket: web.WebSocketResponse) -> int:
        await asyncio.to_thread(api.restart_lead, "mc")
        return await program(0, {"state": "run", "snippet": None})(api, words, socket)

    api.programs |= {"stop": program(1), "status": status}
    with pytest.raises(CallFailed):
        cluster.stop()


def wait_for_restart(api: FakeApi, name: str = "mc", **termination: Any) -> None:
    """The lead's container has ended with this termination, and waits to be started again."""
    end = {"exitCode": 143, "message": json.dumps({"version": 1, "code": 143} | termination)}
    status = api.objects[("pods", f"{name}-0-x")]["status"]["containerStatuses"][0]
    status["state"] = {"waiting": {"reason": "CrashLoopBackOff"}}
    status["lastState"] = {"terminated": end}


def test_second_stop_deletes_nothing_after_a_shutdown(api: FakeApi) -> None:
    cluster = running(api)
    wait_for_restart(api, by="program", shutDown=True)
    assert cluster.stop() is Way.ENDING


def restarts(*reasons: str) -> list[Object]:
    return [{"time": "", "reason": reason, "message": ""} for reason in reasons]


@pytest.mark.parametrize(
    "where",
    [
        "backoff",
        "lost again",
        "after program",
        "was up",
        "between Jobs",
        "restarted",
        "lead lost",
        "replaced",
        "quorum",
    ],
)
def test_stop_deletes_nothing_between_two_starts(api: FakeApi, where: str) -> None:
    cluster = running(api)
    never_up: Object = {"conditions": {}, "timeline": {}}
    if where == "backoff":
        api.set_status("mc", **never_up)
        wait_for_restart(api, by="program")
    elif where == "lost again":
        api.set_status("mc", **never_up)
        wait_for_restart(api, by="agent", category="lead-lost")
    elif where == "after program":
        api.set_status("mc", **never_up)
        wait_for_restart(api, by="snippet", programCode=0)
    elif where == "was up":
        wait_for_restart(api, by="agent", category="broker-failed")
    elif where == "restarted":
        api.remove("pods", "mc-0-x")
        listed = restarts("NotStarted", "LeadLost", "NotStarted")
        api.set_status("mc", **never_up, jobUid=None, restartCount=3, restarts=listed)
    elif where == "between Jobs":
        api.remove("pods", "mc-0-x")
        api.set_status("mc", conditions={}, timeline={}, jobUid=None, restartCount=1)
    elif where == "replaced":
        api.set_status("mc", conditions={}, timeline={"running": "2026-01-01T00:00:00Z"})
        annotations = {"batch.kubernetes.io/job-index-ignored-failure-count": "1"}
        api.objects[("pods", "mc-0-x")]["metadata"]["annotations"] = annotations
        api.programs |= {"stop": program(1), "status": program(1, {"state": None, "snippet": None})}
    elif where == "lead lost":
        api.remove("pods", "mc-0-x")
    else:
        api.restart_lead("mc")
        api.programs |= {"stop": program(1), "status": program(0, {"state": "quorum", "snippet": None})}
    with pytest.raises(CallFailed, match="its program may have run before, and its instance is not up again"):
        cluster.stop()
    assert deletions(api) == []


@pytest.mark.parametrize(
    "termination", [{"by": "agent", "category": "view-missing"}, {"by": "snippet"}, {"reason": "StartError"}, None]
)
def test_stop_deletes_what_was_restarted_before_its_program_ran(api: FakeApi, termination: Object | None) -> None:
    cluster = running(api)
    if termination is None:
        api.remove("pods", "mc-0-x")
        listed = restarts("NotStarted", "CreateContainerError")
        api.set_status("mc", conditions={}, timeline={}, jobUid=None, restartCount=2, restarts=listed)
    else:
        wait_for_restart(api, **termination)
        status = api.objects[("pods", "mc-0-x")]["status"]["containerStatuses"][0]
        status["restartCount"] = 2
        if "reason" in termination:
            status["lastState"]["terminated"] = {"exitCode": 128, "message": "no such directory", **termination}
        started = {"running": "2026-01-01T00:00:00Z"}
        api.set_status("mc", conditions={}, timeline=started, restartCount=2, containerRestarts=2)
    assert cluster.stop() is Way.DELETED


@pytest.mark.parametrize("has_begun", [False, True])
def test_stop_of_a_suspended_job_says_that_nothing_runs(api: FakeApi, has_begun: bool) -> None:
    cluster = running(api)
    api.remove("pods", "mc-0-x")
    listed = restarts("Suspended") if has_begun else []
    api.set_status("mc", conditions={"Suspended": "True"}, timeline={}, restartCount=len(listed), restarts=listed)
    if not has_begun:
        assert cluster.stop() is Way.DELETED
        return
    with pytest.raises(CallFailed, match=r"it is suspended, so nothing runs\nNothing was deleted.*`delete\(\)`"):
        cluster.stop()
    assert deletions(api) == []
    assert len([path for method, path in api.requests if "/pods" in path]) == 1, "it is not tried again"


@pytest.mark.parametrize(
    ("is_reported", "is_terminating", "why"),
    [
        (True, True, "its pods are being stopped"),
        (True, False, "its status says that it is suspended, but its lead runs"),
        (False, True, "has not suspended its Job yet"),
    ],
)
def test_stop_while_a_suspended_lead_ends_asks_nothing(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, is_reported: bool, is_terminating: bool, why: str
) -> None:
    monkeypatch.setattr("flux_minicluster.stop.PAUSE_SECONDS", 0.0)
    cluster = running(api)
    if is_terminating:
        api.objects[("pods", "mc-0-x")]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    api.objects[("miniclusters", "mc")]["spec"]["suspend"] = True
    api.objects[("miniclusters", "mc")]["metadata"]["generation"] = 2
    api.set_status("mc", conditions={"Suspended": str(is_reported)}, observedGeneration=2 if is_reported else 1)
    with pytest.raises(CallFailed, match=rf"{why}\nNothing was deleted"):
        cluster.stop()
    assert deletions(api) == []
    assert not [path for _, path in api.requests if "/exec" in path]


async def never(api: FakeApi, words: list[str], socket: web.WebSocketResponse) -> int:
    """As in a pod whose volume is stuck: nothing comes, until the client gives up."""
    await socket.receive()
    return 1


def test_stop_ends_when_the_agent_does_not_answer(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_module, "ANSWER_SECONDS", 0.2)
    cluster = running(api)
    api.programs["stop"] = never
    with pytest.raises(CallFailed, match=r"not stopped: the lead's agent did not answer.*stuck.*\nIt may shut down"):
        cluster.stop()
    assert deletions(api) == []
    assert len([path for method, path in api.requests if "/exec" in path]) == 1, "another one would hang, too"


@pytest.mark.parametrize("is_kept", [False, True])
def test_cancelled_run_deletes_no_kept_job_between_two_starts(
    api: FakeApi, caplog: pytest.LogCaptureFixture, is_kept: bool
) -> None:
    def live(cluster: Object) -> None:
        api.start_job("mine")
        api.set_status("mine", conditions={}, timeline={})
        wait_for_restart(api, "mine", by="program")

    api.on_create = live

    async def cancel() -> None:
        task = asyncio.ensure_future(MiniCluster.run_async("app:1", ["x"], name="mine", keep=is_kept))
        await asyncio.sleep(0.7)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert names(api) == (["mine"] if is_kept else [])
    assert ("mine is kept, and may still run" in caplog.text) is is_kept


@pytest.mark.parametrize(("has_job", "is_queued"), [(True, False), (False, False), (True, True)])
def test_kept_run_suspends_at_ctrl_c_what_has_not_started(
    api: FakeApi, capsys: pytest.CaptureFixture[str], has_job: bool, is_queued: bool
) -> None:
    """What never starts is what its user wants to look at. It must not start later, when nobody follows it."""

    def live(cluster: Object) -> None:
        if is_queued:
            api.put("jobs", {"metadata": {"name": "mine", "labels": {QUEUE_LABEL: "default"}}})
        if has_job:
            api.set_status("mine", phase="Pending", reason="Unschedulable", message="why not", jobUid="job")
        time.sleep(0.3)
        press_ctrl_c()

    def suspend(cluster: Object, change: Object) -> None:
        if has_job and change["spec"].get("suspend"):
            in_thread(lambda: api.set_status("mine", conditions={"Suspended": "True"}))

    api.on_create = lambda cluster: in_thread(lambda: live(cluster))
    api.on_patch = suspend
    with pytest.raises(Stopped, match="deleted" if is_queued else "suspended: .*`keep`"):
        MiniCluster.run("app:1", ["x"], name="mine", keep=True)
    assert names(api) == ([] if is_queued else ["mine"])
    if not is_queued:
        assert api.get("miniclusters", "mine")["spec"]["suspend"] is True  # type: ignore[index]
        assert "mine is kept: `MiniCluster.attach('mine').delete()` deletes it" in capsys.readouterr().err


def test_cancelled_kept_run_suspends_what_has_not_started(api: FakeApi) -> None:
    async def cancel() -> None:
        task = asyncio.ensure_future(MiniCluster.run_async("app:1", ["x"], name="mine", keep=True))
        await asyncio.to_thread(until, lambda: any("/pods?" in path and "watch" in path for _, path in api.requests))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert api.get("miniclusters", "mine")["spec"]["suspend"] is True  # type: ignore[index]


def test_run_that_may_not_delete_ends_without_a_job(api: FakeApi) -> None:
    """Without a Job, the operator reports no suspension."""
    refuse(api, "DELETE", "miniclusters", 403, message="no")

    def live() -> None:
        time.sleep(0.3)
        press_ctrl_c()

    api.on_create = lambda cluster: in_thread(live)
    with pytest.raises(Stopped, match=r"suspended: .*no permission to delete"):
        MiniCluster.run("app:1", ["x"], timeout=10)


@pytest.mark.parametrize("created", ["2025-12-31T00:00:00Z", "2026-01-02T00:00:00Z"])
def test_stop_deletes_nothing_before_the_status_names_the_job(api: FakeApi, created: str) -> None:
    metadata = {"name": "mc", "uid": "u", "namespace": "team", "creationTimestamp": created}
    api.put("miniclusters", {"metadata": metadata, "spec": {"size": 1}})
    api.put_pod("mc", 0, {"running": {}})
    cluster = MiniCluster.attach("mc")
    if created > "2026":
        # The pod is older: it belongs to another MiniCluster of this name.
        assert cluster.stop() is Way.DELETED
        return
    with pytest.raises(CallFailed, match="has not reported the Job yet"):
        cluster.stop()
    assert deletions(api) == []


@pytest.mark.parametrize(("condition", "seen"), [("False", 2), ("True", 2), ("False", 1)])
def test_resumed_job_is_an_error_of_stop_without_delete_right(api: FakeApi, condition: str, seen: int) -> None:
    metadata = {"name": "mc", "uid": "u", "namespace": "team", "generation": 2}
    api.put("miniclusters", {"metadata": metadata, "spec": {"size": 1, "suspend": True}})
    api.set_status("mc", conditions={"Suspended": condition}, jobUid="job", observedGeneration=seen)
    refuse(api, "DELETE", "miniclusters", 403, message="no")
    cluster = MiniCluster.attach("mc")
    if (condition, seen) != ("False", 2):
        # It is suspended, or the operator is about to suspend it.
        assert cluster.stop() is Way.SUSPENDED
        return
    with pytest.raises(NotAllowed, match=r"no .*although the Job runs.*\n.*permission `delete`"):
        cluster.stop()
    assert "PATCH" not in [method for method, _ in api.requests]


@pytest.mark.parametrize("has_job", [True, False])
def test_invalid_minicluster_with_a_job_is_not_suspended(api: FakeApi, has_job: bool) -> None:
    metadata = {"name": "mc", "uid": "u", "namespace": "team", "generation": 1}
    api.put("miniclusters", {"metadata": metadata, "spec": {"size": 1}})
    api.set_status("mc", reason="Invalid", observedGeneration=1, **({"jobUid": "job"} if has_job else {}))
    refuse(api, "DELETE", "miniclusters", 403, message="no")
    cluster = MiniCluster.attach("mc")
    if not has_job:
        assert cluster.stop() is Way.SUSPENDED
        return
    with pytest.raises(NotAllowed, match="only with a valid spec"):
        cluster.stop()
    assert "PATCH" not in [method for method, _ in api.requests]


def test_stop_deletes_an_instance_that_has_not_begun(api: FakeApi) -> None:
    cluster = running(api)
    api.set_status("mc", conditions={}, timeline={"running": "2026-01-01T00:00:00Z"})
    api.programs |= {"stop": program(1), "status": program(1, {"state": None, "snippet": "pre"})}
    assert cluster.stop() is Way.DELETED


@pytest.mark.parametrize("state", ["join", "init", "quorum"])
def test_stop_deletes_an_instance_whose_broker_does_not_run_yet(api: FakeApi, state: str) -> None:
    cluster = running(api)
    api.programs |= {"stop": program(1), "status": program(0, {"state": state, "snippet": None})}
    assert cluster.stop() is Way.DELETED


@pytest.mark.parametrize("state", ["run", "cleanup"])
def test_stop_deletes_no_instance_that_refuses_a_shutdown(api: FakeApi, state: str) -> None:
    cluster = running(api)
    api.programs |= {"stop": program(1), "status": program(0, {"state": state, "snippet": None})}
    with pytest.raises(CallFailed):
        cluster.stop()
    assert deletions(api) == []


def test_ctrl_c_after_the_job_s_end_waits_for_post(api: FakeApi) -> None:
    api.programs |= {"stop": program(1), "status": program(1, {"state": None, "snippet": "post"})}

    def live(cluster: Object) -> None:
        name = cluster["metadata"]["name"]
        api.log(api.start_job(name), "working")
        time.sleep(0.3)
        press_ctrl_c()
        time.sleep(0.5)
        api.end_job(name, 0)

    api.on_create = lambda cluster: in_thread(lambda: live(cluster))
    with pytest.raises(KeyboardInterrupt) as caught:
        MiniCluster.run("app:1", ["x"])
    assert caught.value.result.exit_code == 0  # type: ignore[attr-defined]
    assert deletions(api) == []


@pytest.mark.parametrize("code", [0, 1])
def test_finished_minicluster_is_cleaned_up_without_delete_right(api: FakeApi, code: int) -> None:
    finished = {"name": "mc", "uid": "u", "namespace": "team", "labels": {QUEUE_LABEL: "also in a queue"}}
    api.put("miniclusters", {"metadata": finished, "spec": {"size": 1}})
    api.end_job("mc", code)
    refuse(api, "DELETE", "miniclusters", 403, message="no")

    async def end() -> Way:
        async with Target.open(Access()) as target:
            return await stop.at_once(target, "mc", "u")

    assert asyncio.run(end()) is Way.DELETED
    assert api.get("miniclusters", "mc")["spec"] == {"size": 1, "cleanup": True}  # type: ignore[index]


@pytest.mark.parametrize("lost", [1, 2])
@pytest.mark.parametrize("is_in_order", [True, False])
def test_stop_whose_answers_are_lost_has_deleted(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, lost: int, is_in_order: bool
) -> None:
    """With as many lost answers as tries, only a look at the MiniCluster tells."""
    monkeypatch.setattr(target, "TRIES", 2)
    api.put("miniclusters", {"metadata": {"name": "mc", "uid": "u", "namespace": "team"}, "spec": {"size": 1}})
    api.lost_answers["DELETE"] = lost
    if lost > 1:
        # No other attempt is answered.
        api.on_delete = lambda _: refuse(api, "DELETE", "miniclusters", 503, message="not now")

    async def end() -> Way:
        async with Target.open(Access()) as opened:
            return await (stop.in_order if is_in_order else stop.at_once)(opened, "mc", "u")

    assert asyncio.run(end()) is Way.DELETED


def test_kept_minicluster_is_not_deleted_when_answers_are_lost(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator has read the spec before the next look, and has not suspended the Job yet."""
    monkeypatch.setattr(target, "TRIES", 2)
    api.put("miniclusters", {"metadata": {"name": "mc", "uid": "u", "namespace": "team"}, "spec": {"size": 1}})
    api.set_status("mc", jobUid="job")
    api.lost_answers["PATCH"] = 2

    async def end() -> Way:
        async with Target.open(Access()) as opened:
            return await stop.in_order(opened, "mc", "u", keep=True)

    assert asyncio.run(end()) is Way.KEPT
    assert names(api) == ["mc"]


def test_stop_says_that_a_deletion_has_no_answer(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "TRIES", 2)
    api.put("miniclusters", {"metadata": {"name": "mc", "uid": "u", "namespace": "team"}, "spec": {"size": 1}})
    refuse(api, "DELETE", "miniclusters", 503, message="not now")
    with pytest.raises(CallFailed, match="cannot delete MiniCluster mc: not now") as caught:
        MiniCluster.attach("mc").stop()
    assert "Nothing was deleted" not in str(caught.value)


# ---- another MiniCluster of the same name


def test_log_of_another_minicluster_s_pod_is_not_the_run_s(api: FakeApi) -> None:
    old = api.put_pod("mine", 0, {"running": {}}, name="mine-0-old", job="old")
    api.log(old, "old output")

    def live(cluster: Object) -> None:
        time.sleep(0.5)
        api.log(api.start_job("mine"), "new output")
        api.end_job("mine")

    api.on_create = lambda cluster: in_thread(lambda: live(cluster))
    assert MiniCluster.run("app:1", ["x"], name="mine", stream=False).stdout == "new output\n"


def test_clean_up_and_stop_spare_another_minicluster(api: FakeApi) -> None:
    other = {"metadata": {"name": "mc", "uid": "other", "namespace": "team"}, "spec": {"size": 1}}
    api.put("miniclusters", other)

    async def end() -> None:
        async with Target.open(Access()) as target:
            await run.clean_up(target, "mc", "mine", Silent())
            assert await stop.in_order(target, "mc", "mine") is Way.HAD_ENDED
            assert await stop.at_once(target, "mc", "mine") is Way.HAD_ENDED
            api.refusals[("DELETE", "miniclusters")] = (403, {"message": "no"})
            assert await stop.at_once(target, "mc", "mine") is Way.HAD_ENDED

    asyncio.run(end())
    assert api.get("miniclusters", "mc")["spec"] == {"size": 1}  # type: ignore[index]


# ---- Ctrl-C and failures of the screen


def test_second_ctrl_c_ends_a_creation_without_an_answer(api: FakeApi) -> None:
    api.silent.add(("POST", "miniclusters"))

    def press() -> None:
        until(lambda: any(method == "POST" for method, _ in api.requests))
        press_ctrl_c(2)

    in_thread(press)
    with pytest.raises(KeyboardInterrupt):
        MiniCluster.run("app:1", ["x"])


def test_third_ctrl_c_ends_a_deletion_without_an_answer(api: FakeApi) -> None:
    api.silent |= {("DELETE", "miniclusters"), ("GET", "/exec")}

    def live(cluster: Object) -> None:
        api.start_job(cluster["metadata"]["name"])
        time.sleep(0.3)
        press_ctrl_c(3)

    api.on_create = lambda cluster: in_thread(lambda: live(cluster))
    with pytest.raises(KeyboardInterrupt):
        MiniCluster.run("app:1", ["x"])


def interrupt_creation(cluster: Object) -> None:
    press_ctrl_c()
    time.sleep(0.3)


@pytest.mark.parametrize("is_block", [True, False])
def test_ctrl_c_during_create_leaves_nothing_behind(api: FakeApi, is_block: bool) -> None:
    api.on_create = interrupt_creation
    cluster = MiniCluster("app:1")
    with pytest.raises(KeyboardInterrupt):
        if is_block:
            with cluster:
                pass
        else:
            cluster.create()
    assert names(api) == [] and len(api.bodies) == 1


def test_cancelled_creation_leaves_nothing_behind(api: FakeApi) -> None:
    async def cancel() -> None:
        creating = asyncio.ensure_future(MiniCluster("app:1").create_async())
        api.on_create = lambda cluster: creating.get_loop().call_soon_threadsafe(creating.cancel)
        with pytest.raises(asyncio.CancelledError):
            await creating

    asyncio.run(cancel())
    assert names(api) == [] and len(api.bodies) == 1


def test_creation_cancelled_with_all_tasks_leaves_nothing_behind(api: FakeApi) -> None:
    async def fail_beside_the_creation() -> None:
        created = asyncio.Event()
        loop = asyncio.get_running_loop()
        api.on_create = lambda cluster: loop.call_soon_threadsafe(created.set)

        async def fail() -> None:
            await created.wait()
            raise ValueError

        await asyncio.gather(MiniCluster("app:1").create_async(), fail())

    # At its end, `asyncio.run` cancels all tasks, also the one inside of `create_async`.
    with pytest.raises(ValueError):
        asyncio.run(fail_beside_the_creation())
    assert names(api) == [] and len(api.bodies) == 1


CREATION, LOOK = ("POST", "miniclusters"), ("GET", "miniclusters")


@pytest.mark.parametrize("silent", [{("GET", "pods")}, {CREATION}, {CREATION, LOOK}])
def test_cancelled_creation_does_not_wait_for_a_silent_api_server(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, silent: set[tuple[str, str]]
) -> None:
    monkeypatch.setattr(run, "CANCEL_SECONDS", 0.5)
    api.silent |= silent

    async def cancel() -> float:
        creating = asyncio.ensure_future(MiniCluster("app:1").create_async())
        waited_for = "POST" if CREATION in silent else "GET"
        await asyncio.to_thread(until, lambda: any(it == waited_for for it, _ in api.requests))
        begin = time.monotonic()
        creating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await creating
        return time.monotonic() - begin

    assert asyncio.run(cancel()) < 2
    assert any(it == "POST" for it, _ in api.requests) is (CREATION in silent)


@pytest.mark.parametrize("status", [403, 422])
def test_cancelled_creation_that_is_refused_is_not_looked_for(api: FakeApi, status: int) -> None:
    refuse(api, "POST", "miniclusters", status, message="no")

    async def cancel() -> None:
        creating = asyncio.ensure_future(MiniCluster("app:1").create_async())
        original = Target.create

        async def create(self: Target, document: Object) -> Object:
            creating.cancel()
            return await original(self, document)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Target, "create", create)
            with pytest.raises(asyncio.CancelledError):
                await creating

    asyncio.run(cancel())
    assert not any("/miniclusters/" in path for _, path in api.requests)


def test_creation_without_an_answer_leaves_nothing_behind(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "TRIES", 2)
    api.lost_answers["POST"] = 2
    with pytest.raises(CallFailed, match="cannot create"):
        MiniCluster("app:1").create()
    assert names(api) == [] and api.bodies


def test_creation_that_cannot_be_undone_says_that_it_may_exist(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "TRIES", 2)
    api.lost_answers["POST"] = 1

    def go_away(cluster: Object) -> None:
        for method in ("GET", "POST"):
            refuse(api, method, "/miniclusters", 503, message="not now")

    api.on_create = go_away
    with pytest.raises(CallFailed, match="may exist nevertheless"):
        MiniCluster("app:1").create()
    assert len(names(api)) == 1


def test_cancelled_creation_that_may_not_delete_is_cleaned_up(api: FakeApi) -> None:
    """Without the permission to delete, a MiniCluster is suspended. In a queue that has no effect.

    So its job will run, and `cleanup` has the operator delete it afterwards.
    """
    refuse(api, "DELETE", "miniclusters", 403, message="no")

    async def cancel() -> None:
        creating = asyncio.ensure_future(MiniCluster.run_async("app:1", ["x"], name="mine", queue="team"))
        api.on_create = lambda cluster: creating.get_loop().call_soon_threadsafe(creating.cancel)
        with pytest.raises(asyncio.CancelledError):
            await creating

    asyncio.run(cancel())
    assert api.get("miniclusters", "mine")["spec"]["cleanup"] is True  # type: ignore[index]


def test_creation_survives_a_refusal_after_a_lost_answer(api: FakeApi) -> None:
    api.lost_answers["POST"] = 1

    def refuse_once(cluster: Object) -> None:
        refuse(api, "POST", "miniclusters", 403, message="no role is known")
        threading.Timer(1.5, api.refusals.clear).start()

    api.on_create = refuse_once
    cluster = MiniCluster("app:1").create()
    assert names(api) == [cluster.name]


class ClosedOutput:
    """Standard output whose reader is gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError

    def flush(self) -> None:
        pass


@pytest.mark.parametrize("is_blocking", [True, False])
def test_closed_output_shuts_the_job_down(api: FakeApi, monkeypatch: pytest.MonkeyPatch, is_blocking: bool) -> None:
    api.programs["stop"] = stop_program()
    api.on_create = lambda it: api.log(api.start_job(it["metadata"]["name"]), "a line")
    monkeypatch.setattr(sys, "stdout", ClosedOutput())
    with pytest.raises(BrokenPipeError):
        if is_blocking:
            MiniCluster.run("app:1", ["x"], name="mine")
        else:
            asyncio.run(MiniCluster.run_async("app:1", ["x"], name="mine", stream=True))
    cluster = api.get("miniclusters", "mine")
    assert cluster is not None and cluster["spec"]["cleanup"] is True
    assert cluster["status"]["phase"] == "Failed"


# ---- a log that cannot be read whole


def run_to_the_end(api: FakeApi, live: Any) -> Result:
    api.on_create = lambda cluster: in_thread(lambda: live(cluster["metadata"]["name"]))
    return MiniCluster.run("app:1", ["x"], stream=False)


def is_kept(api: FakeApi, result: Result) -> bool:
    return "cleanup" not in api.get("miniclusters", result.name)["spec"]  # type: ignore[index]


def printed(api: FakeApi, name: str) -> str:
    """Starts the job, waits until its first line was read, and returns the lead's pod."""
    lead = api.start_job(name)
    api.log(lead, "first")
    until(lambda: any("/log" in path for _, path in api.requests))
    time.sleep(0.3)
    return lead


def test_pod_that_goes_with_its_log_keeps_the_minicluster(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "PAUSE_AFTER_FAILURE_SECONDS", 0.05)

    def live(name: str) -> None:
        lead = printed(api, name)
        api.cut()
        api.log(lead, "last")
        api.remove("pods", lead)
        del api.logs[lead]
        api.mend()
        api.end_job(name)

    result = run_to_the_end(api, live)
    assert result.stdout == "first\n" and result.unread is not None and "its pod is gone" in result.unread
    assert is_kept(api, result)


def test_rotated_log_keeps_the_minicluster(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "PAUSE_AFTER_FAILURE_SECONDS", 0.05)

    def live(name: str) -> None:
        lead = printed(api, name)
        api.cut()
        api.log(lead, "lost")
        api.rotate_log(lead)
        api.log(lead, "last")
        api.mend()
        api.end_job(name)

    result = run_to_the_end(api, live)
    assert result.stdout == "first\nlast\n" and result.unread is not None
    assert is_kept(api, result)


def test_rotation_of_a_log_that_was_read_whole_keeps_nothing(api: FakeApi) -> None:
    def live(name: str) -> None:
        api.rotate_log(printed(api, name))
        api.end_job(name)

    result = run_to_the_end(api, live)
    assert result.stdout == "first\n" and result.unread is None
    assert not is_kept(api, result)


def test_rotation_before_a_silence_keeps_nothing(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "SILENCE_SECONDS", 0.5)

    def live(name: str) -> None:
        lead = printed(api, name)
        api.rotate_log(lead)
        time.sleep(1.5)
        api.log(lead, "last")
        api.end_job(name)

    result = run_to_the_end(api, live)
    assert result.stdout == "first\nlast\n" and result.unread is None
    assert not is_kept(api, result)


def test_log_that_the_kubelet_cannot_watch_is_read_on(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "PAUSE_AFTER_FAILURE_SECONDS", 0.05)
    api.kubelet_message = b"failed to create fsnotify watcher: too many open files"

    def live(name: str) -> None:
        lead = printed(api, name)
        api.log(lead, "last")
        api.end_job(name)

    result = run_to_the_end(api, live)
    assert result.stdout == "first\nlast\n" and result.unread is None


def test_log_that_the_api_server_refuses_keeps_the_minicluster(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "PAUSE_AFTER_FAILURE_SECONDS", 0.05)
    refuse(api, "GET", "/log", 500, message="no container")

    def live(name: str) -> None:
        api.start_job(name)
        api.end_job(name)

    result = run_to_the_end(api, live)
    assert result.unread is not None and "no container" in result.unread
    assert is_kept(api, result)


def test_log_goes_on_after_a_restart_of_the_kubelet(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kubelet ends the log's stream, and at first it answers 404: it does not know its pods yet."""
    monkeypatch.setattr(logs, "PAUSE_AFTER_FAILURE_SECONDS", 0.05)

    def live(name: str) -> None:
        lead = printed(api, name)
        message = f"the server could not find the requested resource ( pods/log {lead})"
        refuse(api, "GET", "/log", 404, message=message, reason="NotFound", details={"name": lead})
        api.end_log(lead)
        time.sleep(1)
        api.logs[lead].is_over = False
        api.refusals.clear()
        api.log(lead, "last")
        api.end_job(name)

    result = run_to_the_end(api, live)
    assert (result.exit_code, result.stdout, result.unread) == (0, "first\nlast\n", None)


@pytest.mark.parametrize("may_get_pods", [True, False])
def test_pod_that_goes_after_a_restart_of_the_kubelet_keeps_nothing(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, may_get_pods: bool
) -> None:
    """The log was read whole before the kubelet answered 404."""
    monkeypatch.setattr(logs, "PAUSE_AFTER_FAILURE_SECONDS", 0.05)

    def live(name: str) -> None:
        lead = printed(api, name)
        reads = sum("/log" in path for _, path in api.requests)
        refuse(api, "GET", "/log", 404, message=f"the server could not find the requested resource ( pods/log {lead})")
        if not may_get_pods:
            refuse(api, "GET", f"/pods/{lead}", 403, message="no")
        api.end_log(lead)
        until(lambda: sum("/log" in path for _, path in api.requests) > reads)
        time.sleep(0.3)
        api.remove("pods", lead)
        api.end_job(name)

    result = run_to_the_end(api, live)
    assert (result.stdout, result.unread) == ("first\n", None)
    assert not is_kept(api, result)


def test_pod_that_a_dead_node_keeps_does_not_keep_the_run_waiting(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its state says that it runs, and its log cannot be read."""
    monkeypatch.setattr(logs, "PAUSE_AFTER_FAILURE_SECONDS", 0.05)

    def live(name: str) -> None:
        lead = printed(api, name)
        pod = api.get("pods", lead)
        assert pod is not None
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        api.put("pods", pod)
        refuse(api, "GET", "/log", 500, message="no route to host")
        api.end_log(lead)
        api.set_status(name, phase="Failed", exitCode=7, conditions={"JobFinished": "True", "Failed": "True"})

    api.on_create = lambda cluster: in_thread(lambda: live(cluster["metadata"]["name"]))
    result = MiniCluster.run("app:1", ["x"], stream=False, check=False, timeout=20)
    assert (result.exit_code, result.stdout) == (7, "first\n")
    assert result.unread is not None and "no route to host" in result.unread


@pytest.mark.parametrize(
    "error",
    [
        NotAllowed("no role is known", status=403),
        CallFailed("no server is ready", status=503),
        ClientConnectionError("refused"),
    ],
)
def test_log_of_an_ended_job_is_read_when_the_api_server_answers_again(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(logs, "PAUSE_AFTER_FAILURE_SECONDS", 0.02)
    original, is_away, tries = Target.log, threading.Event(), []

    async def log(self: Target, *arguments: Any) -> Any:
        if is_away.is_set():
            tries.append(arguments)
            raise error
        return await original(self, *arguments)

    monkeypatch.setattr(Target, "log", log)

    def live(name: str) -> None:
        lead = printed(api, name)
        is_away.set()
        api.cut()
        api.mend()
        api.log(lead, "last")
        api.end_job(name)
        # Far more than TRIES: such failures do not count.
        until(lambda: len(tries) > 30)
        is_away.clear()

    result = run_to_the_end(api, live)
    assert (result.stdout, result.unread) == ("first\nlast\n", None)


@pytest.mark.parametrize("settling", [60.0, 0.5])
def test_log_is_read_once_the_api_server_reaches_the_kubelet_again(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, settling: float
) -> None:
    """An API server that has just started may have no tunnel to the kubelets yet."""
    monkeypatch.setattr(logs, "PAUSE_AFTER_FAILURE_SECONDS", 0.02)
    monkeypatch.setattr(logs, "SETTLING_SECONDS", settling)

    def live(name: str) -> None:
        lead = printed(api, name)
        api.cut()
        api.log(lead, "last")
        refuse(api, "GET", "/log", 500, message="no agent is available")
        api.end_job(name)
        time.sleep(0.3)
        api.mend()
        time.sleep(2)
        api.refusals.clear()

    result = run_to_the_end(api, live)
    if settling > 2:
        assert (result.stdout, result.unread) == ("first\nlast\n", None)
    else:
        assert result.unread is not None and is_kept(api, result)


@pytest.mark.parametrize("status", [403, 503])
def test_log_is_found_when_the_api_server_answers_again(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """The job ends while the API server lists no pods."""
    monkeypatch.setattr(follow, "PAUSE_SECONDS", 0.02)
    original, is_away, tries = Target.pods_of, threading.Event(), []

    async def pods_of(self: Target, name: str) -> Any:
        if is_away.is_set():
            tries.append(name)
            raise (NotAllowed if status == 403 else CallFailed)("not now", status=status)
        return await original(self, name)

    async def watch_pods_of(self: Target, name: str) -> Any:
        yield Listed([])
        await asyncio.Event().wait()

    monkeypatch.setattr(Target, "pods_of", pods_of)
    monkeypatch.setattr(Target, "watch_pods_of", watch_pods_of)

    def live(name: str) -> None:
        is_away.set()
        api.log(api.start_job(name), "all")
        api.end_job(name)
        until(lambda: len(tries) > 30)
        is_away.clear()

    result = run_to_the_end(api, live)
    assert (result.stdout, result.unread) == ("all\n", None)


def test_log_that_is_not_whole_says_how_long_the_minicluster_stays(
    api: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    def live(cluster: Object) -> None:
        name = cluster["metadata"]["name"]
        api.set_status(name, phase="Running", jobUid="job", timeline={"running": "2026-01-01T00:00:00Z"})
        api.end_job(name)

    api.on_create = lambda cluster: in_thread(lambda: live(cluster))
    MiniCluster.run("app:1", ["x"], spec={"ttlSecondsAfterFinished": 60})
    assert "not deleted until 60 s after its end (`ttlSecondsAfterFinished`)" in capsys.readouterr().err


def test_lead_that_was_never_seen_keeps_the_minicluster(api: FakeApi) -> None:
    def live(name: str) -> None:
        api.set_status(name, phase="Running", jobUid="job", timeline={"running": "2026-01-01T00:00:00Z"})
        api.end_job(name)

    result = run_to_the_end(api, live)
    assert result.unread is not None and is_kept(api, result)


def test_restart_during_a_lost_connection_doubles_no_output(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "PAUSE_AFTER_FAILURE_SECONDS", 0.05)

    def live(name: str) -> None:
        lead = printed(api, name)
        api.cut()
        api.log(lead, "end of the first")
        api.restart_lead(name)
        api.log(lead, "second")
        api.mend()
        time.sleep(0.3)
        api.log(lead, "end of the second")
        api.end_job(name)

    result = run_to_the_end(api, live)
    assert result.stdout == "first\nend of the first\nsecond\nend of the second\n"
    assert result.unread is None and not is_kept(api, result)


def test_next_container_that_falls_silent_keeps_nothing(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """The API server reports the restart after the next container's first line was read."""
    monkeypatch.setattr(logs, "SILENCE_SECONDS", 1.0)

    def live(name: str) -> None:
        lead = printed(api, name)
        reads = sum("/log" in path for _, path in api.requests)
        api.previous_logs[lead] = api.logs[lead]
        api.end_log(lead)
        api.logs[lead] = FakeLog(clock=1)
        api.log(lead, "second")
        until(lambda: sum("/log" in path for _, path in api.requests) > reads)
        api.put_pod(name, 0, {"running": {}}, restarts=1)
        until(lambda: sum("/log" in path for _, path in api.requests) > reads + 1)
        api.end_job(name)

    result = run_to_the_end(api, live)
    assert result.stdout == "first\nsecond\n" and result.unread is None
    assert not is_kept(api, result)


def test_every_restart_is_printed_once(api: FakeApi) -> None:
    def live(name: str) -> None:
        lead = printed(api, name)
        for number in range(3):
            api.restart_lead(name)
            api.log(lead, f"attempt {number}")
            time.sleep(0.6)
        api.end_job(name)

    result = run_to_the_end(api, live)
    assert result.stdout == "first\nattempt 0\nattempt 1\nattempt 2\n" and result.unread is None


# ---- a MiniCluster that its own `cleanup` deletes


def test_end_counts_when_cleanup_deletes_the_minicluster(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    """The deletion itself is the only event that has the end."""

    def live(cluster: Object) -> None:
        name = cluster["metadata"]["name"]
        lead = api.start_job(name)
        api.log(lead, "all")
        until(lambda: any("/log" in path for _, path in api.requests))
        time.sleep(0.3)
        api.end_at_once(name, 7)

    api.on_create = lambda cluster: in_thread(lambda: live(cluster))
    result = MiniCluster.run("app:1", ["x"], spec={"containers": [{}], "size": 1, "cleanup": True}, check=False)
    assert (result.exit_code, result.stdout, result.unread) == (7, "all\n", None)
    assert "not deleted" not in capsys.readouterr().err
    assert not any(method == "PATCH" for method, _ in api.requests)


def test_deletion_that_was_not_seen_is_no_deletion_before_the_end(api: FakeApi) -> None:
    def live(name: str) -> None:
        printed(api, name)
        api.cut()
        api.remove("miniclusters", name)
        api.mend()

    with pytest.raises(Lost, match="how its job ended is unknown"):
        run_to_the_end(api, live)


@pytest.mark.parametrize("status", [403, 409, 503])
def test_clean_up_is_repeated_when_the_failure_may_pass(api: FakeApi, status: int) -> None:
    refuse(api, "PATCH", "miniclusters", status, message="not now")

    def live(name: str) -> None:
        api.start_job(name)
        api.end_job(name)
        until(lambda: any(method == "PATCH" for method, _ in api.requests))
        api.refusals.clear()

    assert not is_kept(api, run_to_the_end(api, live))


@pytest.mark.parametrize("is_cut", [True, False])
def test_clean_up_outlasts_an_api_server_that_is_away(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, is_cut: bool
) -> None:
    """It refuses for a moment when it is back. Without a screen, only the result has the failure."""
    monkeypatch.setattr(target, "TRIES", 2)
    monkeypatch.setattr(run, "CLEANUP_SECONDS", 60.0 if is_cut else 1.0)

    def live(cluster: Object) -> None:
        name = cluster["metadata"]["name"]
        refuse(api, "PATCH", "miniclusters", 503, message="not now")
        api.start_job(name)
        api.end_job(name)
        until(lambda: any(method == "PATCH" for method, _ in api.requests))
        if is_cut:
            api.cut()
            time.sleep(4)
            refuse(api, "PATCH", "miniclusters", 403, message="no role is known")
            requests = len(api.requests)
            api.mend()
            until(lambda: any(method == "PATCH" for method, _ in api.requests[requests:]))
            api.refusals.clear()

    api.on_create = lambda cluster: in_thread(lambda: live(cluster))
    result = asyncio.run(MiniCluster.run_async("app:1", ["x"]))
    assert result.unread is None and is_kept(api, result) is not is_cut
    if is_cut:
        assert result.not_deleted is None
    else:
        assert result.not_deleted is not None and "not now" in result.not_deleted


def test_ctrl_c_ends_a_clean_up_without_an_answer(api: FakeApi) -> None:
    api.silent.add(("PATCH", "miniclusters"))
    api.play("all")

    def press() -> None:
        until(lambda: any(method == "PATCH" for method, _ in api.requests))
        press_ctrl_c()

    in_thread(press)
    with pytest.raises(Stopped, match="already ended") as caught:
        MiniCluster.run("app:1", ["x"])
    result = caught.value.result
    assert result is not None and result.stdout == "all\n" and result.not_deleted is not None


@pytest.mark.parametrize("status", [403, 404])
def test_clean_up_that_fails_leaves_the_result(api: FakeApi, status: int) -> None:
    """404 with this message: the CustomResourceDefinition is gone, and not just this MiniCluster."""
    refuse(api, "PATCH", "miniclusters", status, message="could not find the requested resource")
    api.play()
    result = MiniCluster.run("app:1", ["x"], stream=False)
    assert result.exit_code == 0 and is_kept(api, result)


# ---- refusals (403) of an API server that has just started


def refuse_for(api: FakeApi, seconds: float) -> None:
    """Breaks every connection, and rejects all requests to read MiniClusters, pods and logs for so many seconds."""
    refuse(api, "GET", "/miniclusters", 403, message="no role is known")
    refuse(api, "GET", "/pods", 403, message="no role is known")
    api.cut()
    api.mend()
    time.sleep(seconds)
    api.refusals.clear()


def test_passing_refusal_ends_no_run(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "PAUSE_AFTER_FAILURE_SECONDS", 0.05)

    def live(name: str) -> None:
        lead = printed(api, name)
        refuse_for(api, 1.0)
        api.log(lead, "last")
        api.end_job(name)

    result = run_to_the_end(api, live)
    assert (result.exit_code, result.stdout, result.unread) == (0, "first\nlast\n", None)


def test_passing_refusal_ends_no_run_whose_job_is_silent(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer about its log came before the connection broke."""
    monkeypatch.setattr(logs, "PAUSE_AFTER_FAILURE_SECONDS", 0.05)

    def live(name: str) -> None:
        lead = api.start_job(name)
        until(lambda: any("/log" in path for _, path in api.requests))
        refuse_for(api, 1.0)
        api.log(lead, "last")
        api.end_job(name)

    result = run_to_the_end(api, live)
    assert (result.exit_code, result.stdout, result.unread) == (0, "last\n", None)


@pytest.mark.parametrize("is_refused", [True, False])
def test_start_timeout_without_events_ends_no_job_that_began(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, is_refused: bool
) -> None:
    monkeypatch.setattr(target, "TRIES", 1)

    def live(cluster: Object) -> None:
        name = cluster["metadata"]["name"]
        api.set_status(name, phase="Pending", reason="Unschedulable", message="")
        until(lambda: any("/pods?" in path and "watch" in path for _, path in api.requests))
        api.cut()
        if is_refused:
            for method, part in (("GET", "/miniclusters"), ("GET", "/pods"), ("DELETE", "/miniclusters")):
                refuse(api, method, part, 403, message="no role is known")
            api.mend()
        time.sleep(1.5)
        api.log(api.start_job(name), "ran")
        api.end_job(name)
        api.refusals.clear()
        if not is_refused:
            api.mend()

    api.on_create = lambda cluster: in_thread(lambda: live(cluster))
    assert MiniCluster.run("app:1", ["x"], stream=False, start_timeout=0.8).stdout == "ran\n"


def test_refusal_that_does_not_pass_is_an_error(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "REFUSED_SECONDS", 0.5)

    def live(name: str) -> None:
        printed(api, name)
        refuse_for(api, 20.0)

    with pytest.raises(NotAllowed, match="The job goes on") as caught:
        run_to_the_end(api, live)
    assert caught.value.name and deletions(api) == []


@pytest.mark.parametrize("part", ["/miniclusters", "/log"])
def test_first_refusal_is_an_error_at_once(api: FakeApi, part: str) -> None:
    refuse(api, "GET", part, 403, message="no")
    begin = time.monotonic()
    with pytest.raises(NotAllowed, match="The job goes on"):
        run_to_the_end(api, lambda name: api.start_job(name))
    assert time.monotonic() - begin < 5


# ---- rejected credentials (401)


def reject(api: FakeApi) -> None:
    """Breaks every connection, and rejects the credentials of all requests."""
    api.token = "another"
    api.cut()
    api.mend()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "PAUSE_AFTER_FAILURE_SECONDS", 0.05)
    monkeypatch.setattr(target, "PAUSE_SECONDS", 0.05)


@pytest.mark.parametrize("call", ["finished", "ready", "deleted", "result", "logs"])
def test_expired_credentials_end_what_waits(api: FakeApi, impatient: None, call: str) -> None:
    cluster = running(api)
    api.set_status("mc", phase="Running", conditions={"Ready": "False"})
    before = len(api.requests)

    def live() -> None:
        until(lambda: any("watch=1" in path or "follow=1" in path for _, path in api.requests[before:]))
        reject(api)

    in_thread(live)
    with pytest.raises(CallFailed, match="Log in again") as caught:
        if call == "result":
            cluster.result(timeout=30)
        elif call == "logs":
            list(cluster.logs(follow=True))
        else:
            cluster.wait(call, timeout=30)  # type: ignore[arg-type]
    assert not isinstance(caught.value, NotAllowed)


def test_expired_credentials_end_a_run_not_its_job(api: FakeApi, impatient: None) -> None:
    def live(name: str) -> None:
        printed(api, name)
        reject(api)

    with pytest.raises(CallFailed, match=r"(?s)Log in again.*The job goes on") as caught:
        run_to_the_end(api, live)
    assert caught.value.name and caught.value.status == 401 and deletions(api) == []


def test_credential_plugin_that_goes_on_failing_ends_a_run(api: FakeApi, impatient: None, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    log_in_by_plugin(api, f"token=$(cat {tmp_path}/token) || exit 1")

    def live(name: str) -> None:
        printed(api, name)
        (tmp_path / "token").unlink()
        reject(api)

    with pytest.raises(CallFailed, match=r"(?s)credential plugin.*The job goes on.*kubectl get pods"):
        run_to_the_end(api, live)


def test_passing_rejection_ends_no_run(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "PAUSE_AFTER_FAILURE_SECONDS", 0.5)

    def live(name: str) -> None:
        lead = printed(api, name)
        reject(api)
        time.sleep(1.0)
        api.token = "secret"
        api.log(lead, "last")
        api.end_job(name)

    result = run_to_the_end(api, live)
    assert (result.exit_code, result.stdout, result.unread) == (0, "first\nlast\n", None)


# ---- time limits


def test_timeout_after_the_job_s_end_gives_its_result(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "end_log", lambda pod: None)

    def live(cluster: Object) -> None:
        name = cluster["metadata"]["name"]
        api.log(api.start_job(name), "working")
        until(lambda: any("/log" in path for _, path in api.requests))
        api.end_job(name, 3)

    api.on_create = lambda cluster: in_thread(lambda: live(cluster))
    result = MiniCluster.run("app:1", ["x"], timeout=2, check=False, stream=False)
    assert (result.exit_code, result.stdout) == (3, "working\n")
    assert result.unread is not None and "within 2 s" in result.unread
    assert is_kept(api, result)


def test_time_limit_holds_for_the_first_call(api: FakeApi) -> None:
    running(api)
    api.silent.add(("GET", "miniclusters/mc"))
    for wait in (lambda: MiniCluster(name="mc").wait(timeout=0.3), lambda: MiniCluster(name="mc").result(timeout=0.3)):
        with pytest.raises(TimedOut):
            wait()

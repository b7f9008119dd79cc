"""`MiniCluster.run`, from the request to the result, with a fake API server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from fake_api import FakeApi, Object
from waiting import until

from flux_minicluster import (
    CallFailed,
    Invalid,
    JobFailed,
    Lost,
    MiniCluster,
    NameTaken,
    NotAllowed,
    NotStarted,
    OperatorMissing,
    Queued,
    Result,
    Stopped,
    TimedOut,
    Unschedulable,
    bridge,
    run,
    target,
)
from flux_minicluster.follow import Limits
from flux_minicluster.manifest import Wanted
from flux_minicluster.observed import RUN_ANNOTATION
from flux_minicluster.screen import Silent
from flux_minicluster.target import Access


def in_thread(work: Any) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def names(api: FakeApi) -> list[str]:
    return [name for kind, name in list(api.objects) if kind == "miniclusters"]


def test_run_returns_code_reason_and_output(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.play("a 42", "b  c")
    result = MiniCluster.run("app:1", ["sh", "-c", "echo $HOME; it's"], size=2, tasks=4)
    assert (result.exit_code, result.reason, result.stdout) == (0, "Completed", "a 42\nb  c\n")
    assert capsys.readouterr().out == "a 42\nb  c\n"
    spec = api.bodies[0]["spec"]
    assert (spec["size"], spec["tasks"], spec["logging"]) == (2, 4, {"quiet": True})
    assert spec["containers"] == [{"image": "app:1", "command": r"sh -c 'echo $HOME; it'\''s'"}]
    # The operator deletes it, which needs no permission of the caller.
    assert api.get("miniclusters", result.name)["spec"]["cleanup"] is True  # type: ignore[index]
    assert not any(method == "DELETE" for method, _ in api.requests)


def test_failure_is_an_exception_with_the_job_s_code(api: FakeApi) -> None:
    api.play("no", code=7)
    with pytest.raises(JobFailed) as caught:
        MiniCluster.run("app:1", ["false"], stream=False)
    error = caught.value
    assert (error.exit_code, error.signal, error.reason, error.result.stdout) == (7, None, "NonZeroExitCode", "no\n")
    assert error.remedy == "" and "exit code" in str(error)
    with pytest.raises(JobFailed) as caught:
        api.play(code=127)
        MiniCluster.run("app:1", ["nothing"], stream=False)
    assert (caught.value.remedy or "").startswith("127: the command is not on the image's PATH")
    assert MiniCluster.run("app:1", ["false"], stream=False, check=False).exit_code == 127


@pytest.mark.parametrize("code", [0, 1, 126, 127, 137, 143, 255])
def test_every_exit_code_comes_through(api: FakeApi, code: int) -> None:
    api.play(code=code)
    assert MiniCluster.run("app:1", ["x"], stream=False, check=False).exit_code == code


def test_output_continues_where_the_connection_broke(api: FakeApi) -> None:
    def live(cluster: Object) -> None:
        name = cluster["metadata"]["name"]
        lead = api.start_job(name)
        for number in range(100):
            api.log(lead, f"line {number}")
            if number in (10, 60):
                time.sleep(0.2)
                api.cut()
                time.sleep(0.3)
                api.mend()
        api.end_job(name, 6)

    api.on_create = lambda cluster: in_thread(lambda: live(cluster))
    result = MiniCluster.run("app:1", ["x"], stream=False, check=False)
    assert result.stdout == "".join(f"line {number}\n" for number in range(100))
    assert result.exit_code == 6
    assert len(api.bodies) == 1, "the job was created once"


def test_lost_answer_to_create_makes_no_second_job(api: FakeApi) -> None:
    api.play("once")
    api.lost_answers["POST"] = 1
    result = MiniCluster.run("app:1", ["x"], stream=False)
    assert (result.stdout, names(api)) == ("once\n", [result.name])


@pytest.mark.parametrize("metadata, prefix", [({}, "run-"), ({"generateName": "mine-"}, "mine-")])
def test_generated_name_of_another_run_is_drawn_again(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, metadata: Object, prefix: str
) -> None:
    """The other's annotation has the letters of its name, as older versions of this package wrote it."""
    other: Object = {"name": f"{prefix}abcde", "uid": "other", "annotations": {RUN_ANNOTATION: "abcde"}}
    api.put("miniclusters", {"metadata": other, "spec": {"size": 1}})
    before = api.get("miniclusters", other["name"])
    drawn, letters = iter(["abcde", "fghij"]), run.letters
    monkeypatch.setattr(run, "letters", lambda count=5: next(drawn) if count == 5 else letters(count))
    api.play("mine")
    spec = {"metadata": metadata, "spec": {"size": 1}}
    result = MiniCluster.run("app:1", ["x"], stream=False, spec=spec)
    assert (result.name, result.stdout) == (f"{prefix}fghij", "mine\n")
    assert api.get("miniclusters", other["name"]) == before


def test_name_of_another_run_is_refused(api: FakeApi) -> None:
    api.play()
    MiniCluster.run("app:1", ["x"], name="mine", stream=False, keep=True)
    with pytest.raises(NameTaken, match="the name is taken"):
        MiniCluster.run("app:1", ["x"], name="mine", stream=False)


@pytest.mark.parametrize("is_passing", [True, False])
def test_conflict_at_creation_is_retried_not_reported_as_taken(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, is_passing: bool
) -> None:
    """For example, several creations change the namespace's quota at the same time."""
    monkeypatch.setattr(run, "TRIES", 2)
    refuse(api, "POST", "miniclusters", 409, reason="Conflict", message="the quota has been modified")
    if is_passing:
        threading.Timer(0.5, api.refusals.clear).start()
        cluster = MiniCluster("app:1").create()
        assert names(api) == [cluster.name]
    else:
        with pytest.raises(CallFailed, match=r"cannot create MiniCluster .*: the quota has been modified"):
            MiniCluster("app:1").create()
        assert sum(method == "POST" for method, _ in api.requests) == 2 and not names(api)


def test_keep_leaves_the_minicluster(api: FakeApi) -> None:
    api.play()
    result = MiniCluster.run("app:1", ["x"], stream=False, keep=True)
    assert "cleanup" not in api.get("miniclusters", result.name)["spec"]  # type: ignore[index]


def test_keep_overrides_the_cleanup_of_the_spec(api: FakeApi) -> None:
    api.play()
    spec = {"size": 1, "containers": [{}], "cleanup": True, "cleanupPods": True, "ttlSecondsAfterFinished": 0}
    MiniCluster.run("app:1", ["x"], stream=False, keep=True, spec=spec)
    assert set(api.bodies[0]["spec"]) == {"size", "tasks", "containers", "logging"}


def refuse(api: FakeApi, method: str, part: str, status: int, **answer: Any) -> None:
    api.refusals[(method, part)] = (status, answer)


def test_refused_spec_names_each_field(api: FakeApi) -> None:
    causes = [
        {"field": "spec.size", "message": "must be at least 1"},
        {"field": "spec.tasks", "message": "must not be negative"},
    ]
    refuse(api, "POST", "miniclusters", 422, message="is invalid", details={"causes": causes})
    with pytest.raises(Invalid) as caught:
        MiniCluster.run("app:1", ["x"], size=0, tasks=-1)
    assert caught.value.field == "spec.size" and caught.value.problem == "must be at least 1"
    assert [it.field for it in caught.value.problems] == ["spec.size", "spec.tasks"]


def test_spec_that_the_operator_refuses_is_invalid(api: FakeApi) -> None:
    api.on_create = lambda it: api.set_status(
        it["metadata"]["name"],
        phase="Invalid",
        reason="Invalid",
        message="spec.flux.scheduler.queuePolicy: no such policy",
    )
    with pytest.raises(Invalid) as caught:
        MiniCluster.run("app:1", ["x"])
    assert caught.value.field == "spec.flux.scheduler.queuePolicy"


@pytest.mark.parametrize(
    "may_delete, options, message, spec",
    [
        (True, {}, "mine: deleted", None),
        (False, {}, "mine: suspended", {"suspend": True}),
        # Only its queue could suspend it: the operator deletes it after it has run.
        (False, {"queue": "team"}, "mine may run later: ", {"cleanup": True}),
        (True, {"keep": True}, "mine is kept", {}),
    ],
)
def test_invalid_minicluster_does_not_run_later(
    api: FakeApi,
    capsys: pytest.CaptureFixture[str],
    may_delete: bool,
    options: dict[str, Any],
    message: str,
    spec: Object | None,
) -> None:
    """For example, the installation has no `spec.services`. Once it has, the MiniCluster would run."""
    api.on_create = lambda it: api.set_status("mine", phase="Invalid", reason="Invalid", message="spec.services: none")
    if not may_delete:
        refuse(api, "DELETE", "miniclusters", 403, message="no")
    with pytest.raises(Invalid, match=r"spec\.services") as caught:
        MiniCluster.run("app:1", ["x"], name="mine", **options)
    cluster = api.get("miniclusters", "mine")
    assert (cluster is None) == (spec is None)
    if cluster is not None:
        assert {key: cluster["spec"][key] for key in ("suspend", "cleanup") if key in cluster["spec"]} == spec
    # Where it may run later, the exception says so: `run_async` prints nothing.
    assert message in (caught.value.remedy or capsys.readouterr().err)
    assert bool(caught.value.remedy) == ("later" in message)


def test_cluster_without_the_crd_has_no_operator(api: FakeApi) -> None:
    refuse(api, "POST", "miniclusters", 404, message="the server could not find the requested resource")
    with pytest.raises(OperatorMissing, match="install the operator"):
        MiniCluster.run("app:1", ["x"])


def test_minicluster_that_nobody_processes_is_deleted(api: FakeApi) -> None:
    one = run.Run(Access(), Wanted(image="app:1", command=["x"]), Limits(operator=0.3))
    with pytest.raises(OperatorMissing, match="nothing has processed it"):
        bridge.drive(one.go, Silent())
    assert names(api) == []


def test_operator_is_missing_also_after_a_lost_connection(api: FakeApi) -> None:
    """The watch of the pods reconnects after the MiniCluster's."""

    def lose_connection() -> None:
        until(lambda: any("/pods?" in path and "watch" in path for _, path in api.requests))
        refuse(api, "GET", "/pods", 503, message="not now")
        api.cut()
        api.mend()
        time.sleep(1.2)
        api.refusals.clear()

    in_thread(lose_connection)
    one = run.Run(Access(), Wanted(image="app:1", command=["x"]), Limits(operator=1.0, end=8.0))
    with pytest.raises(OperatorMissing, match="nothing has processed it"):
        bridge.drive(one.go, Silent())


@pytest.mark.parametrize(
    "reason, kind", [("Queued", Queued), ("Unschedulable", Unschedulable), ("ErrImagePull", NotStarted)]
)
def test_job_that_does_not_begin_is_deleted(api: FakeApi, reason: str, kind: type[NotStarted]) -> None:
    api.on_create = lambda it: api.set_status(it["metadata"]["name"], phase="Pending", reason=reason, message="why not")
    with pytest.raises(kind, match="why not") as caught:
        MiniCluster.run("app:1", ["x"], start_timeout=0.3)
    assert type(caught.value) is kind and caught.value.reason == reason and caught.value.remedy
    assert names(api) == []


def test_late_job_that_cannot_be_deleted_is_named(api: FakeApi) -> None:
    """Nothing else tells, since `run_async` prints nothing."""
    api.on_create = lambda it: api.set_status("mine", phase="Pending", reason="Queued", message="full")
    refuse(api, "DELETE", "miniclusters", 403, message="you may not")
    with pytest.raises(Queued) as caught:
        asyncio.run(MiniCluster.run_async("app:1", ["x"], name="mine", start_timeout=0.3))
    assert names(api) == ["mine"]
    remedy = caught.value.remedy or ""
    assert "mine was not deleted, and may run later (cannot delete MiniCluster mine: you may not)" in remedy
    assert "attach('mine').delete()" in remedy and "Kueue" in remedy
    one = run.Run(Access(), Wanted(image="app:1", command=["x"], name="other"), Limits(operator=0.3))
    with pytest.raises(OperatorMissing, match="other was not deleted"):
        bridge.drive(one.go, Silent())


@pytest.mark.parametrize("lost", [1, 2])
def test_start_timeout_counts_when_the_answer_to_its_deletion_is_lost(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    """With as many lost answers as tries, only the watch tells that it was deleted."""
    monkeypatch.setattr(target, "TRIES", 2)
    api.on_create = lambda it: api.set_status(it["metadata"]["name"], phase="Pending", reason="Queued", message="full")
    api.lost_answers["DELETE"] = lost
    if lost > 1:
        # The second attempt is not answered either.
        api.on_delete = lambda _: api.silent.add(("DELETE", "miniclusters"))
        monkeypatch.setattr(target, "CALL_SECONDS", 0.5)
    with pytest.raises(Queued, match="full"):
        MiniCluster.run("app:1", ["x"], start_timeout=0.3)
    assert names(api) == []


@pytest.mark.parametrize("lost", [0, 1])
def test_operator_is_missing_also_after_a_lost_answer(api: FakeApi, lost: int) -> None:
    api.lost_answers["DELETE"] = lost
    one = run.Run(Access(), Wanted(image="app:1", command=["x"]), Limits(operator=0.3))
    with pytest.raises(OperatorMissing):
        bridge.drive(one.go, Silent())
    assert names(api) == []


def test_job_that_begins_at_the_last_moment_is_not_deleted(api: FakeApi) -> None:
    """The deletion names the version that was seen, so a job that has begun since is left alone."""

    def live(cluster: Object) -> None:
        name = cluster["metadata"]["name"]
        api.set_status(name, phase="Pending", reason="Unschedulable", message="")
        api.refusals[("DELETE", "miniclusters")] = (409, {"message": "resourceVersion differs"})
        until(lambda: any(method == "DELETE" for method, _ in api.requests))
        api.log(api.start_job(name), "ran")
        del api.refusals[("DELETE", "miniclusters")]
        time.sleep(1.5)
        api.end_job(name)

    api.on_create = lambda cluster: in_thread(lambda: live(cluster))
    result = MiniCluster.run("app:1", ["x"], stream=False, start_timeout=0.3)
    assert result.stdout == "ran\n"
    assert names(api) == [result.name]


@pytest.mark.parametrize("part", ["/miniclusters", "/pods"])
def test_start_timeout_is_kept_when_no_list_was_answered_before(api: FakeApi, part: str) -> None:
    def live(cluster: Object) -> None:
        refuse(api, "GET", part, 503, message="not now")
        threading.Timer(1.0, api.refusals.clear).start()

    api.on_create = live
    with pytest.raises(NotStarted):
        MiniCluster.run("app:1", ["x"], start_timeout=0.3, timeout=10)
    assert names(api) == []


@pytest.mark.parametrize("is_in_status", [True, False])
def test_job_that_runs_is_not_deleted_when_its_pods_are_not_seen(api: FakeApi, is_in_status: bool) -> None:
    def live(cluster: Object) -> None:
        name = cluster["metadata"]["name"]
        if is_in_status:
            # The lead's pod is gone, and its Job will replace it.
            api.set_status(name, phase="Running", jobUid="job", timeline={"running": "2026-01-01T00:00:00Z"})
            time.sleep(1.0)
        else:
            refuse(api, "GET", "/pods", 503, message="not now")
            api.put_pod(name, 0, {"running": {}})
            api.set_status(name, phase="Starting", jobUid="job")
            time.sleep(1.0)
            api.refusals.clear()
            time.sleep(1.0)
        api.end_job(name)

    api.on_create = lambda cluster: in_thread(lambda: live(cluster))
    assert MiniCluster.run("app:1", ["x"], stream=False, start_timeout=0.3).exit_code == 0


def test_time_limit_leaves_the_job_alone(api: FakeApi) -> None:
    api.on_create = lambda it: api.start_job(it["metadata"]["name"])
    with pytest.raises(TimedOut):
        MiniCluster.run("app:1", ["x"], timeout=0.5)
    (name,) = names(api)
    api.end_job(name, 3)
    assert MiniCluster.attach(name).result(check=False).exit_code == 3


def test_minicluster_that_others_delete_is_lost(api: FakeApi) -> None:
    def live(cluster: Object) -> None:
        api.start_job(cluster["metadata"]["name"])
        time.sleep(0.3)
        api.remove("miniclusters", cluster["metadata"]["name"])

    api.on_create = lambda cluster: in_thread(lambda: live(cluster))
    with pytest.raises(Lost, match="it was deleted before its job had ended"):
        MiniCluster.run("app:1", ["x"])


def test_person_without_rights_creates_nothing(api: FakeApi) -> None:
    refuse(api, "GET", "pods", 403, message='pods is forbidden: User "me" cannot list')
    with pytest.raises(NotAllowed, match=r"docs/tasks/kubectl\.md"):
        MiniCluster.run("app:1", ["x"])
    assert api.bodies == []


@pytest.mark.parametrize(
    "message, remedy",
    [
        ('miniclusters.flux-framework.org is forbidden: User "me" cannot create resource "miniclusters"', target.ROLE),
        ('miniclusters "mc" is forbidden: exceeded quota: few, requested: 1, used: 2, limited: 2', target.QUOTA),
        ("ValidatingAdmissionPolicy 'labels' denied request: a label is missing", ""),
        ('miniclusters "mc" is forbidden: because namespace team is being terminated', ""),
    ],
)
def test_refused_creation_asks_for_a_role_only_if_one_is_missing(api: FakeApi, message: str, remedy: str) -> None:
    refuse(api, "POST", "miniclusters", 403, message=message)
    with pytest.raises(NotAllowed) as caught:
        MiniCluster.run("app:1", ["x"])
    assert message in caught.value.message and caught.value.remedy == remedy
    refuse(api, "PATCH", "miniclusters", 403, message=message)
    api.put("miniclusters", {"metadata": {"name": "mc", "uid": "u", "namespace": "team"}, "spec": {"size": 1}})
    with pytest.raises(NotAllowed) as caught:
        MiniCluster.attach("mc").scale(2)
    assert caught.value.remedy == remedy


def stop_program(code: int = 143, answer: int = 0) -> Any:
    """The agent's program `stop`: the job ends with `code`, and the program with `answer`."""

    async def program(api: FakeApi, words: list[str], socket: web.WebSocketResponse) -> int:
        lead = api.requests[-1][1].split("/pods/")[1].split("/")[0]
        await asyncio.to_thread(api.log, lead, "last words")
        await asyncio.to_thread(api.end_job, lead.rsplit("-", 2)[0], code)
        return answer

    return program


def press_ctrl_c(times: int = 1) -> None:
    for _ in range(times):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.3)


# 137: the container ended before the program `stop` did.
@pytest.mark.parametrize("answer", [0, 137])
def test_ctrl_c_shuts_the_job_down_and_prints_its_last_words(
    api: FakeApi, capsys: pytest.CaptureFixture[str], answer: int
) -> None:
    api.programs["stop"] = stop_program(answer=answer)

    def live(cluster: Object) -> None:
        api.log(api.start_job(cluster["metadata"]["name"]), "working")
        time.sleep(0.3)
        press_ctrl_c()

    api.on_create = lambda cluster: in_thread(lambda: live(cluster))
    with pytest.raises(Stopped) as caught:
        MiniCluster.run("app:1", ["x"])
    result = caught.value.result
    assert isinstance(result, Result) and (result.exit_code, result.stdout) == (143, "working\nlast words\n")
    assert "press Ctrl-C again" in capsys.readouterr().err
    assert not any(method == "DELETE" for method, _ in api.requests)


def test_second_ctrl_c_deletes_without_waiting(api: FakeApi) -> None:
    async def never(api: FakeApi, words: list[str], socket: web.WebSocketResponse) -> int:
        await asyncio.sleep(60)
        return 0

    api.programs["stop"] = never

    def live(cluster: Object) -> None:
        api.start_job(cluster["metadata"]["name"])
        time.sleep(0.3)
        press_ctrl_c(2)

    api.on_create = lambda cluster: in_thread(lambda: live(cluster))
    with pytest.raises(Stopped, match="deleted"):
        MiniCluster.run("app:1", ["x"])
    assert names(api) == []


def test_ctrl_c_during_the_creation_leaves_nothing_behind(api: FakeApi) -> None:
    def slow(cluster: Object) -> None:
        press_ctrl_c()
        time.sleep(0.3)

    api.on_create = slow
    with pytest.raises(Stopped):
        MiniCluster.run("app:1", ["x"])
    assert names(api) == []


def test_ctrl_c_during_the_clean_up_is_not_ignored(api: FakeApi) -> None:
    api.play("all")
    api.on_patch = lambda *_: press_ctrl_c()
    with pytest.raises(Stopped, match="already ended") as caught:
        MiniCluster.run("app:1", ["x"])
    assert caught.value.result is not None and caught.value.result.stdout == "all\n"
    assert api.get("miniclusters", caught.value.result.name)["spec"]["cleanup"] is True  # type: ignore[index]


def test_hundred_runs_at_once_have_true_codes(api: FakeApi) -> None:
    def live(cluster: Object) -> None:
        name = cluster["metadata"]["name"]
        number = int(name.split("-")[1])
        api.log(api.start_job(name), f"I am {number}")
        api.end_job(name, number)

    api.on_create = lambda cluster: in_thread(lambda: live(cluster))

    async def all_at_once() -> list[Result]:
        runs = (MiniCluster.run_async("app:1", ["x"], name=f"job-{n}", check=False) for n in range(100))
        return await asyncio.gather(*runs)

    results = asyncio.run(all_at_once())
    assert [it.exit_code for it in results] == list(range(100))
    assert [it.stdout for it in results] == [f"I am {n}\n" for n in range(100)]


async def cancel_a_run() -> None:
    task = asyncio.ensure_future(MiniCluster.run_async("app:1", ["x"], name="mine"))
    await asyncio.sleep(0.7)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_cancelled_run_shuts_its_job_down(api: FakeApi) -> None:
    api.programs["stop"] = stop_program()
    api.on_create = lambda it: api.start_job(it["metadata"]["name"])

    asyncio.run(cancel_a_run())
    cluster = api.get("miniclusters", "mine")
    assert cluster is not None and cluster["spec"]["cleanup"] is True
    assert cluster["status"]["phase"] == "Failed"


@pytest.mark.parametrize("status", [403, 400])
def test_cancelled_run_whose_job_cannot_be_shut_down_is_deleted(api: FakeApi, status: int) -> None:
    refuse(api, "GET", "/exec", status, message="no")
    api.on_create = lambda it: api.start_job(it["metadata"]["name"])

    asyncio.run(cancel_a_run())
    assert names(api) == []


def test_run_works_where_a_loop_runs_already(api: FakeApi) -> None:
    """As in a notebook."""
    api.play("x")

    async def cell() -> Result:
        return MiniCluster.run("app:1", ["x"], stream=False)

    assert asyncio.run(cell()).stdout == "x\n"


def test_run_without_a_command_is_refused(api: FakeApi) -> None:
    with pytest.raises(ValueError, match="`with` block"):
        MiniCluster.run("app:1")
    with pytest.raises(TypeError, match="list of words"):
        MiniCluster.run("app:1", "echo hello")
    assert api.bodies == []


def log_in_by_plugin(api: FakeApi, script: str) -> None:
    """A credential plugin whose script defines the variable `token`."""
    status = '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"%s"}}'
    plugin = api.kubeconfig.with_name("plugin")
    plugin.write_text(f"#!/bin/sh\n{script}\nprintf '{status}' \"$token\"\n")
    plugin.chmod(0o755)
    config = json.loads(api.kubeconfig.read_text())
    config["users"][0]["user"] = {
        "exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin), "interactiveMode": "Never"}
    }
    api.kubeconfig.write_text(json.dumps(config))


@pytest.mark.parametrize("fails_once", [False, True])
def test_token_that_has_expired_is_renewed(api: FakeApi, tmp_path: Path, fails_once: bool) -> None:
    """A credential plugin gives another one when the API server does not accept the first any more."""
    token, outage = tmp_path / "token", tmp_path / "outage"
    token.write_text("secret")
    log_in_by_plugin(api, f"token=$(cat {token}); rm {outage} 2>/dev/null && exit 1")

    def live(cluster: Object) -> None:
        name = cluster["metadata"]["name"]
        lead = api.start_job(name)
        token.write_text("another")
        if fails_once:
            outage.touch()
        api.token = "another"
        api.cut()
        api.mend()
        api.log(lead, "x")
        api.end_job(name)

    api.on_create = lambda cluster: in_thread(lambda: live(cluster))
    assert MiniCluster.run("app:1", ["x"], stream=False).stdout == "x\n"
    assert not outage.exists()


def test_failed_credential_plugin_is_named(api: FakeApi) -> None:
    log_in_by_plugin(api, "exit 1")
    with pytest.raises(CallFailed, match="credential plugin"):
        MiniCluster.run("app:1", ["x"])
    assert api.requests == []

"""The executor and its helper, with a fake API server and a fake Flux. The helper runs on this machine."""

from __future__ import annotations

import asyncio
import base64
import concurrent.futures
import importlib
import importlib.util
import io
import itertools
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import cloudpickle
import pytest
from aiohttp import web
from fake_api import FakeApi
from instances import FAKE_FLUX, FakeInstance, Instance
from waiting import until

from flux_minicluster import (
    CallFailed,
    FluxExecutor,
    Lost,
    MiniCluster,
    MiniClusterError,
    NotAllowed,
    NotStarted,
    Queued,
    TaskFailed,
    TaskResult,
    TimedOut,
    Unschedulable,
    call,
    program,
)
from flux_minicluster import executor as executor_module
from flux_minicluster.executor import BOOTSTRAP, NO_BROKER, TaskFuture, _Task
from flux_minicluster.observed import AGENT
from flux_minicluster.program import STDOUT
from flux_minicluster.target import FAILURES, Access, Target

# The pod has no module of this name.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def executor(cluster: MiniCluster) -> Iterator[FluxExecutor]:
    with cluster.executor(python=sys.executable) as executor:
        yield executor


def execs(api: FakeApi) -> int:
    return sum("/exec" in path for _, path in api.requests)


def test_command_gives_code_output_and_id(executor: FluxExecutor) -> None:
    result = executor.submit(["sh", "-c", "echo out; echo err >&2; exit 3"]).result(30)
    assert result == TaskResult(3, "out\n", "err\n", result.id) and result.id is not None
    with pytest.raises(TaskFailed, match="exit code 3"):
        result.check()


def test_dask_submits_all_tasks_that_are_ready(executor: FluxExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask asks an executor how many tasks it takes at once. Without an answer, it takes this machine's CPUs."""
    dask: Any = importlib.import_module("dask")  # it has no types
    count = 20 + (os.cpu_count() or 1)
    all_run = threading.Barrier(count, timeout=60)

    def number_once_all_run(number: int) -> int:
        all_run.wait()
        return number

    with concurrent.futures.ThreadPoolExecutor(count) as threads:
        monkeypatch.setattr(executor, "submit", threads.submit)
        numbers = [dask.delayed(number_once_all_run)(number) for number in range(count)]
        assert dask.compute(*numbers, scheduler=executor) == tuple(range(count))


def test_words_reach_the_program_as_they_are(executor: FluxExecutor) -> None:
    words = ["a b", "$HOME", "'", '"', "é\n", "{a}", ""]
    assert executor.submit(["printf", "%s|", *words]).result(30).stdout == "".join(f"{it}|" for it in words)


def test_signal_is_128_and_its_number(executor: FluxExecutor) -> None:
    assert executor.submit(["sh", "-c", "kill -9 $$"]).result(30).exit_code == 137


def test_signals_on_windows_are_those_of_the_pod(
    executor: FluxExecutor, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There, Python knows neither SIGKILL nor the wait status of Linux."""
    connect = api.programs["connect"]
    killed: list[list[str]] = []

    async def kill_once(api: FakeApi, words: list[str], socket: web.WebSocketResponse) -> int:
        if not killed:
            killed.append(words)
            return 137
        return await connect(api, words, socket)

    api.programs["connect"] = kill_once
    monkeypatch.delattr(signal, "SIGKILL")
    monkeypatch.setattr(os, "waitstatus_to_exitcode", lambda status: status >> 8)
    assert executor.submit(["sh", "-c", "kill -9 $$"]).result(30).exit_code == 137
    assert killed


def test_bytes_that_are_no_text_are_kept_as_far_as_text_can(executor: FluxExecutor) -> None:
    assert executor.submit(["printf", r"a\377b"]).result(30).stdout == "a\N{REPLACEMENT CHARACTER}b"


def test_output_keeps_every_sign(executor: FluxExecutor) -> None:
    text = "a\u2028b\x85c\rd\x0be\n"
    assert executor.submit(["printf", "%s", text]).result(30).stdout == text


def test_environment_and_folder_are_those_asked_for(executor: FluxExecutor, tmp_path: Path) -> None:
    command = ["sh", "-c", "echo $A ${PYTHONPATH-none} $PWD"]
    result = executor.submit(command, environment={"A": "1"}, cwd=str(tmp_path)).result(30)
    assert result.stdout == f"1 none {tmp_path}\n"


@dataclass
class Number:
    """A number of another package, as numpy's are."""

    value: int

    def __index__(self) -> int:
        return self.value


def test_paths_and_numbers_of_other_packages_are_accepted(executor: FluxExecutor, tmp_path: Path) -> None:
    """A real instance has one node, and perhaps no more than two cores."""
    two, one = Number(2), Number(1)
    result = executor.submit([Path("/bin/pwd")], tasks=two, nodes=one, cores_per_task=one, cwd=tmp_path)
    assert set(result.result(30).stdout.splitlines()) == {str(tmp_path)}


@pytest.mark.parametrize(
    "arguments",
    [
        {"tasks": object()},
        {"nodes": "1"},
        {"cores_per_task": 1.5},
        {"environment": {"A": Number(2)}},
        {"environment": {b"A": "1"}},
        {"environment": {"A": 1}},
        {"environment": {"A": None}},
        {"environment": {1: "A"}},
        {"cwd": b"/"},
        {"time_limit": timedelta(minutes=1)},
        {"name": b"x"},
        {"name": 1},
    ],
)
def test_argument_that_cannot_be_sent_is_the_caller_s_error(executor: FluxExecutor, arguments: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        executor.submit(["true"], **arguments)
    with pytest.raises(TypeError):
        executor.submit([b"true"])  # type: ignore[list-item]
    assert executor.submit(["true"]).result(30).exit_code == 0


def test_failure_to_write_fails_the_tasks(executor: FluxExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise AssertionError("a fault")

    monkeypatch.setattr(executor, "_resume_request", fail)
    with pytest.raises(AssertionError, match="a fault"):
        executor.submit(["true"]).result(30)


def test_job_that_fits_nowhere_says_why(executor: FluxExecutor) -> None:
    with pytest.raises(TaskFailed, match="unsatisfiable"):
        executor.submit(["true"], tasks=2000).result(30)


def test_job_that_flux_refuses_says_why(executor: FluxExecutor) -> None:
    with pytest.raises(TaskFailed, match="node count"):
        executor.submit(["true"], nodes=4).result(30)


def test_many_tasks_use_one_connection(executor: FluxExecutor, api: FakeApi) -> None:
    futures = [executor.submit(["sh", "-c", f"exit {number}"]) for number in range(50)]
    assert [future.result(60).exit_code for future in futures] == list(range(50))
    assert execs(api) == 1


def double(number: int, *, plus: int = 0) -> int:
    print("said on the way")
    return 2 * number + plus


def test_functions_return_and_raise_as_here(executor: FluxExecutor) -> None:
    assert executor.submit(double, 4, plus=1).result(30) == 9
    assert list(executor.map(lambda number: number + 1, range(3))) == [1, 2, 3]
    with pytest.raises(ZeroDivisionError):
        executor.submit(lambda: 1 / 0).result(30)
    with pytest.raises(TypeError, match="cannot send back"):
        executor.submit(lambda: (it for it in "ab")).result(30)
    with pytest.raises(TaskFailed, match="exit code 5"):
        executor.submit(lambda: os._exit(5)).result(30)


@dataclass
class Point:
    x: int


class Unlucky(Exception):
    pass


class Picky(Exception):
    """One that pickle cannot make again."""

    def __init__(self, x: int, y: int) -> None:
        super().__init__(f"{x} and {y}")


def throw(error: Callable[[], BaseException]) -> None:
    raise error()


def test_objects_of_a_script_s_classes_come_back(executor: FluxExecutor) -> None:
    assert executor.submit(lambda: Point(3)).result(30) == Point(3)
    with pytest.raises(Unlucky, match="a reason") as caught:
        executor.submit(throw, lambda: Unlucky("a reason")).result(30)
    assert "in throw" in str(caught.value.__cause__), "the traceback in the job"


def test_exception_that_cannot_come_back_is_named(executor: FluxExecutor) -> None:
    with pytest.raises(TypeError, match="Unlucky: <generator"):
        executor.submit(throw, lambda: Unlucky(it for it in "ab")).result(30)
    with pytest.raises(TaskFailed, match="Picky: 1 and 2"):
        executor.submit(throw, lambda: Picky(1, 2)).result(30)


def test_function_runs_in_an_image_without_cloudpickle(executor: FluxExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "RUNNER", "import sys; sys.modules['cloudpickle'] = None\n" + call.RUNNER)
    assert executor.submit(math.sqrt, 4).result(30) == 2
    with pytest.raises(ModuleNotFoundError):
        executor.submit(lambda: 1).result(30)


def test_modules_in_the_working_directory_replace_no_others(
    cluster: MiniCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user may have written them. Functions may be of a module there."""
    folder = tmp_path / "shared"
    folder.mkdir()
    for name in ("base64", "cloudpickle", "flux", "json", "pickle", "signal", "traceback"):
        (folder / f"{name}.py").write_text("raise SystemExit(3)\n")
    (folder / "mymodule.py").write_text("def triple(number):\n    return 3 * number\n")
    spec = importlib.util.spec_from_file_location("mymodule", folder / "mymodule.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "mymodule", module)
    monkeypatch.chdir(folder)
    with cluster.executor(python=sys.executable) as executor:
        assert executor.submit(["pwd"]).result(30).stdout == f"{folder}\n"
        assert executor.submit(double, 4).result(30) == 8
        assert executor.submit(module.triple, 4).result(30) == 12


def test_tasks_may_be_submitted_while_a_connection_is_opened() -> None:
    executor = FluxExecutor(Access(), "mc")
    is_over = threading.Event()

    def submit() -> None:
        for number in itertools.count():
            with executor._lock:
                executor._tasks[str(number)] = _Task(TaskFuture(executor, str(number)), b"", is_function=False)
                executor._tasks.pop(str(number - 100), None)
            if is_over.is_set():
                return

    thread = threading.Thread(target=submit)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        for _ in range(300):
            executor._resume_request()
            executor._on_ready([], asyncio.Queue())
    finally:
        is_over.set()
        thread.join()
        sys.setswitchinterval(interval)


def test_futures_work_with_the_tools_of_concurrent_futures(executor: FluxExecutor) -> None:
    futures = {executor.submit(["sleep", "0.1"]), executor.submit(["true"])}
    assert {it.result().exit_code for it in concurrent.futures.as_completed(futures, 30)} == {0}
    done, rest = concurrent.futures.wait(futures, 30)
    assert (done, rest) == (futures, set())


def test_cancel_ends_the_job(executor: FluxExecutor, instance: Instance) -> None:
    future = executor.submit(["sleep", "60"])
    until(lambda: instance.running() == 1)
    assert future.cancel()
    until(lambda: instance.running() == 0)
    assert future.cancelled() and executor.submit(["true"]).result(30).exit_code == 0


def test_helper_ends_with_its_caller(instance: Instance) -> None:
    text = resources.files("flux_minicluster").joinpath("helper.py").read_bytes()
    resume = json.dumps({"op": "resume", "known": {}, "unknown": []}).encode()
    with subprocess.Popen(
        [*instance.flux_python(), "-c", BOOTSTRAP, "session"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as helper:
        assert helper.stdin is not None and helper.stdout is not None
        helper.stdin.write(b"%8d" % len(text) + text + resume + b"\n")
        helper.stdin.flush()
        assert [json.loads(helper.stdout.readline())["ready"] for _ in range(2)] == [False, True]
        helper.stdin.close()
        assert helper.wait(20) == 0


def test_lost_connection_neither_ends_nor_repeats_a_job(
    executor: FluxExecutor, api: FakeApi, instance: Instance, tmp_path: Path
) -> None:
    log = tmp_path / "log"

    def has_submitted(count: int) -> bool:
        return bool(api.sockets) and instance.jobs() >= count

    futures = [
        executor.submit(["sh", "-c", f"sleep 0.4; echo {number} >>{log}; exit {number}"]) for number in range(20)
    ]
    for count in (5, 10, 20):
        until(partial(has_submitted, count))
        api.break_sockets()
    assert [future.result(60).exit_code for future in futures] == list(range(20))
    assert sorted(map(int, log.read_text().split())) == list(range(20)), "each has run once"
    assert instance.jobs() == 20
    assert execs(api) > 1


def test_job_whose_id_was_lost_is_found_again(executor: FluxExecutor, api: FakeApi, instance: Instance) -> None:
    """The connection breaks after the helper has read a request, before its answer arrives."""
    executor.submit(["true"]).result(30)
    original = web.WebSocketResponse.send_bytes
    broken: list[bytes] = []

    async def lose(self: web.WebSocketResponse, data: bytes, *rest: Any) -> None:
        if data[:1] == b"\x01" and b'"id": ' in data and not broken:
            broken.append(data)
            assert self._req is not None and self._req.transport is not None
            self._req.transport.abort()
            return
        await original(self, data, *rest)

    web.WebSocketResponse.send_bytes = lose  # type: ignore[method-assign, assignment]
    try:
        assert executor.submit(["sh", "-c", "exit 4"]).result(60).exit_code == 4
    finally:
        web.WebSocketResponse.send_bytes = original  # type: ignore[method-assign]
    assert broken and instance.jobs() == 2


def slow_down(instance: Instance, seconds: float) -> Path:
    """Flux takes this long to make a job. Returns a file with a byte for each request that it has got."""
    if not isinstance(instance, FakeInstance):
        pytest.skip("Flux itself cannot be slowed down")
    (instance.folder / "delay").write_text(str(seconds))
    requests = instance.folder / "requests"
    requests.touch()
    return requests


def test_submissions_without_an_answer_are_not_repeated(
    executor: FluxExecutor, api: FakeApi, instance: Instance
) -> None:
    """Flux makes the jobs when the helper that has submitted them is gone."""
    requests = slow_down(instance, 5)
    futures = [executor.submit(["sh", "-c", f"exit {number}"]) for number in range(50)]
    until(lambda: requests.stat().st_size == 50)
    api.break_sockets()
    assert [future.result(60).exit_code for future in futures] == list(range(50))
    assert instance.jobs() == 50


def test_submission_that_came_to_nothing_is_repeated(
    executor: FluxExecutor, api: FakeApi, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = executor_module.HELPER.replace(b"SETTLE_SECONDS = 30.0", b"SETTLE_SECONDS = 1.0")
    monkeypatch.setattr(executor_module, "HELPER", text)
    requests = slow_down(instance, 60)
    future = executor.submit(["sh", "-c", "exit 4"])
    until(lambda: requests.stat().st_size == 1)
    slow_down(instance, 0)
    api.break_sockets()
    assert future.result(30).exit_code == 4


def test_cancelled_task_that_was_lost_is_not_submitted_again(
    executor: FluxExecutor, api: FakeApi, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection breaks before the helper has read a request, and the task is cancelled."""
    executor.submit(["true"]).result(30)
    monkeypatch.setattr(aiohttp.ClientWebSocketResponse, "send_bytes", lambda *_: asyncio.Event().wait())
    future = executor.submit(["true"])
    until(lambda: executor._tasks[future._token].is_sent)
    future.cancel()
    monkeypatch.undo()
    api.break_sockets()
    assert executor.submit(["sh", "-c", "exit 4"]).result(30).exit_code == 4
    assert instance.jobs() == 2


def test_passing_refusal_loses_no_task(executor: FluxExecutor, api: FakeApi, instance: Instance) -> None:
    future = executor.submit(["sh", "-c", "sleep 1.5; exit 4"])
    until(lambda: instance.running() == 1)
    api.refusals[("GET", "/exec")] = (403, {"message": "no role is known"})
    before = execs(api)
    api.break_sockets()
    until(lambda: execs(api) > before)
    api.refusals.clear()
    assert future.result(60).exit_code == 4 and instance.jobs() == 1


def test_first_refusal_fails_the_tasks_at_once(executor: FluxExecutor, api: FakeApi) -> None:
    api.refusals[("GET", "/exec")] = (403, {"message": "no"})
    with pytest.raises(NotAllowed, match="pods/exec"):
        executor.submit(["true"]).result(10)


def test_expired_credentials_fail_the_tasks(
    executor: FluxExecutor, api: FakeApi, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_module, "RECONNECT_SECONDS", 0.05)
    future = executor.submit(["sleep", "60"])
    until(lambda: instance.running() == 1)
    api.token = "another"
    api.break_sockets()
    with pytest.raises(CallFailed, match="Log in again"):
        future.result(10)


def test_lasting_failure_is_logged_once(
    executor: FluxExecutor, api: FakeApi, instance: Instance, caplog: pytest.LogCaptureFixture
) -> None:
    future = executor.submit(["sh", "-c", "sleep 1.5; exit 4"])
    until(lambda: instance.running() == 1)
    for status in (500, 502):
        api.refusals[("GET", "/exec")] = (status, {"message": "error dialing backend"})
        before = execs(api)
        api.break_sockets()
        until(lambda count=before: execs(api) > count + 1)  # type: ignore[misc]
    api.refusals.clear()
    assert future.result(60).exit_code == 4
    messages = [it.getMessage() for it in caplog.records if it.name == "flux_minicluster"]
    assert all(it.startswith("mc: ") and it.endswith("; retrying") for it in messages)
    assert sum("lost" in it for it in messages) == 1
    assert [sum(code in it for it in messages) for code in ("500", "502")] == [1, 1]


def test_task_runs_through_the_proxy_of_the_kubeconfig(executor: FluxExecutor, api: FakeApi) -> None:
    config = json.loads(api.kubeconfig.read_text())
    cluster = config["clusters"][0]["cluster"]
    cluster.update({"server": "http://api.invalid", "proxy-url": cluster["server"]})
    api.kubeconfig.write_text(json.dumps(config))
    assert executor.submit(["sh", "-c", "exit 4"]).result(30).exit_code == 4


@pytest.mark.parametrize("is_in_kubeconfig", [True, False])
def test_exec_uses_the_proxy_and_tls_server_name(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, is_in_kubeconfig: bool
) -> None:
    requests: list[bytes] = []

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        requests.append(await reader.read(4096))
        writer.close()

    async def execute() -> None:
        proxy = await asyncio.start_server(tunnel, "127.0.0.1", 0)
        url = f"http://user:word@127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
        config = json.loads(api.kubeconfig.read_text())
        cluster = {"server": "https://api.invalid:6443", "tls-server-name": "inner.invalid"}
        if is_in_kubeconfig:
            cluster["proxy-url"] = url
        else:
            monkeypatch.setenv("HTTPS_PROXY", url)
        config["clusters"][0]["cluster"] = cluster
        api.kubeconfig.write_text(json.dumps(config))
        pod = {"metadata": {"name": "x"}, "spec": {"containers": [{"name": "mc", "command": [AGENT, "run"]}]}}
        async with Target.open(Access()) as target:
            with pytest.raises(FAILURES):
                async with target.execute(pod, ["true"], stdin=False):
                    pass
        proxy.close()

    asyncio.run(execute())
    connect, client_hello = requests
    assert connect.startswith(b"CONNECT api.invalid:6443 ") and b"inner.invalid" in client_hello
    assert b"Proxy-Authorization: Basic dXNlcjp3b3Jk\r\n" in connect


def test_every_request_impersonates_whom_the_kubeconfig_names(
    cluster: MiniCluster, executor: FluxExecutor, api: FakeApi
) -> None:
    config = json.loads(api.kubeconfig.read_text())
    config["users"][0]["user"] |= {
        "as": "system:serviceaccount:team:ci",
        "as-uid": 1001,
        "as-groups": ["one", "two"],
        "as-user-extra": {"example.org/Scope%": ["a", "b"]},
    }
    api.kubeconfig.write_text(json.dumps(config))
    api.headers.clear()
    api.requests.clear()
    assert executor.submit(["true"]).result(30).exit_code == 0
    cluster.scale(2)
    assert list(cluster.logs()) == []
    with pytest.raises(TimedOut):
        cluster.wait(timeout=0.5)
    kinds = ("PATCH .*/miniclusters/", "GET .*/log", "GET .*watch=1", "GET .*/exec")
    assert all(any(re.match(kind, " ".join(request)) for request in api.requests) for kind in kinds), api.requests
    for headers in api.headers:
        assert sorted(it for it in headers.items() if it[0].startswith("Impersonate-")) == [
            ("Impersonate-Extra-example.org%2FScope%25", "a"),
            ("Impersonate-Extra-example.org%2FScope%25", "b"),
            ("Impersonate-Group", "one"),
            ("Impersonate-Group", "two"),
            ("Impersonate-Uid", "1001"),
            ("Impersonate-User", "system:serviceaccount:team:ci"),
        ]


def test_api_server_on_this_machine_needs_no_proxy(
    executor: FluxExecutor, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.invalid:1")
    monkeypatch.setenv("NO_PROXY", "")
    assert executor.submit(["sh", "-c", "exit 4"]).result(30).exit_code == 4


def test_restarted_instance_loses_its_tasks(executor: FluxExecutor, api: FakeApi, instance: Instance) -> None:
    future = executor.submit(["sleep", "60"])
    until(lambda: instance.running() == 1)
    api.put_pod("mc", 0, {"running": {}}, uid="another")
    api.break_sockets()
    with pytest.raises(Lost, match="restarted"):
        future.result(30)


def test_deleted_minicluster_loses_its_tasks(executor: FluxExecutor, api: FakeApi, instance: Instance) -> None:
    future = executor.submit(["sleep", "60"])
    until(lambda: instance.running() == 1)
    api.remove("miniclusters", "mc")
    api.remove("pods", "mc-0-x")
    api.break_sockets()
    with pytest.raises(Lost, match="deleted"):
        future.result(30)


def test_task_does_not_run_in_a_namesake(executor: FluxExecutor, api: FakeApi, instance: Instance) -> None:
    """The MiniCluster was deleted, and perhaps somebody else has created another one of its name."""
    namesake = api.get("miniclusters", "mc")
    assert namesake is not None
    namesake["metadata"]["uid"] = "other"
    api.put("miniclusters", namesake)
    with pytest.raises(Lost, match="another MiniCluster has its name"):
        executor.submit(["true"]).result(30)
    assert instance.jobs() == 0


def test_task_can_be_awaited(cluster: MiniCluster) -> None:
    async def use() -> TaskResult:
        result: TaskResult = await asyncio.wrap_future(cluster.submit(["sh", "-c", "exit 4"]))
        return result

    assert asyncio.run(use()).exit_code == 4


def test_pod_without_flux_python_says_so(executor: FluxExecutor, api: FakeApi) -> None:
    async def connect(api: FakeApi, words: list[str], socket: web.WebSocketResponse) -> int:
        await socket.send_bytes(b"\x02flux-agent: failed to start flux: not found on the PATH\n")
        return 127

    api.programs["connect"] = connect
    with pytest.raises(MiniClusterError, match="not found on the PATH"):
        executor.submit(["true"]).result(30)


def test_helper_without_a_broker_ends_with_75(instance: Instance) -> None:
    instance.close()
    text = resources.files("flux_minicluster").joinpath("helper.py").read_bytes()
    command = [*instance.flux_python(), "-c", BOOTSTRAP, "session"]
    helper = subprocess.run(command, input=b"%8d" % len(text) + text, capture_output=True)
    assert (helper.returncode, helper.stdout) == (NO_BROKER, b"") and b"no broker answers" in helper.stderr


def test_task_waits_for_the_broker(executor: FluxExecutor, api: FakeApi) -> None:
    connect, calls = api.programs["connect"], []

    async def late(api: FakeApi, words: list[str], socket: web.WebSocketResponse) -> int:
        calls.append(words)
        return NO_BROKER if len(calls) < 3 else await connect(api, words, socket)

    api.programs["connect"] = late
    assert executor.submit(["sh", "-c", "exit 4"]).result(30).exit_code == 4


@pytest.mark.parametrize("instance", ["starting"], indirect=True)
def test_task_waits_until_the_instance_accepts_jobs(executor: FluxExecutor, api: FakeApi, instance: Instance) -> None:
    """The broker answers before rc1 has loaded the modules for jobs, which may take minutes with an archive."""
    future = executor.submit(["sh", "-c", "exit 4"])
    until(lambda: execs(api) == 2 or future.done())
    instance.finish_start()
    assert future.result(30).exit_code == 4


async def never(api: FakeApi, words: list[str], socket: web.WebSocketResponse) -> int:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


def test_task_of_a_silent_pod_gives_up_after_start_timeout(
    cluster: MiniCluster, api: FakeApi, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(executor_module, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(executor_module, "RECONNECT_SECONDS", 0.05)
    api.programs["connect"] = never
    with cluster.executor(start_timeout=1) as executor, pytest.raises(NotStarted, match="not up after 1 s"):
        executor.submit(["true"]).result(30)
    messages = [it.getMessage() for it in caplog.records if it.name == "flux_minicluster"]
    silent = "the lead's agent did not answer within 0.2 s; is a volume of the pod stuck?"
    assert [it for it in messages if "stuck" in it] == [f"mc: {silent}; retrying"]


def test_task_whose_pod_was_silent_runs(executor: FluxExecutor, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = api.programs["connect"]
    api.programs["connect"] = never
    future = executor.submit(["sh", "-c", "exit 4"])
    monkeypatch.setattr(executor_module, "ANSWER_SECONDS", 0.2)
    until(lambda: execs(api) > 1)
    monkeypatch.setattr(executor_module, "ANSWER_SECONDS", 20.0)
    api.programs["connect"] = connect
    assert future.result(30).exit_code == 4


def test_slow_search_for_lost_jobs_is_no_silence(
    executor: FluxExecutor, api: FakeApi, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new helper waits for jobs of submissions without an answer."""
    requests = slow_down(instance, 6)
    future = executor.submit(["sh", "-c", "exit 4"])
    until(lambda: requests.stat().st_size == 1)
    monkeypatch.setattr(executor_module, "ANSWER_SECONDS", 3.0)
    api.break_sockets()
    assert future.result(30).exit_code == 4
    assert (execs(api), instance.jobs()) == (2, 1)


def test_task_whose_instance_does_not_start_says_why(
    executor: FluxExecutor, api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    """While an image cannot be pulled, the kubelet alternates between two reasons."""
    api.put_pod("mc", 0, {"waiting": {}})
    future = executor.submit(["sh", "-c", "exit 4"])
    messages = ["ErrImagePull: no such image", "ImagePullBackOff: back-off"]
    for message in messages * 2:
        api.set_status("mc", phase="Starting", reason="PodsFailing", message=message)
        before = len(api.requests)
        until(lambda count=before: len(api.requests) > count + 8)  # type: ignore[misc]
    api.start_job("mc")
    assert future.result(30).exit_code == 4
    logged = [it.getMessage() for it in caplog.records if it.name == "flux_minicluster"]
    state = "mc: its lead does not run (the MiniCluster is Starting, PodsFailing: {}); retrying"
    assert [it for it in logged if "PodsFailing" in it] == [state.format(it) for it in messages]


@pytest.mark.parametrize(
    "reason, kind", [("PodsFailing", NotStarted), ("Unschedulable", Unschedulable), ("Queued", Queued)]
)
def test_task_gives_up_after_start_timeout(
    cluster: MiniCluster, api: FakeApi, reason: str, kind: type[NotStarted]
) -> None:
    api.put_pod("mc", 0, {"waiting": {}})
    api.set_status("mc", phase="Starting", reason=reason, message="no such image")
    with cluster.executor(start_timeout=1) as executor:
        future = executor.submit(["true"])
        with pytest.raises(kind, match=r"not up after 1 s .*: no such image") as caught:
            future.result(30)
        assert caught.value.reason == reason
        assert api.get("miniclusters", "mc") is not None
        api.start_job("mc")
        assert executor.submit(["true"]).result(30).exit_code == 0


def test_start_timeout_does_not_hold_once_the_instance_is_up(
    cluster: MiniCluster, api: FakeApi, instance: Instance
) -> None:
    with cluster.executor(start_timeout=0.1) as executor:
        future = executor.submit(["sh", "-c", "sleep 1; exit 4"])
        until(lambda: instance.running() == 1)
        api.break_sockets()
        assert future.result(30).exit_code == 4


def test_instance_that_ends_before_its_tasks_loses_them(executor: FluxExecutor, api: FakeApi) -> None:
    async def connect(api: FakeApi, words: list[str], socket: web.WebSocketResponse) -> int:
        return NO_BROKER

    api.programs["connect"] = connect
    future = executor.submit(["true"])
    until(lambda: execs(api) > 1)
    api.end_job("mc")
    with pytest.raises(Lost, match="has ended before its tasks"):
        future.result(30)


def test_callback_that_would_wait_for_itself_fails(cluster: MiniCluster, executor: FluxExecutor) -> None:
    waits: list[Callable[[], Any]] = [
        cluster.status,
        cluster.result,
        lambda: list(cluster.logs()),
        lambda: MiniCluster.run("app:1", ["x"]),
        lambda: executor.submit(["true"]).result(20),
        lambda: executor.submit(["true"]).exception(20),
        executor.shutdown,
    ]
    caught: list[str] = []

    def call_all(future: TaskFuture) -> None:
        assert future.result(0).exit_code == 0
        for wait in waits:
            try:
                wait()
            except RuntimeError as error:
                caught.append(str(error))

    executor.submit(["true"]).add_done_callback(call_all)  # type: ignore[arg-type]
    until(lambda: len(caught) == len(waits), 60)
    assert all("from a callback" in it for it in caught)


def test_callback_that_exits_harms_no_other_task(executor: FluxExecutor) -> None:
    """`sys.exit` would end the thread of the package's loop, and every later call would wait for ever."""

    def leave(future: Any) -> None:
        sys.exit(1)

    future = executor.submit(["true"])
    future.add_done_callback(leave)
    assert future.result(30).exit_code == 0
    assert executor.submit(["sh", "-c", "exit 4"]).result(30).exit_code == 4


def test_shutdown_waits_and_accepts_no_more(cluster: MiniCluster, api: FakeApi) -> None:
    executor = cluster.executor()
    future = executor.submit(["sleep", "0.3"])
    executor.shutdown()
    assert future.done()
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(["true"])


def run_script(*lines: str) -> None:
    head = ["import multiprocessing, os", "from flux_minicluster import MiniCluster", "mc = MiniCluster.attach('mc')"]
    subprocess.run([sys.executable, "-c", "\n".join([*head, *lines])], timeout=30, check=True)


@pytest.mark.parametrize("executor", ["mc", "mc.executor()"])
def test_tasks_end_before_the_program_does(cluster: MiniCluster, instance: Instance, executor: str) -> None:
    run_script(f"executor = {executor}", "for _ in range(20): executor.submit(['sleep', '0.2'])")
    assert instance.jobs() == 20 and instance.running() == 0


def test_cancelled_tasks_end_before_the_program_does(cluster: MiniCluster, instance: Instance) -> None:
    run_script(
        "tasks = [mc.submit(['sleep', '60'])]",
        "mc.submit(['true']).result(20)",
        "tasks += [mc.submit(['sleep', '60']) for _ in range(4)]",
        "for task in tasks: task.cancel()",
    )
    assert instance.running() == 0


def test_program_that_deletes_the_minicluster_does_not_wait(cluster: MiniCluster) -> None:
    run_script("mc.submit(['sleep', '60'])", "mc.submit(['true']).result(20)", "mc.delete()")


def test_forked_process_does_not_wait_for_its_parent_s_tasks(cluster: MiniCluster) -> None:
    fork = "child = multiprocessing.get_context('fork').Process(target=print)"
    run_script("mc.submit(['sleep', '60'])", fork, "child.start()", "child.join(10)", "os._exit(child.exitcode)")


def test_forked_process_uses_an_executor_of_its_parent(cluster: MiniCluster, instance: Instance) -> None:
    run_script(
        "submit = lambda code: mc.submit(['sh', '-c', f'exit {code}']).result(20).exit_code",
        "assert submit(3) == 3",
        "child = multiprocessing.get_context('fork').Process(target=lambda: os._exit(submit(4)))",
        "child.start()",
        "child.join(20)",
        "assert (child.exitcode, submit(5)) == (4, 5)",
    )
    assert instance.jobs() == 3


def test_end_of_the_program_accepts_no_more(cluster: MiniCluster) -> None:
    """A task that is not awaited would be lost without a word."""
    run_script(
        "import sys, threading, time",
        "def submit_later():",
        "    threading.main_thread().join()",
        "    time.sleep(0.5)",
        "    try: executor.submit(['true'])",
        "    except RuntimeError: os._exit(0)",
        "    os._exit(1)",
        "executor = mc.executor()",
        "threading.Thread(target=submit_later).start()",
    )


def test_shutdown_returns_where_all_was_cancelled_before_the_connection(cluster: MiniCluster) -> None:
    executor = cluster.executor()
    futures = [executor.submit(["sleep", "60"]) for _ in range(3)]
    executor.shutdown(cancel_futures=True)
    assert all(future.cancelled() for future in futures)


# Far more processor time than linear code needs for the sizes below, and far less than quadratic code.
MOST_SECONDS = 6.0


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The helper as a module of this process, with the fake Flux."""
    FakeInstance(tmp_path)
    monkeypatch.setenv("FAKE_FLUX", str(tmp_path))
    monkeypatch.syspath_prepend(str(FAKE_FLUX))
    before = set(sys.modules)
    yield importlib.import_module("flux_minicluster.helper")
    for name in set(sys.modules) - before:
        del sys.modules[name]


def long_line() -> bytes:
    return json.dumps({"op": "submit", "token": "t", "data": "x" * (48 << 20)}).encode() + b"\n"


def test_output_of_many_events_takes_linear_time(helper: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flux's shell writes an event for each line."""
    said: list[Any] = []
    monkeypatch.setattr(helper, "say", said.append)
    line = "x" * 99 + "\n"
    event = json.dumps({"name": "data", "context": {"stream": "stdout", "rank": "0", "data": line}})
    begin = time.process_time()
    helper.Helper.on_output(None, SimpleNamespace(get=lambda: {"guest.output": f"{event}\n" * 60_000}), "t", {})
    assert time.process_time() - begin < MOST_SECONDS
    assert base64.b64decode(said[0]["done"]["stdout"]).decode() == line * 60_000


def test_helper_reads_a_long_request_in_linear_time(helper: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[Any] = []
    text = io.BytesIO(long_line() + b'{"op": "submit", "token": "second"}\n')
    reader = helper.Helper("session")
    monkeypatch.setattr(helper, "os", SimpleNamespace(read=lambda _, size: text.read(size)))
    monkeypatch.setattr(reader, "on_submit", lambda request: requests.append(request["token"]))
    begin = time.process_time()
    while len(requests) < 2:
        reader.on_input()
    assert time.process_time() - begin < MOST_SECONDS
    assert requests == ["t", "second"]


@pytest.mark.parametrize("size, count", [(0, 64), (1 << 20, 3)])
def test_helper_submits_no_more_than_fits_the_window(
    helper: Any, monkeypatch: pytest.MonkeyPatch, size: int, count: int
) -> None:
    answers: list[Callable[[], None]] = []

    def submit(handle: Any, jobspec: str, **options: Any) -> Any:
        future = SimpleNamespace(get_id=lambda: 1)
        return SimpleNamespace(then=lambda callback, token: answers.append(lambda: callback(future, token)))

    monkeypatch.setattr(sys.modules["flux.job"], "submit_async", submit)
    monkeypatch.setattr(helper, "say", lambda answer: None)
    monkeypatch.setattr(helper.Helper, "wait", lambda *_: None)
    job = executor_module._job(["true"])
    job["files"] = {"call": base64.b64encode(bytes(size)).decode()}
    it = helper.Helper("session")
    it.take_over()
    it.read_notes()
    for number in range(100):
        it.on_submit({"token": f"t-{number}", "job": job})
    assert len(answers) == count
    for number in range(100):
        assert len(answers) == min(count + number, 100)
        answers[number]()


def test_executor_reads_a_long_answer_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = []

    async def messages(connection: Any) -> AsyncIterator[tuple[int, bytes]]:
        text = io.BytesIO(long_line() + b'{"token": "second"}\n')
        while data := text.read(32 << 10):
            yield STDOUT, data

    monkeypatch.setattr(program, "messages", messages)
    executor = FluxExecutor(Access(), "mc")
    monkeypatch.setattr(executor, "_on_answer", lambda answer: answers.append(answer["token"]))
    begin = time.process_time()
    with pytest.raises(CallFailed, match="was lost"):
        asyncio.run(executor._read(None, asyncio.Queue()))  # type: ignore[arg-type]
    assert time.process_time() - begin < MOST_SECONDS
    assert answers == ["t", "second"]


def test_submit_of_a_minicluster_uses_one_connection(cluster: MiniCluster, api: FakeApi) -> None:
    assert [cluster.submit(["true"]).result(30).exit_code for _ in range(3)] == [0, 0, 0]
    assert execs(api) == 1

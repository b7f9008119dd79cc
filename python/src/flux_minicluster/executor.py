"""An executor whose tasks are Flux jobs of a running instance, over one connection to its lead."""

from __future__ import annotations

import asyncio
import base64
import concurrent.futures
import concurrent.futures.thread
import contextlib
import json
import logging
import operator
import os
import sys
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, SupportsIndex

import aiohttp

from . import bridge, call, observed, program
from .errors import CallFailed, Lost, MiniClusterError, NotFound, not_started
from .observed import Start
from .program import STATUS, STDERR, STDIN, STDOUT
from .target import FAILURES, NOT_CREATED, Access, Refusals, Target, words
from .text import printable

# Reads the helper's text from standard input, after its length, and runs it. The text is no argument of the command,
# since proxies may limit the length of the URL, which has the arguments. With `-c`, Python looks for modules in the
# working directory first, where other users may have files.
BOOTSTRAP = """\
import os, sys
sys.path[:] = [path for path in sys.path if path not in ("", os.getcwd())]
def read(count):
    data = b""
    while len(data) < count:
        part = os.read(0, count - len(data))
        if not part:
            sys.exit(0)
        data += part
    return data
exec(compile(read(int(read(8))), "flux-minicluster", "exec"))
"""
HELPER = resources.files(__package__).joinpath("helper.py").read_bytes()
# The helper's exit code if no broker answers, or if it does not accept jobs yet.
NO_BROKER = 75
# The exit code of a program that SIGKILL has ended. The module `signal` has no SIGKILL on Windows.
KILLED = 128 + 9
# Most bytes of standard input in one message: as many as kubectl sends.
CHUNK = 32 * 1024
RECONNECT_SECONDS = 1.0
# Longest time from the start of the helper to its first answer. In a pod whose volume is stuck, it may never come.
ANSWER_SECONDS = 60.0

_executors: weakref.WeakSet[FluxExecutor] = weakref.WeakSet()
# The executors whose tasks the end of this program waits for.
_connected: set[FluxExecutor] = set()
_is_exiting = False


def _finish_at_exit() -> None:
    """Waits until all tasks have ended, as the executors of the standard library do. Ctrl-C ends the wait."""
    global _is_exiting
    _is_exiting = True
    for executor in list(_connected):
        if executor._pending():
            with contextlib.suppress(Exception):
                executor.shutdown()


# Not `atexit`, which runs after concurrent.futures has ended its threads: the loop needs them to look up addresses.
# `threading` calls these functions in reverse order, so this one before that of concurrent.futures.thread (imported).
threading._register_atexit(_finish_at_exit)  # type: ignore[attr-defined]


def _after_fork() -> None:
    """A forked process has neither the connections nor the tasks of its parent."""
    _connected.clear()
    for executor in _executors:
        executor._reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@dataclass(frozen=True)
class TaskResult:
    """How a command ended, and what it printed."""

    exit_code: int
    """128 + n for signal n."""
    stdout: str
    stderr: str
    id: int | None
    """The job's id in Flux."""

    def check(self) -> TaskResult:
        """Raises `TaskFailed` if the exit code is not 0."""
        if self.exit_code != 0:
            message = f"the command ended with exit code {self.exit_code}"
            raise TaskFailed(message, exit_code=self.exit_code, stderr=self.stderr, id=self.id)
        return self


class TaskFailed(MiniClusterError):
    """A task has given no result, or a checked command failed."""

    default_reason = "TaskFailed"

    def __init__(self, message: str, *, exit_code: int | None, stderr: str, id: int | None) -> None:
        self.exit_code = exit_code
        self.stderr = stderr
        self.id = id
        super().__init__(message if not stderr else f"{message}; its standard error ends with: {stderr[-1000:]}")


class TaskFuture(concurrent.futures.Future[Any]):
    """The future of a task. `cancel` cancels its Flux job, whether or not it runs."""

    def __init__(self, executor: FluxExecutor, token: str) -> None:
        super().__init__()
        self._executor = executor
        self._token = token

    def result(self, timeout: float | None = None) -> Any:
        if not self.done():
            bridge.forbid_waiting()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not self.done():
            bridge.forbid_waiting()
        return super().exception(timeout)

    def cancel(self) -> bool:
        if self.cancelled():
            return True
        if not super().cancel():
            return False
        self.set_running_or_notify_cancel()
        self._executor._cancel(self._token)
        return True


@dataclass
class _Task:
    future: TaskFuture
    line: bytes
    """The request, as the helper reads it."""
    is_function: bool
    id: int | None = None
    is_sent: bool = False
    """Whether it was written to a connection, so that it may have been submitted."""


class FluxExecutor(concurrent.futures.Executor):
    """Runs commands and Python functions as Flux jobs of a MiniCluster, once it is up.

    A lost connection neither ends nor repeats a job: it is opened again, and the jobs are found by their tasks' tokens,
    which they carry as an attribute. If the instance is gone or was restarted, what had not ended raises `Lost`.

    Args:
        name: Name of the MiniCluster.
        uid: Its uid: the tasks run in no other MiniCluster of its name. None: in any.
        python: Python of the pod's image that runs functions. None: `python3.N` as this one. It should be the same
            version: a function is sent as this version's code.
        cores_per_task, gpus_per_task, environment: Of functions. Commands have their own.
        start_timeout: Seconds from the first task until the instance is up. Then the tasks fail with `Queued`,
            `Unschedulable` or `NotStarted`, and the MiniCluster is left as it is.
    """

    # No limit: Flux queues the tasks. Dask reads this attribute, and without it submits as many tasks at once as this
    # machine has CPUs.
    _max_workers = sys.maxsize

    def __init__(
        self,
        access: Access,
        name: str,
        *,
        uid: str | None = None,
        python: str | None = None,
        cores_per_task: int = 1,
        gpus_per_task: int = 0,
        environment: Mapping[str, str] | None = None,
        start_timeout: float | None = None,
    ) -> None:
        if not name:
            raise ValueError(NOT_CREATED)
        self._access = access
        self._name = name
        self._uid = uid
        self._start_timeout = start_timeout
        self._python = python or call.python()
        self._function_options: dict[str, Any] = {
            "cores_per_task": cores_per_task,
            "gpus_per_task": gpus_per_task,
            "environment": dict(environment or {}),
        }
        self._is_shut_down = False
        self._reset()
        _executors.add(self)

    def _reset(self) -> None:
        """Begins a new session. Two processes with one session would end each other's helpers."""
        self._session = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._tasks: dict[str, _Task] = {}
        self._count = 0
        self._serving: concurrent.futures.Future[None] | None = None
        # Only used in the loop's thread.
        self._start: Start | None = None
        self._outbox: asyncio.Queue[bytes | None] | None = None
        """The lines to send; None: there is no connection."""
        self._refusals = Refusals()
        self._has_answered = False
        """Whether the helper of this connection has answered."""
        self._has_connected = False
        self._outages: set[str] = set()
        """Why there is no connection, as it was logged."""

    # ---- what callers use

    def submit(
        self, fn: Callable[..., Any] | Sequence[str | os.PathLike[str]], /, *args: Any, **kwargs: Any
    ) -> TaskFuture:
        """Submits a command (a list of words), or a function with its arguments, as one Flux job.

        The future of a command has a `TaskResult`, whatever its exit code; that of a function what it returns. A
        command takes these arguments: `tasks`, `nodes`, `cores_per_task`, `gpus_per_task`, `exclusive`, `environment`,
        `cwd`, `time_limit` (in seconds) and `name`.
        """
        if callable(fn):
            job = _job([self._python, "-c", call.RUNNER], **self._function_options)
            job["name"] = getattr(fn, "__name__", "function")
            job["files"] = {call.FILE: call.pack(fn, args, kwargs)}
        elif isinstance(fn, str) or not fn or args:
            raise TypeError("submit: a function, or a command as a list of words, is needed")
        else:
            job = _job(fn, **kwargs)
        with self._lock:
            if self._is_shut_down or _is_exiting:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._count += 1
            token = f"{self._session}-{self._count}"
            future = TaskFuture(self, token)
            # Arguments that JSON cannot encode are the caller's error.
            line = _line({"op": "submit", "token": token, "job": job})
            self._tasks[token] = _Task(future, line, is_function=callable(fn))
            if self._serving is None or self._serving.done():
                self._serving = asyncio.run_coroutine_threadsafe(self._serve(), bridge.loop())
                _connected.add(self)
        bridge.loop().call_soon_threadsafe(self._send_task, token)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accepts no more tasks; what was submitted goes on. Closes the connection when all has ended."""
        with self._lock:
            self._is_shut_down = True
            futures = [task.future for task in self._tasks.values()]
        if cancel_futures:
            for future in futures:
                future.cancel()
        bridge.loop().call_soon_threadsafe(self._send, None)
        serving = self._serving
        if wait and serving is not None and not serving.done():
            bridge.forbid_waiting()
            serving.result()

    def _abandon(self) -> None:
        """As `shutdown`, without a wait at exit: the tasks end with the MiniCluster, which is being deleted."""
        self.shutdown(wait=False)
        _connected.discard(self)

    def _cancel(self, token: str) -> None:
        def cancel() -> None:
            task = self._tasks.get(token)
            if task is not None and task.id is not None:
                self._send_cancel(task.id)
            elif task is not None and not task.is_sent:
                with self._lock:
                    del self._tasks[token]
                if self._is_idle():
                    self._send(None)

        bridge.loop().call_soon_threadsafe(cancel)

    # ---- in the loop's thread

    def _send(self, line: bytes | None) -> None:
        """None: lets the writer look whether it may close the connection."""
        if self._outbox is not None:
            self._outbox.put_nowait(line)

    def _send_cancel(self, id: int) -> None:
        self._send(_line({"op": "cancel", "id": id}))

    def _send_task(self, token: str) -> None:
        """Sends the task, if there is a connection; else the next one sends all that were not sent."""
        task = self._tasks.get(token)
        if task is not None and not task.is_sent and self._outbox is not None:
            task.is_sent = True
            self._send(task.line)

    def _pending(self) -> dict[str, _Task]:
        """A copy: `submit` adds tasks in other threads."""
        with self._lock:
            return dict(self._tasks)

    def _is_idle(self) -> bool:
        with self._lock:
            return self._is_shut_down and not self._tasks

    async def _serve(self) -> None:
        """Keeps a connection until the executor is shut down and its last task has ended."""
        begin = time.monotonic()
        try:
            async with Target.open(self._access) as target:
                while not self._is_idle():
                    try:
                        await self._connect(target)
                    except (NotFound, Lost, _HelperFailed):
                        raise
                    except FAILURES as error:
                        if self._refusals.is_final(error):
                            raise
                        # The jobs go on meanwhile.
                        status = await self._check(target)
                        self._check_time(time.monotonic() - begin, status or {"message": words(error)})
                        self._warn(words(error))
                        await asyncio.sleep(RECONNECT_SECONDS)
            _connected.discard(self)
        except BaseException as error:
            self._fail_all(error)
            if not isinstance(error, MiniClusterError):
                raise

    def _warn(self, why: str) -> None:
        """Logs each cause of an outage once: for an image that cannot be pulled, the kubelet alternates between two."""
        if why not in self._outages:
            self._outages.add(why)
            logging.getLogger(__package__).warning("%s: %s; retrying", self._name, printable(why))

    def _check_time(self, seconds: float, status: Mapping[str, Any]) -> None:
        """Raises `NotStarted` if the instance has not been up within `start_timeout`."""
        if self._start_timeout is not None and not self._has_connected and seconds >= self._start_timeout:
            raise not_started(f"the instance is not up after {self._start_timeout:g} s", status, self._name)

    async def _check(self, target: Target) -> dict[str, Any]:
        """Raises `Lost` if the instance is gone for good; else returns the status, as far as it is known."""
        try:
            status = (await target.cluster(self._name)).get("status") or {}
        except NotFound as error:
            raise Lost("it was deleted before its tasks had ended", name=self._name, remedy="") from error
        except FAILURES:
            return {}
        if observed.is_finished(status):
            raise Lost("its instance has ended before its tasks", name=self._name, reason=status.get("reason"))
        return dict(status)

    async def _connect(self, target: Target) -> None:
        lead = await program.running_lead(target, self._name, self._uid)
        start = observed.started(lead)
        if self._start is not None and start != self._start and any(task.is_sent for task in self._pending().values()):
            raise Lost("the instance was restarted, which ended its jobs", name=self._name, remedy="")
        self._start = start
        command = [observed.AGENT, "connect", "--", "flux", "python", "-c", BOOTSTRAP, self._session]
        self._has_answered = False
        async with target.execute(lead, command, stdin=True) as connection:
            outbox: asyncio.Queue[bytes | None] = asyncio.Queue()
            writer = asyncio.ensure_future(self._write(connection, outbox))
            reader = asyncio.ensure_future(self._read(connection, outbox))
            try:
                both = [writer, reader]
                done, _ = await asyncio.wait(both, timeout=ANSWER_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if not done and not self._has_answered:
                    raise program.SilentAgent.after(ANSWER_SECONDS)
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                if writer.done() and not isinstance(writer.exception(), FAILURES):
                    writer.result()
                # A fault of the writer was raised above. If only the connection has broken, the reader may know why.
                await reader
            finally:
                self._outbox = None
                writer.cancel()
                reader.cancel()
                await asyncio.gather(writer, reader, return_exceptions=True)

    async def _write(self, connection: aiohttp.ClientWebSocketResponse, outbox: asyncio.Queue[bytes | None]) -> None:
        data = f"{len(HELPER):08}".encode() + HELPER + _line(self._resume_request())
        while True:
            for offset in range(0, len(data), CHUNK):
                await connection.send_bytes(bytes([STDIN]) + data[offset : offset + CHUNK])
            lines = [await outbox.get()]
            while not outbox.empty():
                lines.append(outbox.get_nowait())
            data = b"".join(line for line in lines if line is not None)
            if self._is_idle():
                await connection.close()
                return

    def _resume_request(self) -> dict[str, Any]:
        """The first request of a connection. "unknown": tasks that were sent, but whose job's id has not come back."""
        tasks = self._pending()
        known = {token: task.id for token, task in tasks.items() if task.id is not None}
        unknown = [token for token, task in tasks.items() if task.id is None and task.is_sent]
        return {"op": "resume", "known": known, "unknown": unknown}

    async def _read(self, connection: aiohttp.ClientWebSocketResponse, outbox: asyncio.Queue[bytes | None]) -> None:
        parts: list[bytes] = []
        """The beginning of an answer whose end has not come yet."""
        errors, is_ready = b"", False
        async for channel, data in program.messages(connection):
            if channel == STDERR:
                errors = (errors + data)[-4000:]
            elif channel == STATUS:
                code = program.exit_code(data)
                # KILLED: the helper of a later connection has ended this one, or the container has ended. Both are no
                # failures of the helper, so the connection is opened again.
                if not is_ready and code != KILLED:
                    text = errors.decode(errors="replace").strip()
                    if code == NO_BROKER:
                        raise CallFailed(text)
                    raise _HelperFailed(f"cannot run `flux python` in the lead (exit code {code}): {text}")
            elif channel == STDOUT:
                self._has_answered = True
                rest, *beginnings = data.split(b"\n")
                parts.append(rest)
                for beginning in beginnings:
                    answer = json.loads(b"".join(parts))
                    parts = [beginning]
                    if answer.get("ready") is False:
                        continue
                    if answer.get("ready"):
                        is_ready = True
                        self._refusals.note_success()
                        self._has_connected = True
                        self._outages.clear()
                        self._on_ready(answer["absent"], outbox)
                    else:
                        self._on_answer(answer)
        if not self._is_idle():
            raise CallFailed("the connection to the instance was lost")

    def _on_ready(self, absent: list[str], outbox: asyncio.Queue[bytes | None]) -> None:
        """`absent`: tokens of sent tasks without a job. They are sent again, or forgotten if they were cancelled."""
        for token in absent:
            task = self._tasks.get(token)
            if task is not None and task.future.cancelled():
                with self._lock:
                    del self._tasks[token]
            elif task is not None:
                task.is_sent = False
        self._outbox = outbox
        for token, task in self._pending().items():
            self._send_task(token)
            if task.future.cancelled() and task.id is not None:
                self._send_cancel(task.id)
        if self._is_idle():
            self._send(None)

    def _on_answer(self, answer: dict[str, Any]) -> None:
        task = self._tasks.get(answer["token"])
        if task is None:
            return
        if "id" in answer:
            task.id = answer["id"]
            if task.future.cancelled():
                self._send_cancel(task.id)
            return
        with self._lock:
            del self._tasks[answer["token"]]
        with _contained():
            _settle(task, answer["done"])
        if self._is_idle():
            self._send(None)

    def _fail_all(self, error: BaseException) -> None:
        with self._lock:
            tasks, self._tasks = self._tasks, {}
            # The next task opens another connection.
            self._serving = None
            _connected.discard(self)
        for task in tasks.values():
            with _contained():
                task.future.set_exception(error)


@contextlib.contextmanager
def _contained() -> Iterator[None]:
    """Wraps the settling of a future. Its callbacks run here, in the loop's thread, and must not end the loop."""
    try:
        yield
    except concurrent.futures.InvalidStateError:
        # It was cancelled meanwhile.
        pass
    except Exception:
        # Not from a callback: `concurrent.futures` catches and logs those.
        raise
    except BaseException:
        # From a callback, such as SystemExit: it would end the loop.
        logging.getLogger(__package__).exception("exception calling callback")


class _HelperFailed(MiniClusterError):
    default_reason = "HelperFailed"


def _settle(task: _Task, done: dict[str, Any]) -> None:
    """Gives the future its result or exception."""
    if task.future.cancelled():
        return
    stdout, stderr = base64.b64decode(done["stdout"]), base64.b64decode(done["stderr"]).decode(errors="replace")
    status = done["status"]
    code = None if status is None else _exit_code(status)
    if code is None:
        message = f"the job did not run: {done['exception']}"
        task.future.set_exception(TaskFailed(message, exit_code=None, stderr=stderr, id=task.id))
    elif not task.is_function:
        task.future.set_result(TaskResult(code, stdout.decode(errors="replace"), stderr, task.id))
    elif code != 0 or not stdout:
        message = f"the function's process ended with exit code {code}"
        task.future.set_exception(TaskFailed(message, exit_code=code, stderr=stderr, id=task.id))
    else:
        try:
            is_returned, value = call.unpack(stdout)
        except BaseException as error:
            message = f"cannot read what the function returned or raised: {error!r}"
            failure = TaskFailed(message, exit_code=code, stderr=stderr, id=task.id)
            failure.__cause__ = error
            task.future.set_exception(failure)
            return
        if is_returned:
            task.future.set_result(value)
        else:
            # The job's standard error has the function's traceback.
            value.__cause__ = TaskFailed("the function raised it", exit_code=code, stderr=stderr, id=task.id)
            task.future.set_exception(value)


def _exit_code(status: int) -> int:
    """The exit code in a wait status of Linux. Python's own functions decode the status of the caller's system."""
    signal = status & 0x7F
    return 128 + signal if signal else status >> 8


def _line(request: dict[str, Any]) -> bytes:
    return json.dumps(request).encode() + b"\n"


def _job(
    command: Sequence[str | os.PathLike[str]],
    *,
    tasks: SupportsIndex = 1,
    nodes: SupportsIndex | None = None,
    cores_per_task: SupportsIndex = 1,
    gpus_per_task: SupportsIndex | None = None,
    exclusive: bool = False,
    environment: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    time_limit: float | None = None,
    name: str | None = None,
) -> dict[str, Any]:
    variables = dict(environment or {})
    # Flux takes other values without an error. A number in the environment becomes "(null)".
    for key, value in variables.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"environment: {key!r}: a text is needed, not {value!r}")
    if name is not None and not isinstance(name, str):
        raise TypeError(f"name: a text is needed, not {name!r}")
    return {
        "command": [os.fspath(word) for word in command],
        "tasks": operator.index(tasks),
        "nodes": None if nodes is None else operator.index(nodes),
        "cores_per_task": operator.index(cores_per_task),
        "gpus_per_task": 0 if gpus_per_task is None else operator.index(gpus_per_task),
        "exclusive": bool(exclusive),
        "environment": variables,
        "cwd": None if cwd is None else os.fspath(cwd),
        "time_limit": None if time_limit is None else float(time_limit),
        "name": name,
        "files": {},
    }

"""The MiniCluster: from a notebook or a script to a result."""

from __future__ import annotations

import asyncio
import contextlib
import operator
import os
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, SupportsIndex, TypeVar, get_args

from . import bridge, logs, manifest, models, observed, report, run, stop
from .errors import CallFailed, JobFailed, NotFound, TimedOut
from .executor import FluxExecutor, TaskFuture
from .follow import Ending, Follower, Limits
from .manifest import Spec, Wanted
from .observed import QUEUE_LABEL
from .report import Report, Usage
from .result import Result
from .screen import Screen, Silent, choose
from .stop import Way
from .target import NOT_CREATED, Access, Disconnected, Listed, Target

State = Literal["finished", "ready", "deleted"]
T = TypeVar("T")
# Longest part of a line that `logs` holds back until the line is complete. (A progress bar may end its lines with `\r`
# alone.)
LINE_MAX = 64 * 1024


class MiniCluster:
    """A Flux instance in Kubernetes.

    Nothing is created until `create()`, `run()` or a `with` block. Every method that waits has an asynchronous form,
    whose name ends in `_async`; the methods without it work in scripts and in notebooks.

    Args:
        image: Image of the program.
        command: The program and its arguments; passed as they are, without a shell. None: the instance stays up, and
            `submit()` and `executor()` run jobs in it.
        size: Number of pods, each a broker. None: 1, or that of the spec.
        tasks: Total number of tasks. None: one per pod, or that of the spec (in a file, the default is 1).
        name: Name of the MiniCluster. None: `run-` and five random letters, or the file's.
        environment: Environment variables of the program.
        queue: Queue of Kueue to wait in.
        labels: Labels of the MiniCluster.
        verbose: Also print the agent's and Flux's own lines. The spec's own `logging` takes precedence over this.
        spec: All other settings (resources, volumes, ...): a `models.MiniClusterSpec`, or a dictionary with the API's
            spelling. The other arguments override it.
        namespace: Namespace. None: the context's.
        context: Context of the kubeconfig. None: the current one.
        kubeconfig: The kubeconfig. None: `$KUBECONFIG`, else `~/.kube/config`, else the pod's own account.
    """

    def __init__(
        self,
        image: str | None = None,
        command: Sequence[str] | None = None,
        *,
        size: SupportsIndex | None = None,
        tasks: SupportsIndex | None = None,
        name: str | None = None,
        environment: Mapping[str, str] | None = None,
        queue: str | None = None,
        labels: Mapping[str, str] | None = None,
        verbose: bool = False,
        spec: Spec | None = None,
        namespace: str | None = None,
        context: str | None = None,
        kubeconfig: str | os.PathLike[str] | None = None,
    ) -> None:
        all_labels = {**(labels or {}), **({QUEUE_LABEL: queue} if queue else {})}
        document = manifest.from_spec(spec) if spec is not None else None
        self._wanted = Wanted(
            image=image,
            command=command or (),
            size=size,
            tasks=tasks,
            name=name,
            environment=environment or {},
            labels=all_labels,
            verbose=verbose,
            document=document,
        )
        self._access = run.located(Access(namespace, context, kubeconfig), document or {})
        self._name = name
        self._uid: str | None = None
        self._executor: FluxExecutor | None = None

    @classmethod
    def from_spec(cls, spec: Spec, **arguments: Any) -> MiniCluster:
        """A MiniCluster with this spec, or of this whole object; `arguments` are those of `MiniCluster`."""
        return cls(spec=spec, **arguments)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], **arguments: Any) -> MiniCluster:
        """The first MiniCluster of a YAML file; `arguments` are those of `MiniCluster`, and override the file.

        A warning tells of others in the file.
        """
        return cls(spec=manifest.from_text(Path(path).read_text(encoding="utf-8"), os.fspath(path), 2), **arguments)

    @classmethod
    def attach(cls, name: str, **access: Any) -> MiniCluster:
        """The MiniCluster of this name, which exists; `access` is `namespace`, `context` and `kubeconfig`."""
        return bridge.block(cls.attach_async(name, **access))

    @classmethod
    async def attach_async(cls, name: str, **access: Any) -> MiniCluster:
        cluster = cls(name=name, **access)
        async with cluster._open() as target:
            cluster._uid = (await target.cluster(name))["metadata"]["uid"]
        return cluster

    # ---- run

    @classmethod
    def run(
        cls,
        image: str | None = None,
        command: Sequence[str] | None = None,
        *,
        check: bool = True,
        keep: bool = False,
        stream: bool = True,
        progress: bool | None = None,
        start_timeout: float | None = None,
        timeout: float | None = None,
        **arguments: Any,
    ) -> Result:
        """Creates a MiniCluster, follows it to its end and deletes it; returns the job's result.

        A lost connection neither ends nor repeats the job. Ctrl-C shuts the job down and raises `Stopped` once it has
        ended; a second Ctrl-C deletes it without waiting.

        Args:
            image, command: As of `MiniCluster`, as are all `arguments`.
            check: Raise `JobFailed` if the exit code is not 0.
            keep: Keep the MiniCluster, its pods and logs when the job has ended. It switches off `cleanup`,
                `cleanupPods` and `ttlSecondsAfterFinished` of the spec.
            stream: Print the job's output as it comes.
            progress: Show what the start waits for. None: yes.
            start_timeout: Seconds for the job to begin. Then the MiniCluster is deleted, and `Queued`, `Unschedulable`
                or `NotStarted` is raised.
            timeout: Seconds for the job to end. Then `TimedOut` is raised, and the job goes on. If it has ended and
                only its log is not read yet, the result comes without the rest (`unread`).
        """
        cluster = cls(image, command, **arguments)
        limits = Limits(start_timeout, timeout)
        new_run = run.Run(cluster._access, cluster._program(), limits, keep)
        screen = choose(has_progress=progress, has_output=stream)
        ending = bridge.drive(new_run.go, screen, new_run.interrupt, new_run.most_interrupts)
        return run.finish(ending, ending.result.name if ending.result else "the MiniCluster", check=check)

    @classmethod
    async def run_async(
        cls,
        image: str | None = None,
        command: Sequence[str] | None = None,
        *,
        check: bool = True,
        keep: bool = False,
        stream: bool = False,
        progress: bool = False,
        start_timeout: float | None = None,
        timeout: float | None = None,
        **arguments: Any,
    ) -> Result:
        """As `run`, for many at once: it prints nothing by default. If the task is cancelled, the job is shut down."""
        cluster = cls(image, command, **arguments)
        new_run = run.Run(cluster._access, cluster._program(), Limits(start_timeout, timeout), keep)
        ending = await new_run.go(choose(has_progress=progress, has_output=stream))
        return run.finish(ending, ending.result.name if ending.result else "the MiniCluster", check=check)

    # ---- create, wait

    @property
    def name(self) -> str:
        """Name of the MiniCluster; empty before it is created, unless the caller has chosen one."""
        return self._name or ""

    @property
    def namespace(self) -> str | None:
        """Its namespace. None: the context's, and it was not created yet."""
        return self._access.namespace

    def __repr__(self) -> str:
        return f"MiniCluster({self.name or 'not created'!r}, namespace={self.namespace!r})"

    def create(self) -> MiniCluster:
        """Creates it and returns; the job runs by itself. `attach` finds it from another program."""
        self._check_is_new()
        try:
            return bridge.block(self.create_async())
        except BaseException:
            # Ctrl-C may come just after it was created.
            self.delete()
            raise

    async def create_async(self) -> MiniCluster:
        self._check_is_new()
        document = manifest.build(self._wanted, run.letters(run.NAME_LETTERS))
        self._access = run.located(self._access, document)
        try:
            async with self._open() as target:
                created = await run.create(target, document, Silent())
                self._name, self._uid = created["metadata"]["name"], created["metadata"]["uid"]
                self._access = replace(self._access, namespace=target.namespace)
        except BaseException:
            # The task may be cancelled just after it was created.
            await self.delete_async()
            raise
        return self

    def _check_is_new(self) -> None:
        if self._uid is not None:
            raise ValueError(f"{self.name} was created before")

    def result(
        self,
        *,
        check: bool = True,
        stream: bool = False,
        progress: bool = False,
        timeout: float | None = None,
    ) -> Result:
        """Follows the job to its end; returns its result. Ctrl-C ends the waiting, not the job."""

        async def follow(screen: Screen) -> Ending:
            return await self._follow(screen, Limits(end=timeout))

        return run.finish(
            bridge.drive(follow, choose(has_progress=progress, has_output=stream)), self.name, check=check
        )

    async def result_async(self, *, check: bool = True, timeout: float | None = None) -> Result:
        return run.finish(await self._follow(Silent(), Limits(end=timeout)), self.name, check=check)

    async def _follow(
        self,
        screen: Screen,
        limits: Limits,
        *,
        until_ready: bool = False,
        is_status_only: bool = False,
    ) -> Ending:
        async with self._open() as target:
            uid = await _within(limits.end, self._known_uid(target), self.name)
            # What the caller has created, the caller deletes.
            follower = Follower(target, self.name, uid, screen, limits, False, until_ready, is_status_only)
            return await follower.follow()

    def wait(self, until: State = "finished", *, timeout: float | None = None) -> None:
        """Waits for a state: `finished` (however the job ended), `ready`, or `deleted`.

        `ready`: the instance is up, or its job has completed (exit code 0). If the job has failed: `JobFailed`.
        """
        bridge.block(self.wait_async(until, timeout=timeout))

    async def wait_async(self, until: State = "finished", *, timeout: float | None = None) -> None:
        if until not in get_args(State):
            *others, last = map(repr, get_args(State))
            raise ValueError(f"until: must be {', '.join(others)} or {last}, not {until!r}")
        if until == "deleted":
            await _within(timeout, self._until_deleted(), self.name)
            return
        ending = await self._follow(Silent(), Limits(end=timeout), until_ready=until == "ready", is_status_only=True)
        if until == "ready":
            _check_not_failed(ending)

    async def _until_deleted(self) -> None:
        async with self._open() as target, contextlib.aclosing(_closable(target.watch(self.name))) as changes:
            async for change in changes:
                match change:
                    case Disconnected():
                        continue
                    case Listed(objects):
                        found = objects
                    case _:
                        found = [] if change.is_deleted else [change.object]
                if not any(self._uid in (None, it["metadata"]["uid"]) for it in found):
                    return

    # ---- look, change

    def logs(self, *, follow: bool = False, index: int = 0, previous: bool = False) -> Iterator[str]:
        """The lines of a pod's log; `index` 0 is the lead, whose log has the job's output.

        With `follow`, the lines come until this start of its container ends, and a connection that breaks is resumed.
        With `previous`, they are those of the container's previous run, which has ended: it cannot be followed.
        """
        return bridge.iterate(self.logs_async(follow=follow, index=index, previous=previous))

    async def logs_async(self, *, follow: bool = False, index: int = 0, previous: bool = False) -> AsyncIterator[str]:
        if follow and previous:
            raise ValueError("`previous` has ended: leave out `follow`")
        async with self._open() as target:
            cluster = await target.cluster(self.name, self._uid)
            pod = observed.latest_of(operator.index(index), observed.own_pods(cluster, await target.pods_of(self.name)))
            if pod is None:
                raise CallFailed(f"there is no pod with index {index}", name=self.name, remedy="`why()` says more.")
            start = observed.started(pod)
            if not follow or start is None:
                lines = (await logs.read(target, pod, previous=previous)).split(b"\n")
                for line in lines if lines[-1] else lines[:-1]:
                    yield line.decode(errors="replace")
                return
            rest = b""
            async with contextlib.aclosing(_closable(logs.follow(target, pod, start))) as parts:
                async for part in parts:
                    *lines, rest = (rest + part).split(b"\n")
                    if len(rest) > LINE_MAX:
                        lines, rest = [*lines, rest], b""
                    for line in lines:
                        yield line.decode(errors="replace")
            if rest:
                yield rest.decode(errors="replace")

    def why(self) -> Report:
        """What it does, or why it does not start: `print(mc.why())`."""
        return bridge.block(self.why_async())

    async def why_async(self) -> Report:
        async with self._open() as target:
            return await report.report(target, self.name, self._uid)

    def usage(self) -> Usage:
        """Nodes, cores, GPUs and jobs of the running instance."""
        return bridge.block(self.usage_async())

    async def usage_async(self) -> Usage:
        async with self._open() as target:
            return await report.usage(target, self.name, self._uid)

    def status(self) -> models.MiniClusterStatus:
        """Its status as the operator has written it."""
        return bridge.block(self.status_async())

    async def status_async(self) -> models.MiniClusterStatus:
        async with self._open() as target:
            status = (await target.cluster(self.name, self._uid)).get("status") or {}
        return models.MiniClusterStatus.model_validate(status)

    def scale(self, size: SupportsIndex) -> None:
        """Changes the number of pods, as far as `maxSize` allows."""
        bridge.block(self.scale_async(size))

    async def scale_async(self, size: SupportsIndex) -> None:
        change = {"spec": {"size": operator.index(size)}}
        async with self._open() as target:
            await target.patch(self.name, change, "scale", uid=self._own_uid())

    def stop(self) -> Way:
        """Shuts the instance down, as `flux shutdown` does; status and logs stay. Deletes it if none has run yet."""
        return bridge.block(self.stop_async())

    async def stop_async(self) -> Way:
        async with self._open() as target:
            return await stop.in_order(target, self.name, self._own_uid())

    def delete(self) -> None:
        """Deletes it and its pods. Programs get SIGTERM and the grace period."""
        self._close_executor()
        bridge.block(self.delete_async())

    async def delete_async(self) -> None:
        if self._uid is None:
            # Neither created nor attached to: a MiniCluster of this name is somebody else's.
            return
        async with self._open() as target:
            with contextlib.suppress(NotFound):
                await run.delete(target, self.name, self._uid)

    # ---- jobs in the instance

    def executor(self, **options: Any) -> FluxExecutor:
        """An executor whose tasks are Flux jobs of the instance; `options` are those of `FluxExecutor`."""
        return FluxExecutor(self._access, self.name, uid=self._uid, **options)

    def submit(self, command: Sequence[str | os.PathLike[str]], **resources: Any) -> TaskFuture:
        """Submits a command as a Flux job; `resources` are those of `FluxExecutor.submit`.

        `submit([...]).result()` waits for it, and has its exit code and output.
        """
        if self._executor is None:
            self._executor = self.executor()
        return self._executor.submit(command, **resources)

    # ---- as a context

    def __enter__(self) -> MiniCluster:
        """Creates it and waits until the instance is up. The end of the block deletes it."""
        try:
            if self._uid is None:
                self.create()

            async def follow(screen: Screen) -> Ending:
                return await self._follow(screen, Limits(), until_ready=True)

            _check_not_failed(bridge.drive(follow, choose(has_progress=None, has_output=False)))
        except BaseException:
            self.delete()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.delete()

    async def __aenter__(self) -> MiniCluster:
        try:
            if self._uid is None:
                await self.create_async()
            _check_not_failed(await self._follow(Silent(), Limits(), until_ready=True))
        except BaseException:
            await self.delete_async()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close_executor()
        await self.delete_async()

    # ---- inside

    def _open(self) -> Any:
        return Target.open(self._access)

    def _program(self) -> Wanted:
        """What `run` runs: it needs a program, or nothing would ever end."""
        if not self._wanted.command and self._wanted.document is None:
            raise ValueError("command: run needs one. Without a command the instance stays up: use a `with` block")
        return self._wanted

    async def _known_uid(self, target: Target) -> str:
        if self._uid is None:
            # Not stored in `_uid`, which `delete` needs: it deletes only what was created or attached to.
            return str((await target.cluster(self.name))["metadata"]["uid"])
        return self._uid

    def _own_uid(self) -> str:
        if self._uid is None:
            raise ValueError(NOT_CREATED)
        return self._uid

    def _close_executor(self) -> None:
        if self._executor is not None:
            self._executor._abandon()
            self._executor = None


def _check_not_failed(ending: Ending) -> None:
    """Raises the exception for a job that has failed. One that has completed stays ready, and has no result here."""
    if ending.result is not None:
        raise JobFailed(ending.result)


def _closable(items: AsyncIterator[T]) -> Any:
    """The same iterator, for `aclosing`: it is a generator, but its type does not say so."""
    return items


async def _within(seconds: float | None, coroutine: Coroutine[Any, Any, T], name: str) -> T:
    try:
        return await asyncio.wait_for(coroutine, seconds)
    except asyncio.TimeoutError as error:
        raise TimedOut(f"the state was not reached within {seconds:g} s", name=name, remedy="") from error

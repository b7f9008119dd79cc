"""Follows a MiniCluster to its end: shows what it waits for, then what its job prints. Survives lost connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

from . import logs, progress, stop
from .errors import (
    CallFailed,
    Invalid,
    Lost,
    MiniClusterError,
    NotAllowed,
    NotFound,
    NotStarted,
    OperatorMissing,
    Problem,
    TimedOut,
    not_started,
)
from .observed import Observed, Start, name_of
from .result import Result
from .resume import Resume
from .screen import Screen
from .stop import Way
from .target import INSTALL, Change, Changed, Disconnected, Listed, Refusals, Target, may_pass

# Time after which a MiniCluster without a status has no operator, it seems. An operator that restarts takes less.
OPERATOR_SECONDS = 60.0
PAUSE_SECONDS = 1.0


@dataclass(frozen=True)
class Limits:
    """How long to wait, in seconds. None: without a limit."""

    start: float | None = None
    """For the job to begin; then the MiniCluster is deleted. It must be one that the caller has made."""
    end: float | None = None
    """For the job to end, or the instance to be up (`until_ready`); the MiniCluster is left alone."""
    operator: float = OPERATOR_SECONDS


@dataclass(frozen=True)
class Ending:
    """How following has ended: with a result, by a stop of the person, or (`until_ready`) when the instance was up."""

    result: Result | None
    way: Way | None = None
    is_interrupted: bool = False


@dataclass(frozen=True)
class _Cluster:
    change: Change


@dataclass(frozen=True)
class _Pods:
    change: Change


class _LogEnded:
    pass


@dataclass(frozen=True)
class _Failed:
    error: BaseException


@dataclass(frozen=True)
class _StopAsked:
    way: Way


class _Interrupted:
    pass


@dataclass(frozen=True)
class _Elapsed:
    what: str


_Event = _Cluster | _Pods | _LogEnded | _Failed | _StopAsked | _Interrupted | _Elapsed


@dataclass
class Follower:
    """Follows the MiniCluster of this name and uid."""

    target: Target
    name: str
    uid: str
    screen: Screen
    limits: Limits = field(default_factory=Limits)
    is_owned: bool = True
    """Whether the caller has made it, so that it may be deleted before its job begins."""
    until_ready: bool = False
    """Follow until the instance is up, and leave the log alone."""
    is_status_only: bool = False
    """Watch the MiniCluster alone, neither its pods nor its log. The result has no output."""
    is_kept: bool = False
    """Whether an interrupt before its job begins suspends it instead of deleting it."""

    def __post_init__(self) -> None:
        self._seen = Observed()
        self._events: asyncio.Queue[_Event] = asyncio.Queue()
        self._output = bytearray()
        self._read: set[Start] = set()
        self._resumes: dict[str, Resume] = {}
        """How far the log of each pod was read, by uid."""
        self._log_refusals = Refusals()
        self._is_log_given_up = False
        self._unread = ""
        """Why `_output` is not whole. Empty: it is."""
        self._has_listed = False
        self._are_pods_known = False
        self._log: asyncio.Task[None] | None = None
        """Prints the log, or looks for it."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._restarts = 0
        self._container_restarts = 0
        self._lost: set[type[_Cluster | _Pods]] = set()
        """The watches that have no connection."""
        self._is_gone = False
        self._is_end_unseen = False
        """It was deleted while no events came."""
        self._given_up: MiniClusterError | None = None
        """Why this program tried to delete it before its job began, if it is unknown whether that has deleted it."""
        self._interrupts = 0
        self._way: Way | None = None
        # Whether a request to stop is under way: the watch may report its result before the answer comes.
        self._is_stopping = False

    def interrupt(self) -> None:
        """Asks for the end: the first time in order, the second time at once. Call it in the event loop's thread."""
        self._events.put_nowait(_Interrupted())

    @property
    def is_deleted(self) -> bool:
        """Whether it was deleted, or its own `cleanup` deletes it."""
        return self._is_gone or bool((self._seen.cluster or {}).get("spec", {}).get("cleanup"))

    @property
    def _should_read_log(self) -> bool:
        return not (self.until_ready or self.is_status_only or self._is_log_given_up)

    async def follow(self) -> Ending:
        """Follows to the end."""
        self._start(self._watch(self.target.watch(self.name), _Cluster))
        if not self.is_status_only:
            self._start(self._watch(self.target.watch_pods_of(self.name), _Pods))
        self._start(self._timer("operator", self.limits.operator))
        for what, seconds in (("start", self.limits.start), ("end", self.limits.end)):
            if seconds is not None:
                self._start(self._timer(what, seconds))
        try:
            while True:
                ending = await self._handle(await self._events.get())
                if ending is not None:
                    return ending
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self.screen.end()

    # ---- background tasks

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        async def run() -> None:
            try:
                await coroutine
            except Exception as error:
                self._events.put_nowait(_Failed(error))

        task = asyncio.ensure_future(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # If the task is cancelled before it begins, nothing has awaited it.
        task.add_done_callback(lambda _: coroutine.close())
        return task

    async def _watch(self, changes: AsyncIterator[Change], event: Callable[[Change], _Event]) -> None:
        async for change in changes:
            self._events.put_nowait(event(change))

    async def _timer(self, what: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._events.put_nowait(_Elapsed(what))

    async def _print_log(self, pod: dict[str, Any], start: Start) -> None:
        try:
            resume = self._resumes.setdefault(start.uid, Resume())
            async for data in logs.follow(self.target, pod, start, resume, self._log_refusals):
                self.screen.end()
                self._output += data
                self.screen.put(data)
        except NotAllowed:
            raise
        except CallFailed as error:
            # How the job ends is known nevertheless.
            self._note_unread(error.message)
        self._events.put_nowait(_LogEnded())

    async def _find_log(self) -> None:
        """Lists the pods: a job may end before the watch has reported them."""
        refusals = Refusals()
        # A first refusal is not final: the watch of the pods was allowed, or else its own refusal ends the following.
        refusals.note_success()
        while True:
            try:
                pods = await self.target.pods_of(self.name)
                self._seen.pods = {name_of(pod): pod for pod in pods}
                break
            except CallFailed as error:
                may_help = may_pass(error) or error.status in (401, 403)
                if refusals.is_final(error) or not may_help:
                    self._note_unread(error.message)
                    break
            await asyncio.sleep(PAUSE_SECONDS)
        self._events.put_nowait(_LogEnded())

    async def _stop_in_order(self) -> None:
        self._is_stopping = True
        try:
            way = await stop.in_order(self.target, self.name, self.uid, keep=self.is_kept)
        except MiniClusterError as error:
            # The job goes on, and is followed further.
            self._is_stopping = False
            self.screen.say(str(error))
        else:
            self._events.put_nowait(_StopAsked(way))

    # ---- one event after the other

    async def _handle(self, event: _Event) -> Ending | None:
        match event:
            case _Cluster(change):
                self._note_connection(_Cluster, change)
                self._on_cluster(change)
            case _Pods(change):
                self._note_connection(_Pods, change)
                self._on_pods(change)
            case _LogEnded():
                self._log = None
            case _Failed(error):
                raise error
            case _StopAsked(way):
                self._way, self._is_stopping = way, False
                self.screen.say(f"{self.name}: {way.value}")
            case _Interrupted():
                ending = await self._on_interrupt()
                if ending is not None:
                    return ending
            case _Elapsed(what):
                await self._on_elapsed(what)
        self._begin_log()
        ending = self._ending()
        if ending is not None and self._log is None:
            if ending.result is not None and self._should_read_log:
                if not self._has_listed:
                    self._has_listed = True
                    self._log = self._start(self._find_log())
                    return None
                self._note_missing_log()
            return self._ending()
        if self._seen.cluster is not None and not self._interrupts and not self._restarts:
            self.screen.show(progress.stages(self._seen))
        return None

    def _on_cluster(self, change: Change) -> None:
        match change:
            case Disconnected():
                return
            case Listed(objects):
                found = [it for it in objects if it["metadata"]["uid"] == self.uid]
                if not found:
                    self._note_missing()
                self._seen.cluster = found[0] if found else self._seen.cluster
            case Changed(cluster, is_deleted):
                if cluster["metadata"]["uid"] == self.uid:
                    # If it was deleted, this is its last state.
                    self._seen.cluster, self._is_gone = cluster, is_deleted
                else:
                    self._note_missing()
        self._note_restart()

    def _on_pods(self, change: Change) -> None:
        match change:
            case Disconnected():
                pass
            case Listed(pods):
                self._seen.pods = {name_of(pod): pod for pod in pods}
                self._are_pods_known = True
            case Changed(pod, is_deleted):
                if is_deleted:
                    self._seen.pods.pop(name_of(pod), None)
                else:
                    self._seen.pods[name_of(pod)] = pod

    async def _on_interrupt(self) -> Ending | None:
        self._interrupts += 1
        self.screen.end()
        if self._interrupts == 1:
            self.screen.say(f"shutting down {self.name}; press Ctrl-C again to delete it without waiting")
            self._start(self._stop_in_order())
            return None
        try:
            way = await stop.at_once(self.target, self.name, self.uid)
        except MiniClusterError as error:
            self.screen.say(f"{self.name} may still run: {error}")
            way = None
        return Ending(None, way, is_interrupted=True)

    async def _on_elapsed(self, what: str) -> None:
        if what == "end":
            if self._seen.is_true("JobFinished"):
                self._give_up_log()
                return
            if self.until_ready:
                message, remedy = f"the instance is not up after {self.limits.end:g} s", "`why()` says more."
            else:
                message = f"the job has not ended within {self.limits.end:g} s"
                remedy = "It goes on. `MiniCluster.attach` follows it again."
            raise TimedOut(message, name=self.name, remedy=remedy)
        if what == "operator":
            if self._lost or self._seen.cluster is None:
                self._start(self._timer("operator", self.limits.operator))
            elif not self._seen.status:
                message = f"nothing has processed it for {self.limits.operator:g} s"
                remedy = f"The operator does not run, or watches another namespace. {INSTALL}"
                await self._give_up(what, OperatorMissing(message, name=self.name, remedy=remedy))
        elif self._has_begun():
            return
        elif self._lost or self._seen.cluster is None or not self._are_pods_known:
            # The job may have begun unseen: look again.
            self._start(self._timer(what, 1.0))
        else:
            await self._give_up(what, self._not_started())

    # ---- what it means

    def _note_connection(self, watch: type[_Cluster | _Pods], change: Change) -> None:
        was_lost = bool(self._lost)
        if isinstance(change, Disconnected):
            self._lost.add(watch)
            if not was_lost:
                self.screen.say(f"no events from the API server ({change.why}); {self.name} goes on, reconnecting")
        else:
            self._lost.discard(watch)
            if was_lost and not self._lost:
                self.screen.say("the API server answers again")

    def _note_missing(self) -> None:
        self._is_end_unseen |= not self._is_gone
        self._is_gone = True

    def _note_restart(self) -> None:
        count = self._seen.status.get("restartCount") or 0
        if count > self._restarts:
            self._restarts = count
            by_kubelet = self._seen.status.get("containerRestarts") or 0
            listed = self._seen.status.get("restarts")
            # The status lists no restart by the kubelet, and only counts it.
            if listed and by_kubelet <= self._container_restarts:
                self.screen.say(f"{self.name} restarts ({listed[-1]['reason']}): {listed[-1]['message']}")
            else:
                self.screen.say(f"{self.name} restarts: the lead's container ended and runs again")
            self._container_restarts = by_kubelet

    def _note_unread(self, why: str) -> None:
        self._unread = self._unread or why
        self.screen.say(why)

    def _give_up_log(self) -> None:
        self._is_log_given_up = True
        if self._log is not None:
            self._log.cancel()
            self._log = None
        self._note_unread(f"the job has ended, but its output was not read to the end within {self.limits.end:g} s")

    def _note_missing_log(self) -> None:
        timeline = self._seen.status.get("timeline") or {}
        if not self._read and timeline.get("running") and not self._unread:
            self._note_unread("cannot read the log of the lead: its pod is gone")

    def _begin_log(self) -> None:
        """Prints the log of a start of the lead that was not printed yet."""
        found = self._seen.started_lead()
        if not self._should_read_log or self._log is not None or found is None:
            return
        lead, start = found
        if start in self._read:
            return
        before, earliest = (Start(start.uid, start.restarts - number) for number in (1, 2))
        if start.restarts > 0 and before not in self._read:
            # The kubelet still has the log of the container before this one, and of no other.
            if start.restarts > 1 and earliest not in self._read:
                self._note_unread(f"cannot read the whole log of {name_of(lead)}: its container has restarted twice")
            start = before
        self._read.add(start)
        self._log = self._start(self._print_log(lead, start))

    def _has_begun(self) -> bool:
        has_run = bool((self._seen.status.get("timeline") or {}).get("running"))
        return has_run or self._seen.started_lead() is not None or self._seen.has_been_up or self._restarts > 0

    async def _give_up(self, what: str, why: MiniClusterError) -> None:
        """Deletes it and raises `why`, unless it has changed since it was last seen.

        If the deletion fails, the remedy of `why` says so. Returns if it is gone already, or the timer `what` was
        started again. What the caller has not made is not deleted.
        """
        if not self.is_owned:
            raise why
        assert self._seen.cluster is not None, "without it, the timers start again"
        version = self._seen.cluster["metadata"]["resourceVersion"]
        try:
            await self.target.delete(self.name, uid=self.uid, resource_version=version)
        except NotFound:
            self._given_up = why
            return
        except CallFailed as error:
            if error.status in (409, None) or self._lost:
                # It has changed, perhaps begun, or there is no answer now: the watch will tell.
                self._start(self._timer(what, 1.0))
                if may_pass(error):
                    self._given_up = why
                return
            why.remedy = (
                f"{self.name} was not deleted, and may run later ({error.message}). "
                f"`MiniCluster.attach({self.name!r}).delete()` deletes it, or suspends it if you may not delete it.\n"
                f"{why.remedy or ''}"
            ).rstrip()
            raise why from error
        raise why

    def _not_started(self) -> NotStarted:
        return not_started(f"the job has not begun within {self.limits.start:g} s", self._seen.status, self.name)

    def _ending(self) -> Ending | None:
        is_interrupted = self._interrupts > 0
        if self.until_ready and self._seen.is_true("Ready"):
            return Ending(None)
        if self._seen.is_true("JobFinished") and self._seen.cluster is not None:
            output = self._output.decode(errors="replace")
            result = replace(Result.of(self._seen.cluster, output), unread=self._unread or None)
            return Ending(result, self._way, is_interrupted)
        if self._is_gone:
            if self._is_stopping or self._way is Way.DELETED or self._way is Way.HAD_ENDED:
                return Ending(None, self._way or Way.DELETED, is_interrupted=True)
            if self._given_up is not None and not self._has_begun():
                raise self._given_up
            message = "it was deleted before its job had ended"
            if self._is_end_unseen:
                message = "it is gone: how its job ended is unknown"
            raise Lost(message, name=self.name, remedy="")
        # Without a Job, the condition never becomes true.
        is_suspended = self._seen.is_true("Suspended") or not self._seen.status.get("jobUid")
        if self._way in (Way.SUSPENDED, Way.KEPT) and is_suspended:
            return Ending(None, self._way, is_interrupted=True)
        if self._seen.is_invalid:
            raise Invalid(_problems(self._seen.message), name=self.name, message=self._seen.message)
        return None


def _problems(message: str) -> list[Problem]:
    """The fields that the operator's message names: `spec.size: must be at least 1; spec.tasks: ...`."""
    problems = []
    for part in message.split("; "):
        path, colon, problem = part.partition(": ")
        has_field = bool(colon) and path.startswith(("spec", "metadata"))
        problems.append(Problem(path, problem) if has_field else Problem("", part))
    return problems

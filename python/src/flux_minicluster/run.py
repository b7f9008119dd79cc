"""Creates a MiniCluster, follows it to its end, and has it deleted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import string
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from . import manifest, stop
from .errors import (
    CallFailed,
    Invalid,
    JobFailed,
    MiniClusterError,
    NameTaken,
    NotAllowed,
    NotFound,
    Stopped,
)
from .follow import Ending, Follower, Limits
from .manifest import Wanted
from .observed import RUN_ANNOTATION
from .result import Result
from .screen import Screen, Silent
from .stop import Way
from .target import FAILURES, TRIES, Access, Target, may_pass, words

# How long to wait for the answer to a creation whose caller was cancelled, and as long again for undoing it.
CANCEL_SECONDS = 15.0
# How long the API server may be away when the operator is asked to delete a MiniCluster that has ended.
CLEANUP_SECONDS = 180.0
# Time after which such a wait is reported.
QUIET_SECONDS = 5.0
# Letters that complete a generated name.
NAME_LETTERS = 5
# Letters of the mark that a run sets. Unlike generated names, marks are too long to collide.
_MARK_LETTERS = 16
_KEPT = "{name} is kept: `MiniCluster.attach({name!r}).delete()` deletes it"
_REMEDY = "`kubectl logs` may still have it. `MiniCluster.attach({name!r}).delete()` deletes it."


def letters(count: int) -> str:
    """Random lower-case letters."""
    return "".join(random.SystemRandom().choices(string.ascii_lowercase, k=count))


def located(access: Access, document: Mapping[str, Any]) -> Access:
    """`access`, with the namespace that the document names if the caller names none."""
    wanted = (document.get("metadata") or {}).get("namespace")
    if wanted and access.namespace and wanted != access.namespace:
        raise ValueError(f"namespace: the document's is {wanted}, and the caller's is {access.namespace}")
    return replace(access, namespace=wanted or access.namespace)


async def create(target: Target, document: dict[str, Any], screen: Screen) -> dict[str, Any]:
    """Creates the MiniCluster. If the caller is cancelled, or the screen fails, deletes it, if the API server answers.

    If another one has its generated name, `document` gets another name.
    """
    metadata = document["metadata"]
    metadata["annotations"] = {**(metadata.get("annotations") or {}), RUN_ANNOTATION: letters(_MARK_LETTERS)}
    # A user who may not list pods cannot follow a job. So this fails before the job exists.
    await target.pods_of(metadata["name"])
    creating = asyncio.ensure_future(_create(target, document, screen))
    try:
        return await asyncio.shield(creating)
    except MiniClusterError:
        raise
    except BaseException:
        await asyncio.wait([creating], timeout=CANCEL_SECONDS)
        is_answered = creating.done() and not creating.cancelled()
        has_failed = is_answered and isinstance(creating.exception(), MiniClusterError)
        # A creation that has failed has left nothing, or has tried to undo it.
        if not has_failed:
            creating.cancel()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(_undo(target, document), CANCEL_SECONDS)
        raise


async def _undo(target: Target, document: dict[str, Any]) -> bool:
    """Deletes the MiniCluster of a creation whose outcome is unknown. Returns whether it is known that none is left."""
    name = document["metadata"]["name"]
    is_absent = False
    for attempt in range(TRIES):
        if attempt:
            # The API server may still be creating it, or not answer.
            await asyncio.sleep(1)
        try:
            existing = await target.cluster(name)
            if _mark(existing) == _mark(document):
                await delete(target, name, existing["metadata"]["uid"])
            return True
        except MiniClusterError as error:
            is_absent = isinstance(error, NotFound)
    return is_absent


async def _create(target: Target, document: dict[str, Any], screen: Screen) -> dict[str, Any]:
    metadata = document["metadata"]
    may_exist = False
    for attempt in range(1, TRIES + 1):
        try:
            return await _create_or_find(target, document)
        except NameTaken:
            prefix = metadata.get("generateName")
            if attempt == TRIES or not prefix:
                raise
            metadata["name"] = f"{prefix}{letters(NAME_LETTERS)}"
        except FAILURES as error:
            # A conflict is temporary: for example, another creation has just changed the namespace's quota.
            is_conflict = isinstance(error, CallFailed) and error.status == 409
            # After a lost answer, an API server that has just started may refuse what it allows a moment later.
            may_help = may_pass(error) or is_conflict or (isinstance(error, NotAllowed) and may_exist)
            may_exist |= may_pass(error)
            if attempt < TRIES and may_help:
                screen.say(f"{words(error)}; retrying")
                await asyncio.sleep(1)
                continue
            name = metadata["name"]
            message = f"cannot create MiniCluster {name}: {words(error)}"
            remedy = error.remedy if isinstance(error, NotAllowed) else None
            if may_exist and not await _undo(target, document):
                remedy = f"It may exist nevertheless: `MiniCluster.attach({name!r}).delete()` deletes it."
            if isinstance(error, NotAllowed):
                raise NotAllowed(message, status=403, remedy=remedy) from error
            raise CallFailed(message, remedy=remedy) from error
    raise AssertionError("unreachable")


async def _create_or_find(target: Target, document: dict[str, Any]) -> dict[str, Any]:
    """If an earlier answer was lost, the MiniCluster that exists has this run's annotation."""
    try:
        return await target.create(document)
    except NameTaken as error:
        name = document["metadata"]["name"]
        existing = await target.cluster(name)
        if _mark(existing) == _mark(document):
            return existing
        message = f"cannot create MiniCluster {name}: the name is taken"
        raise NameTaken(message, status=409, remedy="Choose another with `name`.") from error


def _mark(cluster: dict[str, Any]) -> str | None:
    mark: str | None = (cluster["metadata"].get("annotations") or {}).get(RUN_ANNOTATION)
    return mark


@dataclass
class Run:
    """One run: creates, follows, cleans up."""

    access: Access
    wanted: Wanted
    limits: Limits = field(default_factory=Limits)
    is_kept: bool = False

    def __post_init__(self) -> None:
        self._follower: Follower | None = None
        self._screen: Screen = Silent()
        self._interrupts = 0
        self._interrupted = asyncio.Event()

    def interrupt(self) -> None:
        """As Ctrl-C does. While the MiniCluster is being created, it is remembered."""
        self._interrupts += 1
        self._interrupted.set()
        if self._follower is not None:
            self._follower.interrupt()
        else:
            self._screen.say("it is stopped once it is created; press Ctrl-C again not to wait for that")

    def most_interrupts(self) -> int:
        """How often Ctrl-C calls `interrupt`. One more cancels the run, since the API server may never answer."""
        return 2 if self._follower is not None else 1

    async def go(self, screen: Screen) -> Ending:
        self._screen = screen
        document = manifest.build(self.wanted, letters(NAME_LETTERS))
        if self.is_kept:
            manifest.keep(document)
        access = located(self.access, document)
        async with Target.open(access) as target:
            cluster = await create(target, document, screen)
            try:
                return await self._follow(target, cluster, screen)
            except MiniClusterError:
                raise
            except BaseException:
                # It was cancelled, or the screen has failed.
                await self._abandon(target, cluster)
                raise

    async def _follow(self, target: Target, cluster: dict[str, Any], screen: Screen) -> Ending:
        name, uid = cluster["metadata"]["name"], cluster["metadata"]["uid"]
        size = cluster["spec"]["size"]
        screen.say(f"created MiniCluster {name} with {size} pod{'' if size == 1 else 's'}")
        self._follower = Follower(target, name, uid, screen, self.limits, is_kept=self.is_kept)
        for _ in range(self._interrupts):
            self._follower.interrupt()
        try:
            ending = await self._follower.follow()
        except CallFailed as error:
            # The user lacks a permission, or the credentials have expired.
            remedy = (
                f"The job goes on: `MiniCluster.attach({name!r})` follows or deletes it. {error.remedy or ''}".rstrip()
            )
            raise type(error)(error.message, name=name, status=error.status, remedy=remedy) from error
        except Invalid as error:
            await self._discard(target, name, uid, screen, error)
            raise
        if ending.result is None:
            if ending.way is Way.KEPT:
                screen.say(_KEPT.format(name=name))
            return ending
        should_keep = self.is_kept or ending.result.unread is not None
        if should_keep and self._follower.is_deleted:
            screen.say(f"{name} is not kept: its `cleanup`, or somebody else, deletes it")
        elif ending.result.unread is not None:
            seconds = cluster["spec"].get("ttlSecondsAfterFinished")
            until = "" if seconds is None else f" until {seconds} s after its end (`ttlSecondsAfterFinished`)"
            screen.say(f"not deleted{until}, since its output could not be read whole: {_REMEDY.format(name=name)}")
        elif not should_keep and not self._follower.is_deleted:
            why = await self._clean_up(target, name, uid, screen)
            ending = replace(ending, result=replace(ending.result, not_deleted=why))
        if self._interrupts and not ending.is_interrupted:
            # Ctrl-C came after the job's end.
            return replace(ending, way=Way.HAD_ENDED, is_interrupted=True)
        return ending

    async def _clean_up(self, target: Target, name: str, uid: str, screen: Screen) -> str | None:
        """As `clean_up`, after the job's end. Ctrl-C ends the waiting for an API server that is away."""
        self._interrupted.clear()
        cleaning = asyncio.ensure_future(clean_up(target, name, uid, screen, CLEANUP_SECONDS))
        interrupted = asyncio.ensure_future(self._interrupted.wait())
        try:
            both = [cleaning, interrupted]
            done, _ = await asyncio.wait(both, timeout=QUIET_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                screen.say(f"waiting for the API server to have {name} deleted; press Ctrl-C not to wait")
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if cleaning.done():
                return cleaning.result()
            why = f"it is unknown whether {name} will be deleted: you pressed Ctrl-C before the API server answered"
            screen.say(why)
            return why
        finally:
            cleaning.cancel()
            interrupted.cancel()

    async def _discard(self, target: Target, name: str, uid: str, screen: Screen, invalid: Invalid) -> None:
        """Ends a MiniCluster that the operator cannot use: it may run later, when nobody follows it.

        If that fails, the remedy of `invalid` says so.
        """
        if self.is_kept:
            screen.say(_KEPT.format(name=name))
            return
        try:
            way = await stop.at_once(target, name, uid)
        except MiniClusterError as error:
            invalid.remedy = f"{name} may run later: {error}"
            await clean_up(target, name, uid, screen)
        else:
            screen.say(f"{name}: {way.value}")

    async def _abandon(self, target: Target, cluster: dict[str, Any]) -> None:
        """Nobody follows it any more: the job is shut down, as by Ctrl-C, and the operator deletes what is left.

        A job that cannot be shut down is deleted, unless it is kept.
        """
        name, uid = cluster["metadata"]["name"], cluster["metadata"]["uid"]
        if self.is_kept:
            try:
                await stop.in_order(target, name, uid, keep=True)
            except MiniClusterError as error:
                logging.getLogger(__package__).warning("%s is kept, and may still run: %s", name, error)
            return
        await clean_up(target, name, uid, Silent())
        # The caller learns that it was cancelled, and nothing more can be done.
        with contextlib.suppress(MiniClusterError):
            await _shut_down(target, name, uid)


async def _shut_down(target: Target, name: str, uid: str) -> None:
    """Ends the job in order, or at once if that fails: it would run on, and nobody would know."""
    try:
        await stop.in_order(target, name, uid)
    except CallFailed:
        await stop.at_once(target, name, uid)


async def delete(target: Target, name: str, uid: str) -> None:
    """Deletes it. Without this permission, its job is shut down, and the operator deletes it."""
    try:
        await target.delete(name, uid=uid)
    except NotAllowed:
        await _ask_for_cleanup(target, name, uid)
        await _shut_down(target, name, uid)


async def _ask_for_cleanup(target: Target, name: str, uid: str, patience: float = 0.0) -> None:
    """Has the operator delete the MiniCluster (`spec.cleanup`), which needs no permission to delete."""
    # An API server that has just started may refuse it, and a conflict with another change passes.
    change = {"spec": {"cleanup": True}}
    await target.patch(name, change, "clean up", uid=uid, passing=(403, 409), patience=patience)


async def clean_up(target: Target, name: str, uid: str, screen: Screen, patience: float = 0.0) -> str | None:
    """Has the operator delete it. A failure is only reported and returned."""
    try:
        await _ask_for_cleanup(target, name, uid, patience)
    except NotFound:
        pass
    except MiniClusterError as error:
        screen.say(f"{error}; not deleted")
        return str(error)
    return None


def finish(ending: Ending, name: str, *, check: bool) -> Result:
    """The result, or the exception for how it ended."""
    if ending.is_interrupted or ending.result is None:
        how = ending.way.value if ending.way is not None else "it may still run"
        raise Stopped(f"{name}: {how}", ending.result)
    if check and ending.result.exit_code != 0:
        raise JobFailed(ending.result)
    return ending.result

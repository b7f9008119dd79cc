"""Ends a MiniCluster: by a shutdown of its instance if there is one, else by deleting or suspending it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from enum import Enum
from typing import Any

from . import program
from .errors import CallFailed, Invalid, NotAllowed, NotFound
from .observed import (
    QUEUE_LABEL,
    Observed,
    Start,
    has_failed_before_program,
    is_finished,
    is_over,
    is_running,
    latest_of,
    name_of,
    own_pods,
    replaces,
    started,
    was_restarted,
    was_shut_down,
)
from .target import Refusals, Target, may_pass, words

ATTEMPTS = 6
PAUSE_SECONDS = 1.0
# Reasons of restarts before which the program may have run. Before any other restart, the lead had not started.
_RESTARTED_AFTER_START = ("LeadLost", "PodLost", "JobDeleted", "Suspended", "Requeued")
# The snippet that runs after Flux has ended.
_AFTER = "post"
# Exit code of a program whose container ended meanwhile.
_KILLED = 137
# States of a broker whose instance does not run yet: Flux refuses to shut it down.
_BEFORE_RUN = ("none", "load-builtins", "join", "config-sync", "init", "quorum")


class Way(Enum):
    """How a MiniCluster was ended."""

    SHUT_DOWN = "shutting it down: its programs get SIGTERM and the grace period"
    DELETED = "deleted"
    SUSPENDED = "suspended: it has no pods now (you have no permission to delete it)"
    KEPT = "suspended: it has no pods now (no instance has run yet, and `keep` keeps it)"
    HAD_ENDED = "it has already ended"
    ENDING = "its job has already ended, and its last steps (`post`, the archive) are not cut short"


async def in_order(target: Target, name: str, uid: str | None = None, *, keep: bool = False) -> Way:
    """Shuts the instance down, as `flux shutdown` does. If none has run yet, deletes the MiniCluster: nothing is lost.

    With `keep`, suspends it instead, if that would stop it. Deletes nothing if the program may have run before, while
    the steps after a job run, or if it is unknown what runs.
    """
    attempt = _Attempt(target, name, uid, keep)
    refusals = Refusals()
    for number in range(ATTEMPTS):
        if number:
            await asyncio.sleep(PAUSE_SECONDS)
        try:
            way = await attempt.make()
        except NotFound:
            return Way.HAD_ENDED
        except program.SilentAgent as error:
            # Another program in this pod would hang, too. The end of the wait does not end the agent's command.
            remedy = "It may shut down all the same. If not, `delete()` deletes it."
            raise program.SilentAgent(f"not stopped: {error.message}", name=name, remedy=remedy) from error
        except CallFailed as error:
            # `at_once` has tried the deletion again itself, and it may have been carried out.
            if attempt.is_deleting and may_pass(error):
                raise
            # 404: the pod has gone since the pods were listed.
            if refusals.is_final(error) or not (may_pass(error) or error.status in (403, 404)):
                raise
            attempt.obstacle = words(error)
            continue
        if way is not None:
            return way
        if attempt.is_suspended:
            break
    if attempt.has_ended:
        return Way.ENDING
    raise CallFailed(
        f"not stopped: {attempt.obstacle}", name=name, remedy="Nothing was deleted. `delete()` deletes it."
    )


class _Attempt:
    """The attempts to end one MiniCluster."""

    def __init__(self, target: Target, name: str, uid: str | None, keep: bool) -> None:
        self.obstacle = ""
        self.has_ended = False
        """The lead has ended, and the operator has not said so yet."""
        self.is_deleting = False
        self._is_suspending = False
        """An attempt to suspend it was made, perhaps without an answer."""
        self.is_suspended = False
        """Nothing runs, and the program may have run before."""
        self._target = target
        self._name = name
        self._uid = uid
        self._keep = keep
        """As of `in_order`."""
        self._asked: Start | None = None
        """The start of the lead that was asked to shut down, perhaps without an answer."""

    async def make(self) -> Way | None:
        """None: it is worth another look."""
        cluster = await self._target.cluster(self._name)
        self._uid = self._uid or cluster["metadata"]["uid"]
        if cluster["metadata"]["uid"] != self._uid:
            return Way.HAD_ENDED
        if is_finished(cluster.get("status") or {}):
            return Way.HAD_ENDED if self._asked is None else Way.SHUT_DOWN
        pods = await self._target.pods_of(self._name)
        lead = latest_of(0, own_pods(cluster, pods))
        self.has_ended = False
        # A suspended Job does not end when its instance is shut down: its program starts again when it is resumed.
        if self._asked is not None or (lead is not None and started(lead) is not None):
            if Observed(cluster).is_true("Suspended"):
                is_up = lead is not None and is_running(lead) and not lead["metadata"].get("deletionTimestamp")
                # If it is up, the Job was just suspended, or it was resumed, and the status is old.
                self.is_suspended = not is_up
                self.obstacle = (
                    "its status says that it is suspended, but its lead runs"
                    if is_up
                    else "it is suspended, and its pods are being stopped"
                )
                return None
            if _is_to_be_suspended(cluster) and not _is_queued(cluster):
                self.obstacle = "its `spec.suspend` is true, and the operator has not suspended its Job yet"
                return None
        if self._asked is not None and (lead is None or is_over(lead, self._asked)):
            return Way.SHUT_DOWN
        if lead is not None and was_shut_down(lead):
            return Way.ENDING if self._asked is None else Way.SHUT_DOWN
        start = started(lead) if lead is not None else None
        if lead is None or start is None:
            if _has_unreported_lead(cluster, pods):
                self.obstacle = "its lead runs, but the operator has not reported the Job yet"
                return None
            return await self._end_unless_begun(cluster, lead)
        self.has_ended = not is_running(lead)
        if self.has_ended:
            return None
        self._asked = start
        # The agent's command does not wait for the end of the instance.
        answer = await program.report(self._target, lead, ["stop"])
        if answer.code == 0:
            return Way.SHUT_DOWN
        self.obstacle = answer.stderr.decode(errors="replace").strip() or f"the lead's agent ended with {answer.code}"
        return await self._without_broker(cluster, lead, answer.code)

    async def _without_broker(self, cluster: dict[str, Any], lead: dict[str, Any], code: int) -> Way | None:
        """After the agent has not shut the instance down: deletes the MiniCluster if no instance has run yet.

        None: it is worth another look.
        """
        try:
            status = json.loads((await program.report(self._target, lead, ["status", "--json"])).stdout)
        except ValueError:
            return None
        if code != _KILLED:
            # The lead was asked, and has refused.
            self._asked = None
        state = status.get("state", "")
        if state is None:
            if status.get("has_broker"):
                # The broker does not answer, so it is unknown what runs.
                return None
            # An older agent has no `has_ended`.
            if status.get("has_ended") or status.get("snippet") == _AFTER:
                return Way.ENDING
            if status.get("snippet") is None and Observed(cluster).has_been_up:
                return None
        elif state not in _BEFORE_RUN:
            return None
        return await self._end_unless_begun(cluster, lead)

    async def _end_unless_begun(self, cluster: dict[str, Any], lead: dict[str, Any] | None) -> Way | None:
        """Deletes the MiniCluster, or suspends it if it is kept and can be suspended.

        None if its program may have run: its status and its logs would be lost.
        """
        if _may_have_run(cluster, lead):
            self.is_suspended = Observed(cluster).is_true("Suspended")
            self.obstacle = (
                "it is suspended, so nothing runs"
                if self.is_suspended
                else "its program may have run before, and its instance is not up again yet"
            )
            return None
        # A queue could start a kept MiniCluster later, when nobody follows it.
        if self._keep and (self._is_suspending or await _why_not_suspended(self._target, cluster) is None):
            self._is_suspending = True
            await _suspend(self._target, self._name, self._uid)
            return Way.KEPT
        self.is_deleting = True
        return await at_once(self._target, self._name, self._uid)


def _may_have_run(cluster: dict[str, Any], lead: dict[str, Any] | None) -> bool:
    """Whether the program may have run in an earlier start: in an earlier Job, pod or container of the lead."""
    status = cluster.get("status") or {}
    if _may_have_run_before_restart(status):
        return True
    restarted = lead if lead is not None and was_restarted(lead) else None
    # Of several ends of the container, only the last is known. But if the instance has been up, a program has run.
    if restarted and (Observed(cluster).has_been_up or not has_failed_before_program(restarted)):
        return True
    if lead is not None and (restarted or started(lead) is not None) and not replaces(lead):
        return False
    # An earlier pod of the lead may have run.
    return bool((status.get("timeline") or {}).get("running"))


def _may_have_run_before_restart(status: dict[str, Any]) -> bool:
    """Whether the program may have run before one of the restarts that the status counts."""
    listed = status.get("restarts") or []
    # The pod shows the restarts of its container. Nothing is known of those of earlier pods, or of restarts that the
    # status does not list any more.
    shown = status.get("containerRestarts", 0) + len(listed)
    has_unknown = status.get("restartCount", 0) > shown
    return has_unknown or any(it["reason"] in _RESTARTED_AFTER_START for it in listed)


def _has_unreported_lead(cluster: dict[str, Any], pods: list[dict[str, Any]]) -> bool:
    """Whether the lead has started, although the status does not name its Job yet."""
    created = cluster["metadata"].get("creationTimestamp")
    if created is None or (cluster.get("status") or {}).get("jobUid"):
        return False
    # Older pods are those of another MiniCluster of its name.
    lead = latest_of(0, [pod for pod in pods if pod["metadata"].get("creationTimestamp", "") >= created])
    return lead is not None and started(lead) is not None


async def at_once(target: Target, name: str, uid: str | None) -> Way:
    """Deletes the MiniCluster without waiting; without the permission, suspends it. `uid`: only this one."""
    try:
        try:
            # NotFound: an attempt whose answer was lost may have deleted it.
            with contextlib.suppress(NotFound):
                await target.delete(name, uid=uid)
            return Way.DELETED
        except NotAllowed as error:
            cluster = await target.cluster(name)
            if is_finished(cluster.get("status") or {}):
                # The operator deletes it.
                await target.patch(name, {"spec": {"cleanup": True}}, "clean up", uid=uid)
                return Way.DELETED
            why = await _why_not_suspended(target, cluster)
            if why is not None:
                message = f"{error.message} ({why})"
                remedy = "Ask for the permission `delete`."
                raise NotAllowed(message, name=name, status=403, remedy=remedy) from error
        await _suspend(target, name, uid)
        return Way.SUSPENDED
    except NotFound:
        return Way.HAD_ENDED
    except NotAllowed:
        raise
    except (CallFailed, Invalid) as error:
        if uid is None or not await _is_replaced(target, name, uid):
            raise
        # After a lost answer, the deletion was probably carried out.
        return Way.DELETED if may_pass(error) else Way.HAD_ENDED


async def _suspend(target: Target, name: str, uid: str | None) -> None:
    await target.patch(name, {"spec": {"suspend": True}}, "stop", uid=uid)


async def _why_not_suspended(target: Target, cluster: dict[str, Any]) -> str | None:
    """Why `spec.suspend` would not stop the MiniCluster. None: it would."""
    if _is_queued(cluster) or await target.is_job_queued(name_of(cluster)):
        return "only its queue can suspend it"
    if _was_resumed_by_others(cluster):
        # The operator applies `spec.suspend` only when it changes.
        return "`spec.suspend` is true already, although the Job runs: suspend the Job"
    status = cluster.get("status") or {}
    # If there is no Job yet, none is created before somebody sets `suspend` back.
    if status.get("jobUid") and status.get("reason") == "Invalid":
        return "its Job follows `spec.suspend` only with a valid spec"
    return None


async def _is_replaced(target: Target, name: str, uid: str) -> bool:
    """Whether another MiniCluster has the name now."""
    try:
        return bool((await target.cluster(name))["metadata"]["uid"] != uid)
    except NotFound:
        return True


def _was_resumed_by_others(cluster: dict[str, Any]) -> bool:
    """Whether somebody has resumed the Job of a suspended MiniCluster."""
    status = cluster.get("status") or {}
    is_suspended = Observed(cluster).is_true("Suspended") or _is_to_be_suspended(cluster)
    return bool(cluster["spec"].get("suspend") and status.get("jobUid") and not is_suspended)


def _is_to_be_suspended(cluster: dict[str, Any]) -> bool:
    """Whether `spec.suspend` is true and the status older than the spec: the operator may be about to suspend it."""
    observed = (cluster.get("status") or {}).get("observedGeneration", 0)
    return bool(cluster["spec"].get("suspend") and observed < cluster["metadata"].get("generation", 0))


def _is_queued(cluster: dict[str, Any]) -> bool:
    """Whether it is in a queue, where `spec.suspend` has no effect."""
    labels = [cluster["metadata"].get("labels"), cluster["spec"].get("jobLabels")]
    return any(QUEUE_LABEL in (it or {}) for it in labels)

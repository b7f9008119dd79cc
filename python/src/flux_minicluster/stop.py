"""Ends a MiniCluster: by a shutdown of its instance if there is one, else by deleting or suspending it."""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Any

from . import program
from .errors import CallFailed, NotAllowed, NotFound
from .observed import QUEUE_LABEL, is_over, is_running, latest_of, started
from .target import Target

# What a program in a container ends with that ends meanwhile.
_KILLED = 137


class Way(Enum):
    """How a MiniCluster was ended."""

    SHUT_DOWN = "shutting it down: its programs get SIGTERM and the grace period"
    DELETED = "deleted"
    SUSPENDED = "suspended: it has no pods now (you have no permission to delete it or to shut down its instance)"
    HAD_ENDED = "it has already ended"


async def in_order(target: Target, name: str) -> Way:
    """Shuts the instance down, as `flux shutdown` does. If none runs, the MiniCluster is deleted: nothing is lost."""
    try:
        cluster = await target.cluster(name)
    except NotFound:
        return Way.HAD_ENDED
    if (cluster.get("status") or {}).get("phase") in ("Completed", "Failed"):
        return Way.HAD_ENDED
    lead = latest_of(0, await target.pods_of(name))
    if lead is not None and is_running(lead) and await _is_shut_down(target, name, lead):
        return Way.SHUT_DOWN
    return await at_once(target, name)


async def _is_shut_down(target: Target, name: str, lead: dict[str, Any]) -> bool:
    """Asks the lead's agent. Its container may end before the answer has come: then what counts is the pod."""
    try:
        code = (await program.answer(target, lead, ["stop"])).code
    except CallFailed:
        code = _KILLED
    start = started(lead)
    if code != _KILLED or start is None:
        return code == 0
    for pause in range(4):
        await asyncio.sleep(pause)
        now = latest_of(0, await target.pods_of(name))
        if now is None or is_over(now, start):
            return True
    return False


async def at_once(target: Target, name: str) -> Way:
    """Deletes the MiniCluster without waiting; its pods get SIGTERM and their grace period."""
    try:
        await target.delete(name)
        return Way.DELETED
    except NotFound:
        return Way.HAD_ENDED
    except NotAllowed:
        if _is_queued(await target.cluster(name)):
            # Only its queue can suspend it.
            raise
    await target.patch(name, {"spec": {"suspend": True}}, "stop")
    return Way.SUSPENDED


def _is_queued(cluster: dict[str, Any]) -> bool:
    """Whether it is in a queue, where `spec.suspend` has no effect."""
    labels = [cluster["metadata"].get("labels"), cluster["spec"].get("jobLabels")]
    return any(QUEUE_LABEL in (it or {}) for it in labels)

"""Logs of pods; a log whose connection breaks is resumed."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import AsyncIterator
from datetime import datetime, timezone
from typing import Any

import aiohttp

from . import observed
from .errors import CallFailed, NotAllowed, NotFound
from .observed import Start, name_of, runner_of
from .resume import Resume
from .target import FAILURES, TRIES, Refusals, Target, words

# Time without a byte after which a log is requested again: a job may be silent for any time, but the connection may
# also be dead.
SILENCE_SECONDS = 120.0
PAUSE_SECONDS = 0.25
PAUSE_AFTER_FAILURE_SECONDS = 1.0
# From about this length, with its times, the kubelet has rotated a log (by default at 10 MiB, and its file has 9 more
# bytes for each line). Whoever follows the log then misses what the kubelet had not sent before the rotation.
ROTATED_BYTES = 8 * 1024 * 1024
# Time after the API server was away in which failures do not count either: it may have no connection to kubelets yet.
SETTLING_SECONDS = 60.0


async def follow(
    target: Target,
    pod: dict[str, Any],
    start: Start,
    resume: Resume | None = None,
    refusals: Refusals | None = None,
) -> AsyncIterator[bytes]:
    """The log of one start of a pod's runner to its end; reconnects if the connection breaks.

    `resume` is that of the pod's earlier starts: nothing of them comes again. `refusals` are those of logs that were
    followed before. A log that could not be read whole ends with `CallFailed`.
    """
    name, container = name_of(pod), runner_of(pod)
    resume = resume or Resume()
    resume.begin_log()
    failures, was_complete, was_silent, lost = _Failures(), False, False, ""
    log_refusals, pod_refusals, received = refusals or Refusals(), Refusals(), 0
    while True:
        restarts = observed.restarts_of(pod) - start.restarts
        is_over = observed.is_over(pod, start)
        # Otherwise failures are retried for any time, since the job goes on.
        can_give_up = is_over or observed.is_overdue(pod, datetime.now(timezone.utc))
        if restarts > 1:
            # The kubelet keeps the log of one earlier container.
            lost = lost or ("" if was_complete else "its container has restarted twice meanwhile")
            break
        since = resume.connect()
        query = [("container", container), ("timestamps", "1")]
        # After a silence, one read that does not wait: it tells whether all had been read.
        waits = not is_over and not was_silent
        query += [("previous", "1")] if restarts == 1 else [("follow", "1")] if waits else []
        query += [("sinceTime", since)] if since is not None else []
        broke: str | None = None
        has_data = False
        is_complete = has_progressed = is_silent = is_away = is_missing = is_refused = False
        try:
            async for data in _chunks(target, name, query):
                log_refusals.note_success()
                has_data = True
                received += len(data)
                if new := resume.feed(data):
                    has_progressed = True
                    yield new
            broke = resume.message() or None
            is_refused = broke is not None
            is_complete = not is_refused
            log_refusals.note_success()
        except _Silent as error:
            # Without data, this connection has never worked.
            is_silent = has_data
            log_refusals.note_success()
            # A container that runs may print nothing for any time.
            broke = str(error) if can_give_up else None
        except FAILURES as error:
            if log_refusals.is_final(error):
                raise
            # 404: the pod is gone, or its kubelet was restarted and does not know it yet. The pod tells, below.
            is_missing = isinstance(error, CallFailed) and error.status == 404
            broke, is_away = words(error), _is_away(error)
        if is_complete and resume.end():
            if not has_progressed and (was_complete or was_silent):
                # The log had been read whole, and has nothing new: it was only rotated.
                resume.begin_log()
            elif was_complete and await _has_restarted(target, name, start):
                # The log had been read whole, and these were the next container's lines.
                break
            else:
                lost = "the node does not have all lines any more"
        # A kubelet may remove the log of a container that has ended once it was read whole.
        had_all = was_complete and is_refused and not has_progressed
        if is_over and (is_complete or had_all):
            # The container had ended before this read, so nothing else is missing.
            break
        if has_progressed or broke is None:
            failures.count = 0
        else:
            failures.note(is_away)
        if can_give_up and failures.count >= TRIES:
            lost = broke or ""
            break
        may_be_of_next = was_complete and not is_complete and has_progressed
        was_complete = is_complete or (was_complete and not has_progressed and (is_missing or is_refused))
        was_silent = is_silent
        # Without an answer it is not known whose log the next read would be of.
        while True:
            try:
                current = await target.pod(name)
                pod_refusals.note_success()
                break
            except FAILURES as error:
                is_final = pod_refusals.is_final(error)
                if is_final and isinstance(error, NotAllowed):
                    # Who may not get pods may still read logs. A pod without a log counts as gone.
                    current = None if is_missing else pod
                    break
                failures.note(_is_away(error))
                if is_final or (can_give_up and failures.count >= TRIES):
                    raise _unread(name, container, words(error)) from error
                await asyncio.sleep(PAUSE_AFTER_FAILURE_SECONDS)
        if current is None or current["metadata"].get("uid", "") != start.uid:
            lost = lost or ("" if was_complete else "its pod is gone")
            break
        pod = current
        if may_be_of_next and observed.restarts_of(pod) > start.restarts and resume.end():
            # The log had been read whole, and these were the next container's lines.
            break
        if broke is not None or failures.count:
            await asyncio.sleep(PAUSE_AFTER_FAILURE_SECONDS)
        elif not observed.is_over(pod, start):
            await asyncio.sleep(PAUSE_SECONDS)
    if lost:
        raise _unread(name, container, lost)
    if received >= ROTATED_BYTES:
        warnings.warn(
            f"lines may be missing: the log of {name} is so long that its node has probably rotated it, and the "
            "kubelet may skip lines then. Option --output=FILE in spec.flux.optionFlags writes all output to a file.",
            stacklevel=1,
        )


def _unread(name: str, container: str, why: str) -> CallFailed:
    return CallFailed(f"cannot read the whole log of {name}, container {container}: {why}")


class _Failures:
    """Failures in a row. While the API server is away, none counts against `TRIES`."""

    def __init__(self) -> None:
        self.count = 0
        self._away_at: float | None = None

    def note(self, is_away: bool) -> None:
        now = time.monotonic()
        if is_away:
            self._away_at = now
        elif self._away_at is None or now - self._away_at >= SETTLING_SECONDS:
            self.count += 1


def _is_away(error: BaseException) -> bool:
    """Whether the API server is away.

    One that starts gives no answer, or refuses for a while. In its place, a load balancer may answer.
    """
    if isinstance(error, CallFailed):
        return isinstance(error, NotAllowed) or error.status in (429, 502, 503, 504)
    return not isinstance(error, aiohttp.ClientPayloadError)


async def _has_restarted(target: Target, name: str, start: Start) -> bool:
    try:
        pod = await target.pod(name)
    except FAILURES:
        return False
    return pod is not None and observed.restarts_of(pod) > start.restarts


class _Silent(Exception):
    pass


async def _chunks(target: Target, pod: str, query: list[tuple[str, str]]) -> AsyncIterator[bytes]:
    response = await target.log(pod, query)
    try:
        while True:
            try:
                data = await asyncio.wait_for(response.content.readany(), SILENCE_SECONDS)
            except asyncio.TimeoutError as error:
                raise _Silent(f"no data came for {SILENCE_SECONDS:g} s") from error
            if not data:
                return
            yield data
    finally:
        response.close()


async def read(target: Target, pod: dict[str, Any], *, previous: bool = False) -> bytes:
    """The log of a pod's runner, as far as it goes now."""
    query = [("container", runner_of(pod))] + ([("previous", "1")] if previous else [])
    try:
        return b"".join([data async for data in _chunks(target, name_of(pod), query)])
    except (NotAllowed, NotFound):
        raise
    except (_Silent, *FAILURES) as error:
        raise CallFailed(f"cannot read the log of {name_of(pod)}: {words(error)}") from error

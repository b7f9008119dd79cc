"""Logs of pods; a log whose connection breaks is resumed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from . import observed
from .errors import CallFailed, NotAllowed, NotFound
from .observed import Start, name_of, runner_of
from .resume import Resume
from .target import FAILURES, TRIES, Target, words

# Time without a byte after which a log is requested again: a job may be silent for any time, but the connection may
# also be dead.
SILENCE_SECONDS = 120.0
PAUSE_SECONDS = 0.25
PAUSE_AFTER_FAILURE_SECONDS = 1.0


async def follow(target: Target, pod: dict[str, Any], start: Start) -> AsyncIterator[bytes]:
    """The log of one start of a pod's runner to its end; reconnects if the connection breaks."""
    name, container = name_of(pod), runner_of(pod)
    resume = Resume()
    failures, is_over = 0, False
    while True:
        since = resume.connect()
        query = [("container", container), ("timestamps", "1")]
        query += [] if is_over else [("follow", "1")]
        query += [("sinceTime", since)] if since is not None else []
        broke: str | None = None
        has_progressed = False
        try:
            async for data in _chunks(target, name, query):
                has_progressed = True
                if new := resume.feed(data):
                    yield new
        except NotFound:
            return
        except NotAllowed:
            raise
        except FAILURES as error:
            broke = words(error)
        failures = 0 if has_progressed or broke is None else failures + 1
        if is_over and broke is None:
            # The container had ended before this read, so nothing is missing.
            return
        if is_over and failures >= TRIES:
            raise CallFailed(f"cannot read the log of {name}, container {container}: {broke}")
        try:
            current = await target.pod(name)
            if current is None:
                return
            is_over = observed.is_over(current, start)
        except FAILURES:
            # Without an answer, the pod counts as running.
            pass
        if failures:
            await asyncio.sleep(PAUSE_AFTER_FAILURE_SECONDS)
        elif not is_over:
            await asyncio.sleep(PAUSE_SECONDS)


async def _chunks(target: Target, pod: str, query: list[tuple[str, str]]) -> AsyncIterator[bytes]:
    response = await target.log(pod, query)
    try:
        while True:
            try:
                data = await asyncio.wait_for(response.content.readany(), SILENCE_SECONDS)
            except asyncio.TimeoutError:
                return
            if not data:
                return
            yield data
    finally:
        response.close()


async def read(target: Target, pod: dict[str, Any], *, previous: bool = False) -> bytes:
    """The log of a pod's runner, as far as it goes now."""
    query = [("container", runner_of(pod))] + ([("previous", "1")] if previous else [])
    try:
        response = await target.log(name_of(pod), query)
        return await response.read()
    except (NotAllowed, NotFound):
        raise
    except FAILURES as error:
        raise CallFailed(f"cannot read the log of {name_of(pod)}: {words(error)}") from error

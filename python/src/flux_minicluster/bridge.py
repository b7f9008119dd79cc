"""Runs coroutines in another thread, for callers without a free event loop: scripts, and cells of a notebook."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import queue
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar

from .progress import Stage
from .screen import Screen

T = TypeVar("T")
# How long a call that was interrupted may take to undo what it has done.
UNDO_SECONDS = 30.0
# Longest wait of a caller's thread. On Windows, Ctrl-C does not interrupt a wait, but takes effect between two.
WAIT_SECONDS = 0.2 if os.name == "nt" else None
# Items that `iterate` reads ahead of its caller.
ITEMS_AHEAD = 4096


@cache
def _loop_of(thread: str) -> asyncio.AbstractEventLoop:
    if sys.platform == "win32":
        # Notebooks there choose another kind of loop, which runs no processes, such as credential plugins.
        loop: asyncio.AbstractEventLoop = asyncio.ProactorEventLoop()
    else:
        loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name=thread, daemon=True).start()
    return loop


_lock = threading.Lock()


def loop() -> asyncio.AbstractEventLoop:
    """The loop of this package's thread."""
    # `cache` takes no lock: threads whose first calls come at once would get a loop each.
    with _lock:
        return _loop_of("flux-minicluster")


def forbid_waiting() -> None:
    """Raises if this is the package's thread, which would wait for itself: it runs the callbacks of futures."""
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        return
    if running is loop():
        raise RuntimeError(
            "called from a callback of a future, which must not wait: use another thread, or the asynchronous method"
        )


def _after_fork() -> None:
    """A forked process has the loop, but not its thread."""
    global _lock
    _lock = threading.Lock()
    _loop_of.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def block(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs the coroutine to its end. Ctrl-C cancels it, and waits until it has ended; a second one does not wait."""
    try:
        forbid_waiting()
    except RuntimeError:
        coroutine.close()
        raise
    has_ended = threading.Event()

    async def work() -> T:
        try:
            return await coroutine
        finally:
            has_ended.set()

    future = asyncio.run_coroutine_threadsafe(work(), loop())
    try:
        while not concurrent.futures.wait([future], WAIT_SECONDS).done:
            pass
        return future.result()
    except BaseException:
        if future.cancel():
            has_ended.wait(UNDO_SECONDS)
        raise


def _next(items: queue.SimpleQueue[T]) -> T:
    while True:
        with suppress(queue.Empty):
            return items.get(timeout=WAIT_SECONDS)


class _Relay:
    """Passes the calls to the caller's thread: a notebook shows below a cell only what the cell's own thread prints."""

    def __init__(self, calls: queue.SimpleQueue[Callable[[Screen], None] | None]) -> None:
        self._calls = calls

    def show(self, stages: Sequence[Stage]) -> None:
        self._calls.put(lambda screen: screen.show(stages))

    def say(self, text: str) -> None:
        self._calls.put(lambda screen: screen.say(text))

    def put(self, data: bytes) -> None:
        self._calls.put(lambda screen: screen.put(data))

    def end(self) -> None:
        self._calls.put(lambda screen: screen.end())


def drive(
    run: Callable[[Screen], Coroutine[Any, Any, T]],
    screen: Screen,
    interrupt: Callable[[], None] | None = None,
    most_interrupts: Callable[[], int] = lambda: 0,
) -> T:
    """Runs `run` to its end. This thread writes to `screen`; if that fails, it cancels the run and waits for its end.

    Ctrl-C calls `interrupt` in the loop, at most as often as `most_interrupts` says. After that, or without
    `interrupt`, Ctrl-C cancels the run.
    """
    forbid_waiting()
    calls: queue.SimpleQueue[Callable[[Screen], None] | None] = queue.SimpleQueue()
    tasks: list[asyncio.Task[Any] | None] = []

    async def work() -> T:
        tasks.append(asyncio.current_task())
        return await run(_Relay(calls))

    future = asyncio.run_coroutine_threadsafe(work(), loop())
    future.add_done_callback(lambda _: calls.put(None))
    interrupts = 0
    while True:
        try:
            call = _next(calls)
            if call is None:
                break
            call(screen)
        except KeyboardInterrupt:
            interrupts += 1
            if interrupt is None or interrupts > most_interrupts():
                future.cancel()
                raise
            loop().call_soon_threadsafe(interrupt)
        except BaseException:
            loop().call_soon_threadsafe(lambda: [task.cancel() for task in tasks if task is not None])
            while _next(calls) is not None:
                pass
            raise
    return future.result()


def iterate(items: AsyncIterator[T]) -> Iterator[T]:
    """The items of an asynchronous iterator, which ends when this one is closed, and is paused if it is far ahead."""
    forbid_waiting()
    received: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()

    async def pump() -> None:
        try:
            async for item in items:
                received.put((True, item))
                # Not an asyncio.Event: the reader is in another thread.
                while received.qsize() >= ITEMS_AHEAD:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            received.put((False, None))
        except BaseException as error:
            received.put((False, error))
            raise

    future = asyncio.run_coroutine_threadsafe(pump(), loop())
    try:
        while True:
            is_item, item = _next(received)
            if is_item:
                yield item
            elif item is None:
                return
            else:
                raise item
    finally:
        future.cancel()

"""Programs in a running pod, by exec: the agent there knows Flux, its user and its environment."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from .errors import CallFailed
from .observed import AGENT, is_running, latest_of, own_pods
from .target import FAILURES, Target, words

STDIN, STDOUT, STDERR, STATUS = range(4)
# Time limit of `report`. The agent's own requests end earlier. What a command has begun in the pod goes on.
ANSWER_SECONDS = 15.0
# Most bytes of an answer. The pod's user can choose the program.
MOST_ANSWER_BYTES = 16 << 20


class SilentAgent(CallFailed):
    """The lead's agent did not answer in time."""

    @classmethod
    def after(cls, seconds: float) -> SilentAgent:
        return cls(f"the lead's agent did not answer within {seconds:g} s; is a volume of the pod stuck?")


@dataclass(frozen=True)
class Answer:
    """What a program printed, and its exit code."""

    code: int
    stdout: bytes
    stderr: bytes


async def messages(connection: aiohttp.ClientWebSocketResponse) -> AsyncIterator[tuple[int, bytes]]:
    """Channel and bytes of each message, to the end of the connection."""
    async for message in connection:
        if message.type in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT):
            data = message.data.encode() if isinstance(message.data, str) else message.data
            if data:
                yield data[0], data[1:]


def exit_code(status: bytes | None) -> int:
    """The exit code in the status of an exec; an end that nobody reported is no success."""
    if status is None:
        raise CallFailed("the connection was lost before the program had ended")
    answer = json.loads(status)
    if answer.get("status") == "Success":
        return 0
    for cause in (answer.get("details") or {}).get("causes") or []:
        if cause.get("reason") == "ExitCode":
            return int(cause["message"])
    raise CallFailed(f"cannot run the program: {answer.get('message', '')}")


async def answer(target: Target, pod: dict[str, Any], command: Sequence[str]) -> Answer:
    """Runs the agent's command in the pod's runner."""
    parts: dict[int, bytearray] = {STDOUT: bytearray(), STDERR: bytearray()}
    status: bytes | None = None
    try:
        async with target.execute(pod, [AGENT, *command], stdin=False) as connection:
            async for channel, data in messages(connection):
                if channel == STATUS:
                    status = data
                elif channel in parts:
                    parts[channel] += data
                    if len(parts[channel]) > MOST_ANSWER_BYTES:
                        raise CallFailed(f"the program in the pod printed more than {MOST_ANSWER_BYTES >> 20} MiB")
    except CallFailed:
        raise
    except FAILURES as error:
        raise CallFailed(f"cannot run a program in the pod: {words(error)}") from error
    return Answer(exit_code(status), bytes(parts[STDOUT]), bytes(parts[STDERR]))


async def report(target: Target, lead: dict[str, Any], command: Sequence[str]) -> Answer:
    """The answer of the lead's agent to a command that ends soon (`status`, `usage`, `stop`).

    It has a time limit: in a pod whose volume is stuck, the agent may hang.
    """
    try:
        return await asyncio.wait_for(answer(target, lead, command), ANSWER_SECONDS)
    except asyncio.TimeoutError as error:
        raise SilentAgent.after(ANSWER_SECONDS) from error


async def running_lead(target: Target, name: str, uid: str | None) -> dict[str, Any]:
    """The lead's pod; an error if its runner does not run. `uid`: as of `Target.cluster`."""
    cluster = await target.cluster(name, uid)
    lead = latest_of(0, own_pods(cluster, await target.pods_of(name)))
    if lead is not None and is_running(lead):
        return lead
    status = cluster.get("status") or {}
    why = ": ".join(filter(None, [status.get("reason"), status.get("message")]))
    state = ", ".join(filter(None, [status.get("phase") or "not begun", why]))
    raise CallFailed(f"its lead does not run (the MiniCluster is {state})", name=name, remedy="`why()` says more.")

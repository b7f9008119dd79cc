"""What can go wrong, each with a reason and, if one is known, a remedy."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from .text import printable

if TYPE_CHECKING:
    from .result import Result


@cache
def _remedies() -> dict[str, str]:
    text = resources.files(__package__).joinpath("remedies.json").read_text(encoding="utf-8")
    remedies: dict[str, str] = json.loads(text)
    return remedies


def remedy_for(reason: str | None) -> str | None:
    """What a reason means and what to do: its section of the troubleshooting page, or else its meaning."""
    return _remedies().get(reason or "")


def _remedy_for_code(exit_code: int) -> str:
    """The item for this exit code in the remedy for `NonZeroExitCode`. Empty: there is none."""
    found = re.search(rf"^- ({exit_code}\b.*(?:\n  .*)*)", remedy_for("NonZeroExitCode") or "", re.MULTILINE)
    return found[1].replace("\n  ", "\n") if found else ""


class MiniClusterError(Exception):
    """Any failure that this package reports.

    `reason` is one word, `message` says what failed and why, `remedy` what to do.
    """

    default_reason = "Failed"

    def __init__(self, message: str, *, name: str = "", reason: str | None = None, remedy: str | None = None) -> None:
        self.name = name
        self.reason = reason or self.default_reason
        self.message = message
        self.remedy = remedy if remedy is not None else remedy_for(self.reason)
        super().__init__(message)

    def __str__(self) -> str:
        text = f"{self.name}: {self.message}" if self.name else self.message
        # A traceback prints this text. `message` is as the cluster has it.
        return printable(f"{text}\n{self.remedy}" if self.remedy else text)

    def __reduce__(self) -> tuple[Any, ...]:
        # Not by the constructor: those of subclasses do not take `args`.
        return _restored, (type(self), self.args, self.__dict__.copy())


def _restored(kind: type[MiniClusterError], args: tuple[Any, ...], state: dict[str, Any]) -> MiniClusterError:
    """An error that comes from another process."""
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class CallFailed(MiniClusterError):
    """A call to the API server, or of a program in a pod, has failed."""

    default_reason = "CallFailed"

    def __init__(self, message: str, *, name: str = "", status: int | None = None, remedy: str | None = None) -> None:
        self.status = status
        super().__init__(message, name=name, remedy=remedy)


class NotAllowed(CallFailed):
    """The API server refused the call (403): you lack a permission, or a quota or an admission policy forbids it."""

    default_reason = "Forbidden"


class NotFound(CallFailed):
    """There is no such object."""

    default_reason = "NotFound"


class NameTaken(CallFailed):
    """A MiniCluster of this name exists."""

    default_reason = "NameTaken"


@dataclass(frozen=True)
class Problem:
    """One problem of a spec: the field's path, and what is wrong with its value."""

    field: str
    problem: str

    def __str__(self) -> str:
        return f"{self.field}: {self.problem}" if self.field else self.problem


class Invalid(MiniClusterError):
    """A field cannot be used. `problems` names each field; `field` and `problem` are those of the first."""

    default_reason = "Invalid"

    def __init__(self, problems: list[Problem], *, name: str = "", message: str | None = None) -> None:
        self.problems = problems
        self.field = problems[0].field if problems else ""
        self.problem = problems[0].problem if problems else message or ""
        super().__init__(message or "\n".join(map(str, problems)), name=name, remedy="")


class JobFailed(MiniClusterError):
    """The job has ended with a failure. `exit_code` is the job's, `signal` the signal that ended it, if one did."""

    default_reason = "JobFailed"

    def __init__(self, result: Result) -> None:
        self.result = result
        self.exit_code = result.exit_code
        self.signal = result.signal
        message = f"failed with exit code {result.exit_code} ({result.reason}): {result.message}"
        remedy = _remedy_for_code(result.exit_code) if result.reason == "NonZeroExitCode" else None
        super().__init__(message, name=result.name, reason=result.reason, remedy=remedy)


class NotStarted(MiniClusterError, TimeoutError):
    """The job, or an executor's instance, has not started within `start_timeout`.

    `run` has then deleted the MiniCluster, and the job has not run. If the deletion failed, `remedy` says so: the job
    may run later. An executor leaves the MiniCluster as it is.
    """

    default_reason = "NotStarted"


class Unschedulable(NotStarted):
    """No node has room for a pod, or fits it."""

    default_reason = "Unschedulable"


class Queued(NotStarted):
    """The MiniCluster waits in a queue."""

    default_reason = "Queued"


def not_started(what: str, status: Mapping[str, Any], name: str) -> NotStarted:
    """The exception for what has not begun in time. `status`: the MiniCluster's, or only `message` with the cause."""
    kinds: dict[str, type[NotStarted]] = {"Unschedulable": Unschedulable, "Queued": Queued}
    reason = status.get("reason") or ""
    text = f"{what} ({reason or 'no reason given'}): {status.get('message') or ''}"
    return kinds.get(reason, NotStarted)(text, name=name, reason=reason or None)


class OperatorMissing(MiniClusterError):
    """The cluster does not know MiniClusters, or nothing processes them."""

    default_reason = "OperatorMissing"


class Lost(MiniClusterError):
    """The MiniCluster is gone before its job's end was seen, or its instance restarted or ended before its tasks."""

    default_reason = "Lost"


class TimedOut(MiniClusterError, TimeoutError):
    """The state was not reached within `timeout`. The MiniCluster is unchanged."""

    default_reason = "TimedOut"


class Stopped(KeyboardInterrupt):
    """You pressed Ctrl-C. The message says how the job was ended, or that it may still run.

    `result` is the job's, if its end was seen.
    """

    def __init__(self, message: str, result: Result | None = None) -> None:
        super().__init__(message)
        self.result = result

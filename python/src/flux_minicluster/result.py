"""How a job ended."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from typing import Any

from . import models
from .steps import Step, picture, steps_of


@dataclass(frozen=True)
class Result:
    """How a job ended, and what it printed."""

    name: str
    namespace: str
    exit_code: int
    """The job's exit code, 128 + n for signal n."""
    reason: str
    """Why, in one word: `Completed`, `NonZeroExitCode`, `OOMKilled`, ..."""
    message: str
    stdout: str = field(repr=False)
    """The log of the lead: standard output and standard error of the job, as they were printed."""
    unread: str | None = None
    """Why `stdout` is not whole; then `run` does not delete the MiniCluster. None: it is whole."""
    not_deleted: str | None = None
    """Why `run` could not have the MiniCluster deleted. None: nothing has failed."""
    signal: int | None = None
    restarts: int = 0
    """How often the MiniCluster, or only the lead's container, was restarted."""
    timeline: models.Timeline | None = field(default=None, repr=False)
    """When each step of the last start was reached."""
    steps: tuple[Step, ...] = field(default=(), repr=False)
    """The steps from the creation to the job's end, with their durations. A notebook shows them as bars."""

    def _repr_html_(self) -> str:
        """What a notebook shows: how the job ended, and where the time went."""
        ending = f"{self.name}: exit code {self.exit_code}, {self.reason}"
        return f"<p>{html.escape(ending)}</p>\n{picture(self.steps)}"

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    @staticmethod
    def of(cluster: dict[str, Any], stdout: str) -> Result:
        """The result in a MiniCluster whose job has finished."""
        status = cluster.get("status") or {}
        conditions = status.get("conditions") or []
        is_complete = any(it["type"] == "Complete" and it["status"] == "True" for it in conditions)
        timeline = status.get("timeline")
        return Result(
            name=cluster["metadata"]["name"],
            namespace=cluster["metadata"].get("namespace", ""),
            exit_code=code_of(status.get("exitCode"), is_complete),
            reason=status.get("reason") or "",
            message=status.get("message") or "",
            stdout=stdout,
            signal=status.get("signal"),
            restarts=status.get("restartCount") or 0,
            timeline=models.Timeline.model_validate(timeline) if timeline else None,
            steps=steps_of(cluster),
        )


def code_of(exit_code: int | None, is_complete: bool) -> int:
    """The exit code of a job that has ended: a failure without a code, or with 0, is never a success."""
    if not exit_code:
        return 0 if is_complete else 1
    return exit_code if 0 <= exit_code <= 255 else 1

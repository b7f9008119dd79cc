"""The steps of a start and of the job, with their duration, and a picture of them."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .observed import time_of

BAR_WIDTH = 320
NAME_WIDTH = 220
LINE_HEIGHT = 22
COLOR = "#3367d6"


@dataclass(frozen=True)
class Step:
    """One step, from the end of the step before it."""

    name: str
    begin: float
    """Seconds after the MiniCluster was created."""
    seconds: float
    """Duration."""


def steps_of(cluster: dict[str, Any]) -> tuple[Step, ...]:
    """The steps that a MiniCluster has reached. The API server keeps times as whole seconds."""
    status = cluster.get("status") or {}
    timeline = status.get("timeline") or {}
    points = [
        ("the Job is created", status.get("startTime")),
        ("pods are scheduled", timeline.get("scheduled")),
        ("images, Flux, the lead starts", timeline.get("running")),
        ("brokers connect", timeline.get("ready")),
        ("the job runs", status.get("completionTime")),
    ]
    created = cluster["metadata"].get("creationTimestamp")
    if created is None:
        return ()
    first = last = time_of(created)
    steps = []
    for name, text in points:
        if text is not None:
            end = max(time_of(text), last)
            steps.append(Step(name, (last - first).total_seconds(), (end - last).total_seconds()))
            last = end
    return tuple(steps)


def picture(steps: Sequence[Step]) -> str:
    """The steps as bars, in SVG. Empty without steps."""
    if not steps:
        return ""
    end = max(step.begin + step.seconds for step in steps)
    scale = BAR_WIDTH / end if end > 0 else 0.0
    width = NAME_WIDTH + BAR_WIDTH + 80
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {len(steps) * LINE_HEIGHT}" width="{width}" '
        'font-family="sans-serif" font-size="13" fill="#5f6368">'
    ]
    for number, step in enumerate(steps):
        top = number * LINE_HEIGHT
        left = NAME_WIDTH + step.begin * scale
        length = max(step.seconds * scale, 1.0)
        lines += [
            f'  <text x="0" y="{top + 15}">{html.escape(step.name)}</text>',
            f'  <rect x="{left:.1f}" y="{top + 4}" width="{length:.1f}" height="14" fill="{COLOR}"/>',
            f'  <text x="{left + length + 6:.1f}" y="{top + 15}">{step.seconds:g} s</text>',
        ]
    return "\n".join([*lines, "</svg>\n"])

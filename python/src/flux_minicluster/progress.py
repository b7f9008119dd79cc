"""What a start waits for, in four lines: pods, view, brokers, quorum. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from . import observed
from .observed import Observed


class State(Enum):
    """State of a stage. `LATER`: something else comes first. `STUCK`: it may need help to go on."""

    LATER = "·"
    NOW = "…"
    STUCK = "!"
    DONE = "✓"


@dataclass(frozen=True)
class Stage:
    """A stage of a start, one line on the screen."""

    name: str
    state: State
    text: str

    def __str__(self) -> str:
        return f"{self.state.value} {self.name:<8} {self.text}"


# Values of status.reason in an ordinary start.
_NO_TROUBLE = {"", "BrokersNotReady", "PodsStarting", "JobCreated", "NotRequested", "LeadNotRunning"}


def stages(seen: Observed) -> list[Stage]:
    """The four stages of a start."""
    return [_pods(seen), _view(seen), _brokers(seen), _quorum(seen)]


def _trouble(seen: Observed) -> str | None:
    """The reason and the message of a problem. None: there is none."""
    return None if seen.reason in _NO_TROUBLE else f"{seen.reason}: {seen.message or 'no details'}"


def _started(seen: Observed) -> int:
    return sum(observed.started(pod) is not None for pod in seen.latest_pods)


def _pods(seen: Observed) -> Stage:
    latest = seen.latest_pods
    placed = sum(map(observed.is_scheduled, latest))
    begun = _started(seen)
    count = f"{begun} of {seen.size} running"
    if seen.has_been_up or begun >= seen.size:
        return Stage("pods", State.DONE, count)
    if seen.is_true("Suspended"):
        text = "suspended: spec.suspend is true, or its Job was suspended"
        return Stage("pods", State.STUCK, (seen.reason == "Queued" and seen.message) or text)
    if trouble := _trouble(seen):
        return Stage("pods", State.STUCK, f"{count}; {trouble}")
    if not seen.own_pods:
        return Stage("pods", State.NOW, f"0 of {seen.size}: the operator has not created any yet")
    return Stage("pods", State.NOW, f"{count}, {placed} scheduled")


def _view(seen: Observed) -> Stage:
    lead = seen.lead
    if seen.has_been_up:
        return Stage("view", State.DONE, "Flux is in the pods")
    if lead is None or not observed.is_scheduled(lead):
        return Stage("view", State.LATER, "after the pods are scheduled")
    if observed.started(lead) is not None:
        return Stage("view", State.DONE, "Flux is in the pods")
    container = observed.initializing(lead)
    if container is None:
        return Stage("view", State.NOW, "the lead's image is pulled and started")
    name, reason = container
    text = f"init container {name} prepares the lead's pod"
    if name == "flux-agent":
        text = "the agent is being installed in the lead's pod"
    return Stage("view", State.NOW, text if reason in ("", "PodInitializing") else f"{text} ({reason})")


def _brokers(seen: Observed) -> Stage:
    ready = seen.status.get("readySize") or 0
    count = f"{ready} of {seen.size} ready"
    if seen.has_been_up or 0 < seen.size <= ready:
        return Stage("brokers", State.DONE, count)
    if seen.started_lead() is None:
        return Stage("brokers", State.LATER, "after the lead has started")
    if seen.reason == "BrokersNotReady" and seen.message:
        return Stage("brokers", State.NOW, f"{count}; {seen.message}")
    # Until all have started, the stage of the pods shows it.
    if _started(seen) >= seen.size and (trouble := _trouble(seen)):
        return Stage("brokers", State.STUCK, f"{count}; {trouble}")
    return Stage("brokers", State.NOW, count)


def _quorum(seen: Observed) -> Stage:
    match seen.quorum:
        case None:
            needed = "as many brokers as `size` was at the start"
        case 1:
            needed = "1 broker"
        case quorum:
            needed = f"{quorum} brokers"
    if seen.has_been_up:
        what = "the job starts" if seen.runs_program else "the instance is up"
        return Stage("quorum", State.DONE, f"{needed}: {what}")
    if seen.started_lead() is None:
        return Stage("quorum", State.LATER, f"needed: {needed}")
    ready = seen.status.get("readySize") or 0
    return Stage("quorum", State.NOW, f"{ready} ready; needed: {needed}")

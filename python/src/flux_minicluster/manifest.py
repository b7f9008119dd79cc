"""Makes the MiniCluster that is created. Pure."""

from __future__ import annotations

import copy
import operator
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, SupportsIndex

import yaml

from .errors import Invalid, Problem
from .models import MiniClusterSpec
from .observed import GROUP, VERSION, runs_program
from .words import join

Spec = MiniClusterSpec | Mapping[str, Any]


@dataclass(frozen=True)
class Wanted:
    """What the caller asked for. None: as in the document, or the default."""

    image: str | None = None
    command: Sequence[str] = ()
    size: SupportsIndex | None = None
    tasks: SupportsIndex | None = None
    name: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    verbose: bool = False
    document: Mapping[str, Any] | None = None


def build(wanted: Wanted, random: str) -> dict[str, Any]:
    """The MiniCluster. `random`: lower-case letters for a generated name, which keeps its `generateName`."""
    if isinstance(wanted.command, str):
        raise TypeError("command: a list of words is needed, as for subprocess.run. No shell splits a text")
    document = copy.deepcopy(dict(wanted.document)) if wanted.document is not None else from_spec({})
    metadata = document.setdefault("metadata", {})
    prefix = metadata.pop("generateName", None) or "run-"
    metadata["name"] = wanted.name or metadata.get("name")
    if not metadata["name"]:
        metadata.update(name=f"{prefix}{random}", generateName=prefix)
    metadata["labels"] = {**(metadata.get("labels") or {}), **wanted.labels}
    spec = document.setdefault("spec", {})
    if wanted.size is not None:
        spec["size"] = operator.index(wanted.size)
    if wanted.tasks is not None:
        spec["tasks"] = operator.index(wanted.tasks)
    runner = _runner(spec)
    if wanted.image is not None:
        runner["image"] = wanted.image
    if wanted.environment:
        runner["environment"] = {**(runner.get("environment") or {}), **wanted.environment}
        # A variable can have one source only.
        for name in wanted.environment:
            (runner.get("secrets") or {}).pop(name, None)
    if wanted.command:
        runner["command"] = join(wanted.command)
        # These fields of the document would replace the command, or change how it runs.
        runner.pop("batch", None)
        runner.pop("batchRaw", None)
        runner.pop("diagnostics", None)
        spec.pop("interactive", None)
        if runner.get("commands"):
            runner["commands"].pop("script", None)
    # Without a program, the agent's and Flux's lines are the only output. The spec's own `logging` takes precedence.
    if runs_program(spec) and not wanted.verbose and spec.get("logging") is None:
        spec["logging"] = {"quiet": True}
    return document


def _runner(spec: dict[str, Any]) -> dict[str, Any]:
    """The container whose program is the job."""
    containers = spec["containers"] = spec.get("containers") or [{}]
    runners = [it for it in containers if it.get("runFlux")] or (containers if len(containers) == 1 else [])
    if len(runners) != 1:
        raise Invalid([Problem("spec.containers", "exactly one needs runFlux: true")])
    runner: dict[str, Any] = runners[0]
    return runner


def keep(document: dict[str, Any]) -> None:
    """Switches off what would delete the MiniCluster or its pods when the job has ended."""
    spec = document["spec"]
    for name in ("cleanup", "cleanupPods", "cleanupMiniCluster", "ttlSecondsAfterFinished"):
        spec.pop(name, None)
    if str(document.get("apiVersion", "")).endswith("/v1alpha1"):
        # v1alpha1 deletes the pods by default.
        spec["cleanup"] = False


def from_spec(spec: Spec) -> dict[str, Any]:
    """A document with this spec. Default: `size` 1, `tasks` 0 (one per pod). A whole MiniCluster stays as it is."""
    plain = spec.model_dump(by_alias=True, exclude_unset=True) if isinstance(spec, MiniClusterSpec) else dict(spec)
    if plain.keys() & {"apiVersion", "kind", "spec"}:
        return plain
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": "MiniCluster", "spec": {"size": 1, "tasks": 0, **plain}}


def from_text(text: str, source: str, stacklevel: int = 1) -> dict[str, Any]:
    """The first MiniCluster of a file. A warning tells of others; `stacklevel`: as of `warnings.warn`."""
    try:
        documents = list(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        raise Invalid([Problem(source, f"is not YAML: {error}")]) from error
    items = [item for document in documents for item in _items(document)]
    found = [item for item in items if isinstance(item, dict) and item.get("kind") == "MiniCluster"]
    if not found:
        raise Invalid([Problem(source, "has no object of kind MiniCluster")])
    if len(found) > 1:
        name = (found[0].get("metadata") or {}).get("name") or "without a name"
        message = f"{source} has {len(found)} MiniClusters: only the first one, {name}, is used"
        warnings.warn(message, stacklevel=stacklevel + 1)
    return found[0]


def _items(document: Any) -> list[Any]:
    """The items of a List, as `kubectl get -o yaml` prints it, or the document itself."""
    if isinstance(document, dict) and str(document.get("kind")).endswith("List"):
        items = document.get("items")
        if isinstance(items, list):
            return items
    return [document]

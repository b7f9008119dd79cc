"""Flux instances in Kubernetes, from Python.

from flux_minicluster import MiniCluster

result = MiniCluster.run("rockylinux:9", ["hostname"], size=4, tasks=4)
print(result.exit_code, result.reason, result.stdout)
"""

from . import models
from .cluster import MiniCluster
from .errors import (
    CallFailed,
    Invalid,
    JobFailed,
    Lost,
    MiniClusterError,
    NameTaken,
    NotAllowed,
    NotFound,
    NotStarted,
    OperatorMissing,
    Problem,
    Queued,
    Stopped,
    TimedOut,
    Unschedulable,
)
from .executor import FluxExecutor, TaskFailed, TaskFuture, TaskResult
from .report import Report, Usage
from .result import Result

__all__ = [
    "CallFailed",
    "FluxExecutor",
    "Invalid",
    "JobFailed",
    "Lost",
    "MiniCluster",
    "MiniClusterError",
    "NameTaken",
    "NotAllowed",
    "NotFound",
    "NotStarted",
    "OperatorMissing",
    "Problem",
    "Queued",
    "Report",
    "Result",
    "Stopped",
    "TaskFailed",
    "TaskFuture",
    "TaskResult",
    "TimedOut",
    "Unschedulable",
    "Usage",
    "models",
]

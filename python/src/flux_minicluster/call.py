"""Python functions as jobs. Pure; `RUNNER` is the program that a job runs, in the Python of the pod's image."""

from __future__ import annotations

import base64
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

FILE = "call"

# Reads the call from a file that Flux puts beside the job, and writes what it returned to standard output. What the
# function itself prints goes to standard error. Modules of the working directory are for the function only.
RUNNER = """\
import os, sys
paths = sys.path[:]
sys.path[:] = [path for path in paths if path not in ("", os.getcwd())]
import base64, pickle, traceback
try:
    from cloudpickle import dumps
except ImportError:
    from pickle import dumps
sys.path[:] = paths
output = os.dup(1)
os.dup2(2, 1)
path = os.path.join(os.environ["FLUX_JOB_TMPDIR"], "call")
with open(path, "rb") as file:
    data = file.read()
try:
    function, args, kwargs = pickle.loads(data)
    answer = (True, function(*args, **kwargs))
except BaseException as error:
    traceback.print_exc()
    answer = (False, error)
try:
    data = dumps(answer)
except BaseException as error:
    what = "what the function returned"
    if not answer[0]:
        what = "".join(traceback.format_exception_only(type(answer[1]), answer[1])).strip()
    data = pickle.dumps((False, TypeError("cannot send back %s: %s" % (what, error))))
data = base64.b64encode(data)
sys.stdout.flush()
while data:
    data = data[os.write(output, data):]
"""


def pack(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The call as text."""
    return base64.b64encode(_pickler().dumps((function, tuple(args), dict(kwargs)))).decode("ascii")


def _pickler() -> Any:
    """cloudpickle, which sends functions of notebooks and scripts by value; else pickle, which only names them."""
    try:
        import cloudpickle
    except ImportError:
        return pickle
    return cloudpickle


def unpack(stdout: bytes) -> tuple[bool, Any]:
    """Whether the function returned, and what it returned or raised."""
    is_returned, value = pickle.loads(base64.b64decode(stdout))
    return bool(is_returned), value


def python() -> str:
    """The usual name of this version of Python: a function is sent as this version's code."""
    return f"python{sys.version_info.major}.{sys.version_info.minor}"

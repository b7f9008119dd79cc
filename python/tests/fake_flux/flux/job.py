"""Jobs of the fake instance."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from flux import PLACE, Flux, Future, read

_requests = itertools.count()


class JobspecV1:
    def __init__(self, jobspec: Any) -> None:
        self.jobspec = jobspec

    @classmethod
    def from_command(
        cls,
        command: Any,
        num_tasks: int,
        num_nodes: Any,
        cores_per_task: int,
        gpus_per_task: Any,
        exclusive: bool,
    ) -> JobspecV1:
        assert gpus_per_task is None or gpus_per_task > 0
        if num_nodes is not None and num_nodes > num_tasks:
            raise ValueError("node count must not be greater than task count")
        resources = [num_tasks, num_nodes, cores_per_task, gpus_per_task, exclusive]
        return cls({"tasks": [{"command": command}], "resources": resources, "attributes": {"system": {}}})

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "jobspec":
            super().__setattr__(name, value)
        else:
            assert name in ("environment", "cwd", "duration")
            self.jobspec["attributes"]["system"][name] = value

    def dumps(self) -> str:
        return json.dumps(self.jobspec)


def submit_async(handle: Flux, jobspec: str, novalidate: bool) -> Future:
    assert novalidate
    if (PLACE / "state").read_text() != "run":
        return Future(handle, lambda: OSError(38, "No service matching job-ingest.submit is registered"))
    if not (PLACE / "delay").exists():
        number = create(jobspec)
        return Future(handle, lambda: number)
    return submit_later(handle, jobspec, float((PLACE / "delay").read_text()))


def submit_later(handle: Flux, jobspec: str, seconds: float) -> Future:
    """As a busy broker: another process makes the job, even if the helper has ended."""
    answer = PLACE / f"answer-{os.getpid()}-{next(_requests)}"
    if os.fork() == 0:
        os.setsid()
        os.closerange(0, 256)
        for _ in range(3):
            os.open(os.devnull, os.O_RDWR)
        with (PLACE / "requests").open("a") as requests:
            requests.write("x")
        time.sleep(seconds)
        new = answer.with_name(f"new-{answer.name}")
        new.write_text(str(create(jobspec)))
        new.rename(answer)
        os._exit(0)
    return Future(handle, lambda: read(answer))


def create(jobspec: str) -> int:
    """Makes the job with the next number, and starts it."""
    new = PLACE / f"new-{os.getpid()}"
    new.mkdir()
    (new / "jobspec").write_text(jobspec)
    (PLACE / "jobs").mkdir(exist_ok=True)
    while True:
        number = len(list((PLACE / "jobs").iterdir())) + 1
        folder = PLACE / "jobs" / str(number)
        # Another process may be making a job of this number.
        with contextlib.suppress(OSError):
            new.rename(folder)
            break
    if json.loads(jobspec)["resources"][0] > 1000:
        error = {"exception_occurred": True, "exception_type": "alloc", "exception_note": "unsatisfiable request"}
        (folder / "result").write_text(json.dumps(error))
    else:
        subprocess.Popen([sys.executable, __file__, str(folder)], start_new_session=True)
    return number


def result_async(handle: Flux, jobid: int) -> Future:
    return Future(handle, lambda: read(PLACE / "jobs" / str(jobid) / "result"))


def cancel_async(handle: Flux, jobid: int, reason: str) -> None:
    folder = PLACE / "jobs" / str(jobid)
    while not (folder / "pid").exists():
        if (folder / "result").exists():
            return
        time.sleep(0.005)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(read(folder / "pid"), signal.SIGTERM)


def main(folder: Path) -> None:
    """Runs a job to its end, in a process that outlives the helper that submitted it."""
    spec = json.loads((folder / "jobspec").read_text())
    system = spec["attributes"]["system"]
    for name, file in system.get("files", {}).items():
        assert file["encoding"] == "base64" and file["mode"] == 0o100600
        (folder / name).write_bytes(base64.b64decode(file["data"]))
    environment = {**system["environment"], "FLUX_JOB_TMPDIR": str(folder)}
    try:
        process = subprocess.Popen(
            spec["tasks"][0]["command"],
            env=environment,
            cwd=system["cwd"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError:
        finish(folder, {"waitstatus": 127 << 8}, {})
        return
    (folder / "pid.new").write_text(str(process.pid))
    (folder / "pid.new").rename(folder / "pid")
    stdout, stderr = process.communicate()
    code = process.returncode
    status = -code if code < 0 else code << 8
    finish(folder, {"waitstatus": status, "exception_occurred": False}, {"stdout": stdout, "stderr": stderr})


def finish(folder: Path, result: Any, streams: dict[str, bytes]) -> None:
    events: list[Any] = [{"timestamp": 1.0, "name": "header", "context": {"version": 1}}]
    for stream, data in streams.items():
        context: dict[str, Any] = {"stream": stream, "rank": "0"}
        try:
            context["data"] = data.decode()
        except UnicodeDecodeError:
            context.update(data=base64.b64encode(data).decode(), encoding="base64")
        events += [{"timestamp": 1.0, "name": "data", "context": context}] if data else []
        events.append({"timestamp": 1.0, "name": "data", "context": {"stream": stream, "rank": "0", "eof": True}})
    (folder / "output").write_text("".join(json.dumps(event, ensure_ascii=False) + "\n" for event in events))
    (folder / "result.new").write_text(json.dumps(result))
    (folder / "result.new").rename(folder / "result")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""A fake of Flux's Python module, for the helper: an instance is a folder, `$FAKE_FLUX`, and a job a process.

It has the calls and the shapes of flux-core 0.88 that the helper uses, and no others. Jobs outlive the helper that
submitted them, as in Flux. `make test-python-flux` runs the same tests with Flux itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import time
from pathlib import Path
from typing import Any

PLACE = Path(os.environ["FAKE_FLUX"])


class Future:
    def __init__(self, handle: Flux, ready: Any) -> None:
        self._ready, self._value = ready, None
        self._handle = handle
        self._callback: Any = None

    def then(self, callback: Any, *args: Any) -> None:
        self._callback = lambda: callback(self, *args)
        self._handle.futures.append(self)

    def poll(self) -> bool:
        self._value = self._ready()
        return self._value is not None

    def get(self) -> Any:
        while not self.poll():
            time.sleep(0.005)
        if isinstance(self._value, OSError):
            raise self._value
        return self._value

    get_id = get_dict = get


class Flux:
    def __init__(self) -> None:
        if not (PLACE / "socket").exists():
            raise OSError(2, "No such file or directory")
        self.futures: list[Future] = []
        self._watchers: dict[int, Any] = {}

    def attr_get(self, name: str) -> str:
        assert name == "rundir"
        return str(PLACE)

    def fd_watcher_create(self, fd: int, callback: Any, events: int) -> Any:
        assert events == 1
        handle = self

        class Watcher:
            def start(self) -> None:
                handle._watchers[fd] = lambda: callback(handle, self, fd, events, None)

        return Watcher()

    def reactor_run(self) -> None:
        while True:
            for fd in select.select(list(self._watchers), [], [], 0.005)[0]:
                # Flux's reactor also goes on after a callback that exits.
                with contextlib.suppress(SystemExit):
                    self._watchers[fd]()
            waiting, self.futures = self.futures, []
            for future in waiting:
                if future.poll():
                    future._callback()
                else:
                    self.futures.append(future)

    def rpc(self, topic: str, payload: Any = None) -> Future:
        def lookup() -> Any:
            name = {"jobspec": "jobspec", "guest.output": "output"}[payload["keys"][0]]
            path = PLACE / "jobs" / str(payload["id"]) / name
            return {payload["keys"][0]: path.read_text()} if path.exists() else OSError(2, "No such file or directory")

        def listed() -> Any:
            return {"jobs": [{"id": int(it.name)} for it in (PLACE / "jobs").iterdir()]}

        def state() -> Any:
            return {"state": (PLACE / "state").read_text(), "duration": 1.0}

        answers = {"job-info.lookup": lookup, "job-list.list": listed, "state-machine.get": state}
        return Future(self, answers[topic])


def read(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None

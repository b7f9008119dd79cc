"""Flux instances on this machine: a fake one, and with FLUX=/path/bin/flux a real one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Protocol

from waiting import until

FAKE_FLUX = Path(__file__).parent / "fake_flux"


class Instance(Protocol):
    """Where jobs run."""

    def flux_python(self) -> list[str]:
        """The words that run as `flux python` in the instance."""

    def jobs(self) -> int:
        """How many jobs were ever submitted."""

    def running(self) -> int:
        """How many jobs run now."""

    def finish_start(self) -> None:
        """Ends rc1, which loads the modules that accept jobs."""

    def close(self) -> None: ...


class FakeInstance:
    def __init__(self, folder: Path, *, is_starting: bool = False) -> None:
        self.folder = folder
        (folder / "jobs").mkdir()
        (folder / "state").write_text("init" if is_starting else "run")
        (folder / "socket").touch()

    def flux_python(self) -> list[str]:
        return ["env", f"PYTHONPATH={FAKE_FLUX}", f"FAKE_FLUX={self.folder}", sys.executable]

    def jobs(self) -> int:
        return len(list((self.folder / "jobs").iterdir()))

    def running(self) -> int:
        begun = [it for it in (self.folder / "jobs").iterdir() if (it / "pid").exists()]
        return sum(not (it / "result").exists() for it in begun)

    def finish_start(self) -> None:
        (self.folder / "state").write_text("run")

    def close(self) -> None:
        (self.folder / "socket").unlink(missing_ok=True)


class RealInstance:
    def __init__(self, flux: str, folder: Path, *, is_starting: bool = False) -> None:
        self.program = flux
        self._uri = f"local://{folder}/local"
        self._rc1 = folder / "rc1"
        rc1 = f"while ! test -e {self._rc1}; do sleep 0.1; done; flux modprobe rc1"
        options = ["--test-size=1", f"-Slocal-uri={self._uri}", f"-Sbroker.rc1_path={rc1}"]
        self._broker = subprocess.Popen(
            [flux, "start", *options, "sh", "-c", "echo up; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if is_starting:
            until((folder / "local").exists)
        else:
            self.finish_start()

    def finish_start(self) -> None:
        assert self._broker.stdout is not None
        self._rc1.touch()
        assert self._broker.stdout.readline() == "up\n", "the instance did not start, see above"

    def flux(self, *words: str) -> str:
        environment = {**os.environ, "FLUX_URI": self._uri}
        return subprocess.run(
            [self.program, *words], env=environment, capture_output=True, text=True, check=True
        ).stdout

    def flux_python(self) -> list[str]:
        # Jobs must not inherit the PYTHONPATH that `.ci/python` sets for these tests.
        return ["env", "--unset=PYTHONPATH", f"FLUX_URI={self._uri}", self.program, "python"]

    def jobs(self) -> int:
        return len(self.flux("jobs", "-a", "-n", "-o", "{id}", "-c", "0").splitlines())

    def running(self) -> int:
        return len(self.flux("jobs", "-n", "-o", "{id}", "-f", "running").splitlines())

    def close(self) -> None:
        assert self._broker.stdin is not None
        self._broker.stdin.close()
        self._broker.wait(60)

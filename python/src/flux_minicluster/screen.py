"""Where progress and output go: a terminal, a notebook, a pipe, or nowhere."""

from __future__ import annotations

import codecs
import html
import os
import re
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, TextIO

from .progress import Stage, State
from .text import printable

# In a pipe, the shortest time between two lines of a stage whose state has not changed.
PAUSE_SECONDS = 2.0


class Screen(Protocol):
    """Shows the stages of a start, lines that stay, and the job's output."""

    def show(self, stages: Sequence[Stage]) -> None: ...

    def say(self, text: str) -> None: ...

    def put(self, data: bytes) -> None: ...

    def end(self) -> None:
        """Stages are not shown any more. A terminal removes their lines."""


class Silent:
    """Shows nothing."""

    def show(self, stages: Sequence[Stage]) -> None:
        pass

    def say(self, text: str) -> None:
        pass

    def put(self, data: bytes) -> None:
        pass

    def end(self) -> None:
        pass


class Output:
    """The job's output, on standard output as text."""

    def __init__(self, is_shown: bool) -> None:
        self._is_shown = is_shown
        self._has_line_ended = True
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def put(self, data: bytes) -> None:
        if self._is_shown:
            _write(sys.stdout, self._decoder.decode(data))
            sys.stdout.flush()
            self._has_line_ended = data.endswith(b"\n") if data else self._has_line_ended

    def end_line(self) -> None:
        """Before a message: ends the output's line, if standard error is the same file (`2>&1`, a terminal)."""
        if not self._has_line_ended and _is_one_file():
            sys.stdout.write("\n")
            sys.stdout.flush()
            self._has_line_ended = True


class _Progress:
    """Shows the stages until all are done."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._is_over = False

    def show(self, stages: Sequence[Stage]) -> None:
        if self._is_over:
            return
        # Parts of the texts may be from the cluster. Each stage has one line.
        self._draw([replace(stage, text=re.sub(r"[\n\t]", " ", printable(stage.text))) for stage in stages])
        if all(stage.state is State.DONE for stage in stages):
            self.end()

    def say(self, text: str) -> None:
        self._output.end_line()
        _write(sys.stderr, f"{printable(text)}\n")
        sys.stderr.flush()

    def put(self, data: bytes) -> None:
        self._output.put(data)

    def end(self) -> None:
        self._is_over = True

    def _draw(self, stages: Sequence[Stage]) -> None:
        raise NotImplementedError


class Lines(_Progress):
    """One line for each change of a stage, on standard error."""

    def __init__(self, output: Output) -> None:
        super().__init__(output)
        self._printed: dict[str, tuple[Stage, float]] = {}

    def _draw(self, stages: Sequence[Stage]) -> None:
        for stage in stages:
            before, at = self._printed.get(stage.name, (None, 0.0))
            is_new = before is None or before.state != stage.state
            is_changed = before != stage and time.monotonic() - at >= PAUSE_SECONDS
            if stage.state is not State.LATER and (is_new or is_changed):
                self._printed[stage.name] = (stage, time.monotonic())
                self.say(f"{stage.name}: {stage.text}")


class Terminal(_Progress):
    """Four lines on standard error that change in place."""

    def __init__(self, output: Output) -> None:
        super().__init__(output)
        self._height = 0

    def say(self, text: str) -> None:
        self._clear()
        super().say(text)

    def end(self) -> None:
        self._clear()
        super().end()

    def _draw(self, stages: Sequence[Stage]) -> None:
        self._clear()
        for stage in stages:
            # Longer lines would wrap, and a wrapped line cannot be removed.
            _write(sys.stderr, f"{str(stage)[: _width() - 1]}\n")
        sys.stderr.flush()
        self._height = len(stages)

    def _clear(self) -> None:
        if self._height:
            sys.stderr.write(f"\x1b[{self._height}F\x1b[J")
            sys.stderr.flush()
            self._height = 0


class Notebook(_Progress):
    """A block below the cell that changes in place."""

    def __init__(self, output: Output) -> None:
        super().__init__(output)
        self._handle: Any = None

    def _draw(self, stages: Sequence[Stage]) -> None:
        from IPython.display import HTML, display

        shown = HTML(f"<pre>{html.escape(chr(10).join(map(str, stages)))}</pre>")
        if self._handle is None:
            self._handle = display(shown, display_id=True)
        else:
            self._handle.update(shown)


def choose(*, has_progress: bool | None, has_output: bool) -> Screen:
    """The screen that suits this program. `has_progress` None: yes."""
    output = Output(has_output)
    if has_progress is False and not has_output:
        return Silent()
    if has_progress is False:
        return _OutputOnly(output)
    if _is_notebook():
        return Notebook(output)
    return Terminal(output) if sys.stderr.isatty() else Lines(output)


class _OutputOnly(Silent):
    def __init__(self, output: Output) -> None:
        self._output = output

    def put(self, data: bytes) -> None:
        self._output.put(data)


def _write(stream: TextIO, text: str) -> None:
    """Writes a job's text or a message. What the stream cannot encode becomes `?`: it must not end the job."""
    try:
        stream.write(text)
    except UnicodeEncodeError:
        encoding = getattr(stream, "encoding", None) or "ascii"
        stream.write(text.encode(encoding, "replace").decode(encoding))


def _is_one_file() -> bool:
    try:
        return os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
    except (AttributeError, OSError, ValueError):
        # A notebook's streams, for example, are no files.
        return False


def _is_notebook() -> bool:
    shell = sys.modules.get("IPython")
    instance = shell.get_ipython() if shell is not None else None
    return instance is not None and "IPKernelApp" in getattr(instance, "config", {})


def _width() -> int:
    return shutil.get_terminal_size().columns

"""Resumes a log where its connection broke: no line twice, none left out. Pure.

The API server is asked for lines with their times, from a given second on. Lines that were seen are skipped.
"""

from __future__ import annotations

import re
from datetime import datetime, timezone

from .observed import time_of

# A time as the kubelet writes it, in the zone of its node. Compared as (second since 1970, fraction): the zone's offset
# changes when clocks go back, and the fraction has a varying number of digits.
_TIME = re.compile(rb"(\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2})(\.\d+)?(Z|[+-]\d{2}:\d{2})")
_HEAD_MAX = 64  # bytes in which the time of a line must end; a time has 35 at most
# Most bytes of a message that are kept.
_MESSAGE_MAX = 1024
_Time = tuple[int, bytes]


class Resume:
    """How far a log has been read. Bytes with timestamps go in, bytes without come out."""

    def __init__(self) -> None:
        self._latest: _Time | None = None
        # The last line that was read: how many lines up to it have the latest time, and how many lines have come after
        # the last of these. A time is not enough: lines can have the same one, and lines of standard output and
        # standard error need not be in the order of their times.
        self._last_line = (0, 0)
        # The earliest time of the last line with the latest time and of those after it. The next connection asks for
        # the log from there.
        self._earliest: _Time | None = None
        # How many bytes of the last line were read.
        self._column = 0
        # The last line that this connection has repeated.
        self._repeated = (0, 0)
        # This connection has sent nothing new yet, only lines of earlier connections.
        self._is_behind = False
        # Nothing of this log has been read.
        self._is_new_log = True
        # This connection has repeated the last line.
        self._is_last_found = False
        # Lines are missing.
        self._has_gap = False
        # The part of a line's time that was read; None after the time.
        self._head: bytes | None = b""
        # How many more bytes of this line to skip; None: the whole line.
        self._skip: int | None = 0
        # The lines without a time at the end of what this connection has sent.
        self._message: bytes | None = None

    def connect(self) -> str | None:
        """Begins a new connection; returns the second from which on to ask for the log."""
        self._head, self._repeated, self._is_behind = b"", (0, 0), self._latest is not None
        self._is_last_found, self._message = False, None
        if self._earliest is None:
            return None
        return datetime.fromtimestamp(self._earliest[0], timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")

    def begin_log(self) -> None:
        """From now on a log is read that does not repeat the earlier lines.

        It is that of the pod's next container, or a log that was read whole was rotated. The last read may have
        returned the first lines of the next container already. So the position is kept.
        """
        self._is_new_log = True

    def message(self) -> str:
        """The message of the kubelet with which this connection ended; empty: none.

        It says why the kubelet cannot read the log, or cannot follow it after its last line. It has no time.
        """
        return (self._message or b"").decode(errors="replace").strip()

    def end(self) -> bool:
        """Whether lines are missing, for example after a rotation of the log. Call it at the end of a connection."""
        has_gap = self._has_gap or (self._is_behind and not self._is_last_found and not self._is_new_log)
        self._has_gap = False
        return has_gap

    def feed(self, data: bytes) -> bytes:
        """The new bytes, without times."""
        new = bytearray()
        while data:
            if self._head is None:
                end = data.find(b"\n") + 1 or len(data)
                self._within_line(data[:end], new)
                data = data[end:]
                continue
            end = next((index for index, byte in enumerate(data) if byte in b" \n"), len(data))
            end = min(end, _HEAD_MAX - len(self._head))
            self._head += data[:end]
            data = data[end:]
            if data:
                data = self._begin_line(data, new)
        return bytes(new)

    def _begin_line(self, data: bytes, new: bytearray) -> bytes:
        head, self._head = self._head or b"", None
        time = _time(head)
        if time is None:
            # A message of the kubelet; or, if lines follow, the rest of a line whose first part is older than the
            # requested time.
            self._message, self._skip = self._message or b"", None
            return head + data
        self._message = None
        self._locate_line(time)
        return data[1:] if data[:1] == b" " else data

    def _locate_line(self, time: _Time) -> None:
        """Decides from a line's time whether the line is new, and so how much of it to skip."""
        if self._is_behind and self._latest is not None and time <= self._latest:
            self._repeated = self._next(self._repeated, time)
            is_last = self._repeated == self._last_line
            self._is_last_found = self._is_last_found or is_last
            self._skip = self._column if is_last else None
            return
        # If a new line comes before the last one was repeated, the lines between them are missing.
        self._has_gap |= self._is_behind and not self._is_last_found and not self._is_new_log
        self._is_behind = self._is_new_log = False
        if self._latest is None or time > self._latest:
            self._latest, self._last_line = time, (0, 0)
        self._last_line = self._next(self._last_line, time)
        self._earliest = time if self._earliest is None or time == self._latest else min(self._earliest, time)
        self._column = self._skip = 0

    def _next(self, place: tuple[int, int], time: _Time) -> tuple[int, int]:
        """The position of the next line, which has this time."""
        return (place[0] + 1, 0) if time == self._latest else (place[0], place[1] + 1)

    def _within_line(self, part: bytes, new: bytearray) -> None:
        """`part` is the rest of a line, or a piece of it without its end."""
        if self._skip is not None:
            fresh = part[self._skip :]
            self._skip = max(self._skip - len(part), 0)
            new += fresh
            self._column += len(fresh)
        elif self._message is not None:
            self._message = (self._message + part)[:_MESSAGE_MAX]
        if part.endswith(b"\n"):
            self._head = b""
            # This was the rest of the last line, so the next line is new, even with the same time.
            if self._skip is not None:
                self._is_behind = False


def _time(head: bytes) -> _Time | None:
    found = _TIME.fullmatch(head)
    if found is None:
        return None
    second, fraction, zone = found.groups()
    try:
        moment = time_of((second + zone).decode())
    except ValueError:
        return None
    return int(moment.timestamp()), (fraction or b".").ljust(10, b"0")  # the point and nine digits

"""Resumes a log where its connection broke: no line twice, none left out. Pure.

The API server is asked for lines with their times, from a given second on. Lines that were seen are skipped.
"""

from __future__ import annotations

import re

# A time as the kubelet writes it. Compared as (second, fraction): the fraction has a varying number of digits.
_TIME = re.compile(rb"(\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2})(\.\d+)?(Z|[+-]\d{2}:\d{2})")
_HEAD_MAX = 64
_Time = tuple[bytes, bytes]


class Resume:
    """How far a log has been read. Bytes with timestamps go in, bytes without come out."""

    def __init__(self) -> None:
        self._last: _Time | None = None
        self._zone = b"Z"
        self._lines_at_last = 0
        # Bytes of the last line that have come.
        self._column = 0
        # In this connection: lines with the latest time that have come again.
        self._passed = 0
        self._is_behind = False
        # Nothing of this container's log has been read.
        self._is_new_log = True
        self._is_last_found = False
        self._has_gap = False
        # The beginning of a line's time, as far as it has come; None within a line.
        self._head: bytes | None = b""
        # Bytes of this line that are still to be skipped; None to skip the whole line.
        self._skip: int | None = 0

    def connect(self) -> str | None:
        """Begins a new connection; returns the second from which on to ask for the log."""
        self._head, self._passed, self._is_behind = b"", 0, self._last is not None
        self._is_last_found = False
        return (self._last[0] + self._zone).decode() if self._last is not None else None

    def begin_container(self) -> None:
        """From now on the log of the pod's next container is read: the lines before are not in it."""
        self._is_new_log = True

    def end(self) -> bool:
        """After a connection whose end the API server has said: whether lines are missing, as after a rotation."""
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
            end = next((place for place, byte in enumerate(data) if byte in b" \n"), len(data))
            end = min(end, _HEAD_MAX - len(self._head))
            self._head += data[:end]
            data = data[end:]
            if data:
                data = self._begin_line(data, new)
        return bytes(new)

    def _begin_line(self, data: bytes, new: bytearray) -> bytes:
        head, self._head = self._head or b"", None
        time = _TIME.fullmatch(head)
        if time is None:
            # No time: the kubelet's own words, that it cannot read the log.
            self._skip = 0
            self._has_gap = True
            return head + data
        self._zone = time[3]
        self._at((time[1], (time[2] or b".").ljust(10, b"0")))
        return data[1:] if data[:1] == b" " else data

    def _at(self, time: _Time) -> None:
        if self._is_behind and self._last is not None and time <= self._last:
            self._passed += time == self._last
            is_last = time == self._last and self._passed == self._lines_at_last
            self._is_last_found = self._is_last_found or is_last
            self._skip = self._column if is_last else None
            return
        self._has_gap |= self._is_behind and not self._is_last_found and not self._is_new_log
        self._is_behind = self._is_new_log = False
        self._lines_at_last = self._lines_at_last + 1 if time == self._last else 1
        self._last, self._column, self._skip = time, 0, 0

    def _within_line(self, part: bytes, new: bytearray) -> None:
        """`part` is the rest of a line, or a piece of it without its end."""
        if self._skip is not None:
            fresh = part[self._skip :]
            self._skip = max(self._skip - len(part), 0)
            new += fresh
            self._column += len(fresh)
        if part.endswith(b"\n"):
            self._head = b""
            # The next line of this time is a new one.
            if self._skip is not None:
                self._is_behind = False

"""The text of `command` that the agent splits into exactly these words again. No shell reads it."""

from __future__ import annotations

import re
from collections.abc import Iterable

_PLAIN = re.compile(r"[A-Za-z0-9_\-./:=,+@%]+")


def join(words: Iterable[str]) -> str:
    """Quotes each word where it must be; a `$` in a word stays a `$`."""
    return " ".join(word if _PLAIN.fullmatch(word) else "'" + word.replace("'", r"'\''") + "'" for word in words)

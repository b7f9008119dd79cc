"""Text from the cluster, made safe for a terminal. Pure."""

from __future__ import annotations

# Control characters except line breaks and tabs.
_CODES = {code: "\N{REPLACEMENT CHARACTER}" for code in [*range(32), *range(127, 160)] if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    """The text without terminal codes: each control character except line breaks and tabs becomes U+FFFD.

    A job or a user of the cluster can choose the text, and codes would change or hide what a terminal shows.
    """
    return text.translate(_CODES)

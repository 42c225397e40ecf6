"""What messages to people have in common: near misses and a readable length."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_WORD_CHARS_MAX: Final = 100
_MESSAGE_CHARS_MAX: Final = 300


def near_miss(word: str, known: Iterable[str]) -> str:
    """Return the known word that was probably meant; empty = none comes near."""
    if len(word) > _WORD_CHARS_MAX:
        return ""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.7)
    return close[0] if close else ""


def clipped(message: str) -> str:
    """Cut a message that quotes too much of its text."""
    if len(message) <= _MESSAGE_CHARS_MAX:
        return message
    return message[:_MESSAGE_CHARS_MAX] + "..."

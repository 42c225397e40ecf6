"""Hints in error messages: near misses and a readable length."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_WORD_CHARS_MAX: Final = 100
_MESSAGE_CHARS_MAX: Final = 300


class PartFault(Exception):  # noqa: N818 - becomes a RouteFault with its place
    """The fault of a part of a route, and a hint."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def near_miss(word: str, known: Iterable[str], *, cutoff: float = 0.7) -> str:
    """Return the known word that was probably meant; empty = none is similar.

    Args:
        word: What was written.
        known: What could have been.
        cutoff: Least similarity, from 0 to 1 for equal words.
    """
    if len(word) > _WORD_CHARS_MAX:
        return ""
    from difflib import get_close_matches  # noqa: PLC0415 - loaded for a fault alone

    close = get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return close[0] if close else ""


def clipped(message: str) -> str:
    """Cut a message that quotes too much of its text."""
    if len(message) <= _MESSAGE_CHARS_MAX:
        return message
    return message[:_MESSAGE_CHARS_MAX] + "..."

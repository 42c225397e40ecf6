"""Numbers with what they count, for messages."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number and what it counts: `1 segment`, `2 segments`.

    Args:
        number: How many.
        noun: What one of them is called.
        plural: What others than one are called; absent = the noun with an s.
    """
    return f"{number} {noun if number == 1 else plural or noun + 's'}"

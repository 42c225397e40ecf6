"""Text as the route language sees it: sequences of UTF-16 code units, compared without a culture.

Pure functions on Python strings, which hold code points instead: text that fits in one unit per
character takes the short way, other text is looked at in UTF-16. Invariant: no function raises,
whatever the text holds, lone surrogates included.
"""

from __future__ import annotations

import re
from typing import Final

_FIRST_SURROGATE: Final = "\ud800"
_FIRST_ASTRAL: Final = "\U00010000"
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def length(text: str) -> int:
    """Count UTF-16 code units; an emoji counts 2."""
    if text.isascii() or max(text) < _FIRST_ASTRAL:
        return len(text)
    return len(text) + sum(character >= _FIRST_ASTRAL for character in text)


def units(text: str) -> bytes:
    """Give the code units, big-endian, so that bytes compare as the units do."""
    return text.encode("utf-16-be", "surrogatepass")


def from_units(raw: bytes) -> str:
    """Give the text of code units; half a pair stays a lone surrogate."""
    return raw.decode("utf-16-be", "surrogatepass")


def joined(text: str) -> str:
    """Join surrogates that meet, for example after a concatenation, into one character."""
    return text if text.isascii() or not _SURROGATE.search(text) else from_units(units(text))


def half_characters(text: str) -> bool:
    """Say whether `text` holds half of a surrogate pair, which no file and no topic can hold."""
    return not text.isascii() and _SURROGATE.search(joined(text)) is not None


def before(left: str, right: str) -> bool:
    """Say whether `left` sorts before `right` by code unit."""
    if _units_are_characters(left) and _units_are_characters(right):
        return left < right
    return units(left) < units(right)


def find(text: str, part: str) -> int:
    """Give the index, in code units, of the first `part` in `text`; -1 = absent."""
    if _units_are_characters(text):
        return text.find(part)
    haystack, needle = units(text), units(part)
    at = haystack.find(needle)
    while at % 2 == 1 and at != -1:
        at = haystack.find(needle, at + 1)
    return at if at == -1 else at // 2


def starts_with(text: str, part: str) -> bool:
    """Say whether `text` begins with `part`, by code unit."""
    if _units_are_characters(text):
        return text.startswith(part)
    return units(text).startswith(units(part))


def ends_with(text: str, part: str) -> bool:
    """Say whether `text` ends with `part`, by code unit."""
    if _units_are_characters(text):
        return text.endswith(part)
    return units(text).endswith(units(part))


def upper(text: str) -> str:
    """Raise letters one by one, without a culture; what has no single capital stays."""
    return text.upper() if text.isascii() else "".join(map(_upper_letter, text))


def lower(text: str) -> str:
    """Lower letters one by one, without a culture."""
    return text.lower() if text.isascii() else "".join(map(_lower_letter, text))


def fold(name: str) -> str:
    """Give the form under which names that differ in letter case only are the same."""
    return name.lower() if name.isascii() else upper(name)


def _units_are_characters(text: str) -> bool:
    return text.isascii() or max(text) < _FIRST_SURROGATE


def _upper_letter(letter: str) -> str:
    if letter == "ı":  # noqa: RUF001 - the dotless i is meant: no culture, so it has no capital
        return letter
    capital = letter.upper()
    if len(capital) == 1:
        return capital
    title = letter.title()
    return title if len(title) == 1 else letter


def _lower_letter(letter: str) -> str:
    small = letter.lower()
    return small if len(small) == 1 else letter

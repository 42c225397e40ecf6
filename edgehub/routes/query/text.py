"""Text as the route language sees it: sequences of UTF-16 code units, compared without a culture.

Pure functions on Python strings, which hold code points instead: text that fits in one unit per
character takes the short way, other text is looked at in UTF-16. Invariant: no function raises,
whatever the text holds, lone surrogates included.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

_FIRST_LOW: Final = "\udc00"
_FIRST_SURROGATE: Final = "\ud800"
_LAST_SURROGATE: Final = "\udfff"
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_LONE_SURROGATE: Final = re.compile(
    "[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]"
)
_PAIR: Final = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_TWO_UNITS: Final = re.compile("[\U00010000-\U0010ffff]")
_NO_SINGLE_CAPITAL: Final = re.compile(
    "([\u00df\u0131\u0149\u01f0\u0390\u03b0\u0587\u1e96-\u1e9a\u1f50\u1f52\u1f54\u1f56\u1f80-\u1faf\u1fb2-\u1fb4"
    "\u1fb6-\u1fb7\u1fbc\u1fc2-\u1fc4\u1fc6-\u1fc7\u1fcc\u1fd2-\u1fd3\u1fd6-\u1fd7\u1fe2-\u1fe4\u1fe6-\u1fe7"
    "\u1ff2-\u1ff4\u1ff6-\u1ff7\u1ffc\ufb00-\ufb06\ufb13-\ufb17]+)"
)
"""Letters that `str.upper` turns into several, and the dotless i."""


def one_unit_each(text: str) -> bool:
    """Return whether every character is one code unit, so that places are the same in both."""
    return text.isascii() or not _TWO_UNITS.search(text)


def length(text: str) -> int:
    """Count UTF-16 code units; an emoji counts 2."""
    return len(text) if one_unit_each(text) else len(units(text)) // 2


def units(text: str) -> bytes:
    """Return the code units, big-endian, so that bytes compare as the units do."""
    return text.encode("utf-16-be", "surrogatepass")


def from_units(raw: bytes) -> str:
    """Return the text of code units; half a pair stays a lone surrogate."""
    return raw.decode("utf-16-be", "surrogatepass")


def joined(text: str) -> str:
    """Join surrogates that meet, for example after a concatenation, into one character."""
    if text.isascii():
        return text
    return _PAIR.sub(lambda pair: from_units(units(pair.group())), text)


def has_surrogates(text: str) -> bool:
    """Return whether `text` holds surrogates, paired or not."""
    return not text.isascii() and _SURROGATE.search(text) is not None


def lone_surrogate_at(text: str) -> int | None:
    """Return where `text` holds half of a surrogate pair, which no file and no topic can hold."""
    found = None if text.isascii() else _LONE_SURROGATE.search(text)
    return None if found is None else found.start()


def before(left: str, right: str) -> bool:
    """Return whether `left` sorts before `right` by code unit."""
    if one_unit_each(left) and one_unit_each(right):
        return left < right
    # Only the first difference counts; halving finds it without a copy of both texts in units.
    same, end = 0, min(len(left), len(right))
    while same < end:
        middle = (same + end + 1) // 2
        if left[same:middle] == right[same:middle]:
            same = middle
        else:
            end = middle - 1
    # Two characters, since the first may be half of the other one.
    return units(left[same : same + 2]) < units(right[same : same + 2])


def find(text: str, part: str) -> int:
    """Return the index, in code units, of the first `part` in `text`; -1 = absent."""
    if one_unit_each(text):
        return text.find(part)
    if not _cuts_characters(part):
        at = text.find(part)
        return at if at == -1 else length(text[:at])
    return _split(text).find(_split(part))


def contains(text: str, part: str) -> bool:
    """Return whether `text` holds `part`, by code unit."""
    return part in text if not _cuts_characters(part) else find(text, part) >= 0


def starts_with(text: str, part: str) -> bool:
    """Return whether `text` begins with `part`, by code unit."""
    if not _cuts_characters(part):
        return text.startswith(part)
    return units(text[: 2 * len(part)]).startswith(units(part))


def ends_with(text: str, part: str) -> bool:
    """Return whether `text` ends with `part`, by code unit."""
    if not _cuts_characters(part):
        return text.endswith(part)
    return units(text[-2 * len(part) :]).endswith(units(part))


def upper(text: str) -> str:
    """Raise letters one by one, without a culture; what has no single capital stays."""
    if text.isascii() or not _NO_SINGLE_CAPITAL.search(text):
        return text.upper()
    parts = _NO_SINGLE_CAPITAL.split(text)
    parts[::2] = [part.upper() for part in parts[::2]]
    parts[1::2] = ["".join(map(_single_capital, part)) for part in parts[1::2]]
    return "".join(parts)


def lower(text: str) -> str:
    """Return the text in lower case, letter by letter, without a culture."""
    if text.isascii():
        return text.lower()
    # Python lowers a sigma by its place in the word, and makes two letters of an I with a dot.
    parts = text.replace("\u03a3", "\u03c3").split("İ")
    return "İ".join([part.lower() for part in parts])


def fold(name: str) -> str:
    """Return the form under which names that differ in letter case only are the same."""
    return name.lower() if name.isascii() else upper(name)


def _cuts_characters(part: str) -> bool:
    """Return whether a part may begin or end within a character of a text that holds it."""
    return not part.isascii() and (
        _FIRST_LOW <= part[0] <= _LAST_SURROGATE or _FIRST_SURROGATE <= part[-1] < _FIRST_LOW
    )


def _split(text: str) -> str:
    """Return the text with a character for each code unit."""
    return _TWO_UNITS.sub(lambda found: _halves(found[0]), text)


def _halves(character: str) -> str:
    high, low = divmod(ord(character) - 0x1_0000, 0x400)
    return chr(0xD800 + high) + chr(0xDC00 + low)


@cache
def _single_capital(letter: str) -> str:
    title = letter.title()
    return title if len(title) == 1 and letter != "ı" else letter  # noqa: RUF001 - the dotless i is meant

"""SmartREST lines of the cloud: fields in CSV, quoted by one rule.

Pure. Rules: docs/reference/entities.md.
"""

from __future__ import annotations

import re
from typing import Final

REASON_BYTES_MAX: Final = 500
OUTPUT_BYTES_MAX: Final = 15_000
"""The cloud takes 16 184 in a packet, with its topic and what quoting adds."""

CUT: Final = "..."
_SPECIAL: Final = re.compile(r'[",\r\n]')
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def line(*fields: str) -> bytes:
    """Write one line; a field is quoted when it holds a comma, a quote, CR or LF."""
    return ",".join([field(text) for text in fields]).encode("utf-8", "replace")


def field(text: str) -> str:
    """Write one field."""
    return quoted(text) if _SPECIAL.search(text) else text


def quoted(text: str) -> str:
    """Write one field between quotes; inner quotes are doubled."""
    return '"' + text.replace('"', '""') + '"'


def reason(text: str) -> str:
    """Return a reason of failure as a field: no control characters, at most 500 bytes."""
    return _plain(text)[:REASON_BYTES_MAX].decode("utf-8", "ignore")


def output(text: str) -> str:
    """Return the output of an operation as a field: cut with a mark if it is too long."""
    plain = _plain(text)
    # Each quote counts twice in the line.
    room = OUTPUT_BYTES_MAX - plain.count(b'"')
    if len(plain) <= room:
        return plain.decode()
    return plain[: max(0, room)].decode("utf-8", "ignore") + CUT


def _plain(text: str) -> bytes:
    return _CONTROL.sub("", text).encode("utf-8", "replace")

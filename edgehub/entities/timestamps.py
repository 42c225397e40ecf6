"""Times of local messages: RFC 3339 texts and unix seconds, written in the form of the cloud.

Pure. Output has `Z` for UTC, another offset as given, and a fraction without zeros at its end.
Rules: docs/reference/entities.md.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from edgehub.entities.faults import MappingError

_FORM: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:\d\d)(?:\.(\d+))?(?:[Zz]|([+-])(\d\d):?(\d\d))",
    re.ASCII,
)
_NO_COLON: Final = re.compile(r"[+-]\d{4}", re.ASCII)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FRACTION_DIGITS: Final = 9
_HOURS: Final = 24
_MINUTES: Final = 60


def write_time(value: Any, now_ms: int) -> str:
    """Return the time of a message.

    Args:
        value: Its `time`: RFC 3339 text, unix seconds with or without fraction, None = it has none.
        now_ms: UTC of its arrival in milliseconds since 1970.

    Raises:
        MappingError: If it is none of these.
    """
    if value is None:
        return _write_unix(now_ms)
    if isinstance(value, str):
        if _NO_COLON.fullmatch(value[-5:]):
            raise _fault(value)
        return read_rfc3339(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return _write_unix(round(value * 1000))
        except (OverflowError, ValueError):
            raise _fault(value) from None
    raise _fault(value)


def read_rfc3339(text: str) -> str:
    """Check an RFC 3339 time and return its plain form; the offset may lack its colon.

    Raises:
        MappingError: If it is none, or has no offset.
    """
    found = _FORM.fullmatch(text)
    if found is None:
        raise _fault(text)
    date, time, fraction, sign, hours, minutes = found.groups()
    moment = f"{date}T{time}"
    try:
        datetime.fromisoformat(moment)
    except ValueError:
        raise _fault(text) from None
    if fraction is not None:
        digits = fraction[:_FRACTION_DIGITS].rstrip("0")
        if digits:
            moment = f"{moment}.{digits}"
    if sign is None or (hours == "00" and minutes == "00"):
        return f"{moment}Z"
    if int(hours) >= _HOURS or int(minutes) >= _MINUTES:
        raise _fault(text)
    return f"{moment}{sign}{hours}:{minutes}"


def _write_unix(unix_ms: int) -> str:
    moment = (_EPOCH + timedelta(milliseconds=unix_ms)).isoformat()
    base = moment[:19]
    digits = moment[20:23].rstrip("0") if moment[19] == "." else ""
    return f"{base}.{digits}Z" if digits else f"{base}Z"


def _fault(value: Any) -> MappingError:
    return MappingError(
        f"time `{value}` is neither RFC 3339 with an offset, such as 2026-02-03T04:05:06Z,"
        " nor unix seconds"
    )

"""The JSON body of a message as conditions see it.

Owns decoding (once per message, on first use) and walking a path. Invariant: a body that is not a
JSON object in a known encoding makes every body value undefined and never raises, however large,
deep or broken it is. The event loop waits while a body is read, so one of too many parts is not.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import orjson

from edgehub.routes.query.values import UNDEFINED, Value, defined

if TYPE_CHECKING:
    from edgehub.message import Message

Step = str | int

NOT_READ: Final = object()
"""In the memo of a message until its body is read."""

PARTS_MAX: Final = 2**14
"""Most objects, arrays and members of a body: two milliseconds. Those are counted by the signs that
begin them, in texts too."""
VALUES_MAX: Final = 2**17
"""Most parts and elements of arrays: two milliseconds."""

_JSON: Final = "application/json"
_CODECS: Final = {"utf-8": "utf-8", "utf-16": "utf-16-le", "utf-32": "utf-32-le"}


def read_body(message: Message, memo: list[Any]) -> Any:
    """Return the body as a dict, `UNDEFINED` where it is none; `memo[0]` keeps it."""
    document = memo[0]
    if document is NOT_READ:
        document = memo[0] = _decode(message)
    return document


def body_value(message: Message, memo: list[Any], steps: tuple[Step, ...]) -> Value:
    """Return the value at a path of the body.

    A missing member, an index out of range and a step into a scalar give null, an object or array
    at the end is undefined.
    """
    document = read_body(message, memo)
    if document is UNDEFINED:
        return UNDEFINED
    for step in steps:
        if step.__class__ is str:
            if document.__class__ is not dict or step not in document:
                return None
        elif document.__class__ is not list or step >= len(document):  # type: ignore[operator]  # an index here
            return None
        document = document[step]
    return _leaf(document)


def _leaf(value: Any) -> Value:
    kind = value.__class__
    if kind is str or kind is bool or value is None:
        return value
    if kind is float:
        return defined(value)
    if kind is int:
        return float(value)
    return UNDEFINED


def _decode(message: Message) -> Any:
    system = message.system
    content_type = system.get("contentType")
    encoding = system.get("contentEncoding")
    if content_type is None or encoding is None or content_type.lower() != _JSON:
        return UNDEFINED
    codec = _CODECS.get(encoding.lower())
    if codec is None:
        return UNDEFINED
    document = _parse(message.body, codec)
    return document if document.__class__ is dict else UNDEFINED


def _parse(body: bytes, codec: str) -> Any:
    if codec == "utf-8" and (len(body) <= PARTS_MAX or _is_readable(body)):
        try:
            return orjson.loads(body)
        except orjson.JSONDecodeError:
            pass
    # The slow parser takes what the fast one refuses and the original hub accepts: NaN, numbers
    # beyond a double, lone surrogates, bytes that are no text; and the wide encodings.
    try:
        text = body.decode(codec, "replace")
        if len(text) > PARTS_MAX and sum(map(text.count, ",[{:")) > PARTS_MAX:
            return UNDEFINED
        return json.loads(text, parse_int=float)
    except (ValueError, RecursionError):
        return UNDEFINED


def _is_readable(body: bytes) -> bool:
    parts = sum(map(body.count, (b"[", b"{", b":")))
    return parts <= PARTS_MAX and parts + body.count(b",") <= VALUES_MAX

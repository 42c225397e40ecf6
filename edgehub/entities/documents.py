"""JSON of local messages: read once, with errors fit for the errors topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import orjson

from edgehub.entities.faults import MappingError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def read_stored(value: bytes, read: Callable[[Any], T]) -> T | None:
    """Read a JSON value of the tables.

    A file that was damaged and salvaged may hold anything; an unreadable value is dropped and does
    not prevent a start.

    Args:
        value: JSON text.
        read: Converts the JSON value.

    Returns:
        What `read` returns, None = it cannot be read.
    """
    try:
        return read(orjson.loads(value))
    except (ValueError, LookupError, TypeError, AttributeError, MappingError):
        return None


def read_json(payload: bytes) -> Any:
    """Read a JSON value.

    Raises:
        MappingError: If it is none.
    """
    try:
        return orjson.loads(payload)
    except ValueError as error:
        raise MappingError(f"the payload is not JSON: {error}") from None


def read_object(payload: bytes) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        MappingError: If it is none.
    """
    document = read_json(payload)
    if not isinstance(document, dict):
        raise MappingError("the payload must be a JSON object")
    return document


def optional_text(document: dict[str, Any], key: str) -> str | None:
    """Return a member that must be a text; None = absent or null.

    Raises:
        MappingError: If it is something else.
    """
    value = document.get(key)
    if value is None or isinstance(value, str):
        return value
    raise MappingError(f"`{key}` must be a text")


def canonical(value: Any) -> bytes:
    """Return the one form of a JSON value, by which two values are compared.

    Raises:
        MappingError: It is nested too deeply.
    """
    return write_json(value, orjson.OPT_SORT_KEYS)


def write_json(value: Any, options: int = 0) -> bytes:
    """Write a JSON value that holds parts of a message.

    Raises:
        MappingError: It is nested too deeply; more is read than can be written.
    """
    try:
        text = orjson.dumps(value, option=options)
    except orjson.JSONEncodeError as error:
        raise MappingError(f"the payload cannot be passed on: {error}") from None
    # A copy, as orjson's buffer takes 4 KiB for a text of 200 bytes.
    return bytes(memoryview(text))

"""JSON bodies of requests: read strictly, refused with line and column.

Owns the reading. What a body means is for the part that gets it.
"""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NoReturn

from edgehub.errors import ManifestFault
from edgehub.operations.problem import ProblemError

if TYPE_CHECKING:
    from edgehub.web.request import ApiRequest

AT_ONCE_BYTES: Final = 16_384
"""Longer bodies are read in a thread, so that messages go on."""


async def json_body(request: ApiRequest) -> Any:
    """Return the value that a request brings.

    Raises:
        ProblemError: 415 for another kind of body, 400 if it is no JSON.
    """
    kind = request.fields.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise ProblemError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "not_json",
            "a body is JSON",
            hint='send "Content-Type: application/json"',
        )
    body = request.body
    if len(body) > AT_ONCE_BYTES:
        return await asyncio.to_thread(_value, body)
    return _value(body)


def _value(body: bytearray) -> Any:
    try:
        value = _DECODER.decode(body.decode("utf-8-sig"))
        _refuse_lone_surrogate(body, value)
    except json.JSONDecodeError as error:
        raise _no_json(
            f"line {error.lineno}, column {error.colno}: {error.msg}",
            ManifestFault(path="", message=error.msg, line=error.lineno, column=error.colno),
        ) from error
    except UnicodeDecodeError as error:
        reason = f"not UTF-8: byte {error.start}"
        raise _no_json(reason, ManifestFault(path="", message=reason)) from error
    except RecursionError as error:
        reason = "nested too deep"
        raise _no_json(reason, ManifestFault(path="", message=reason)) from error
    except ValueError as error:
        # Of a member that is given twice, of NaN, of an integer with thousands of digits.
        raise _no_json(str(error), ManifestFault(path="", message=str(error))) from error
    return value


def _refuse_lone_surrogate(body: bytearray, value: object) -> None:
    r"""Refuse a lone `\ud800` to `\udfff`: no file, no topic and no answer can hold it."""
    if rb"\ud" not in body.lower():
        return
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(r"it holds half a character: write no lone \ud800 to \udfff") from error


def _no_json(reason: str, fault: ManifestFault) -> ProblemError:
    return ProblemError(
        HTTPStatus.BAD_REQUEST, "bad_json", f"the body is no JSON: {reason}", faults=[fault]
    )


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise ValueError(f"{name[:40]!r} is given twice")
        members[name] = value
    return members


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_members, parse_constant=_refuse_constant)

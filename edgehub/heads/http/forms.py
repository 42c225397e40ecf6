"""From a request to messages: the sender from the path, the rest from headers or a JSON batch.

Pure functions. Invariant: a message that is built here has texts that can be stored and is not
larger than the limit.

Source: REST interface of Azure IoT Hub, "Send device event"; names as its device SDKs write them.
"""

from __future__ import annotations

import base64
import re
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_to_bytes

import orjson
from msgspec import Struct

from edgehub.devices.ids import ID_RULE, is_device_id, split_sender
from edgehub.heads.http.limits import BATCH_MESSAGES_MAX
from edgehub.heads.http.problem import shown
from edgehub.http1.refusal import RequestError
from edgehub.message import PROPERTIES_MAX, Message, message_source
from edgehub.mqtt.batch import PLAIN_BYTES, PLAIN_OBJECT
from edgehub.mqtt.hub_path import PATH_HEADER
from edgehub.mqtt.property_bag import is_reserved
from edgehub.routes.hints import near_miss

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    Properties = dict[str, str | None]
    Headers = list[tuple[bytes, bytes]]

BATCH_TYPE: Final = "application/vnd.microsoft.iothub.json"

APP_PREFIX: Final = "iothub-app-"
_PREFIX: Final = "iothub-"

SYSTEM_NAMES: Final = {
    "iothub-messageid": "messageId",
    "iothub-correlationid": "cid",
    "iothub-userid": "userId",
    "iothub-to": "to",
    "iothub-ack": "ack",
    "iothub-expiry": "absolute-expiry-time",
    "iothub-outputname": "outputName",
    "iothub-contenttype": "contentType",
    "iothub-contentencoding": "contentEncoding",
    "iothub-messageschema": "messageSchema",
    "iothub-creationtimeutc": "creationTime",
    "iothub-operation": "operation",
    "iothub-interface-id": "iothub-interface-id",
    "iothub-subject": "dt-subject",
}
"""Header, or name in a batch, to the name in conditions."""

_PATH_HEADER: Final = PATH_HEADER.encode("ascii")
_EXPIRY: Final = "absolute-expiry-time"
_BEGIN: Final = re.compile(rb"[ \t\r\n]*+\[")
_ENTRY: Final = re.compile(rb"[ \t\r\n]*+(%b)[ \t\r\n]*+([,\]])" % PLAIN_OBJECT.pattern)
_ENTRY_KEYS: Final = {"body", "base64Encoded", "properties"}
_NO_ENCODING: Final = {"", "identity"}


class Target(Struct, frozen=True):
    """The sender, by the path of a request.

    Attributes:
        sender: `<device>` or `<device>/<module>`.
        called: Whose method is called, likewise; empty = the request has messages.
    """

    device_id: str
    module_id: str | None
    sender: str
    called: str = ""


def read_target(url: bytes, headers: Headers) -> Target:
    """Read who sends a request: messages by its path, or a call of a method by a header.

    Messages go to `/devices/<d>[/modules/<m>]/messages/events[?...]`; a call is
    `/twins/<d>[/modules/<m>]/methods[?...]` with `x-ms-edge-moduleId: <device>/<module>`.

    Raises:
        RequestError: 404 for another path, 400 for a wrong id.
    """
    match _levels(url):
        case [b"devices", device, b"messages", b"events"]:
            return _target(_id("device", device), None)
        case [b"devices", device, b"modules", module, b"messages", b"events"]:
            return _target(_id("device", device), _id("module", module))
        case [b"twins", device, b"methods"]:
            called = _id("device", device)
        case [b"twins", device, b"modules", module, b"methods"]:
            called = f"{_id('device', device)}/{_id('module', module)}"
        case _:
            raise RequestError(
                HTTPStatus.NOT_FOUND,
                "messages go to /devices/<device>/messages/events"
                " or /devices/<device>/modules/<module>/messages/events, calls of methods to"
                " /twins/<device>/methods or /twins/<device>/modules/<module>/methods",
            )
    sender = split_sender(_last(headers, b"x-ms-edge-moduleid"))
    if sender is None:
        raise RequestError(
            HTTPStatus.BAD_REQUEST, "x-ms-edge-moduleId has to name the caller, <device>/<module>"
        )
    return _target(*sender, called)


def _target(device_id: str, module_id: str | None, called: str = "") -> Target:
    sender = device_id if module_id is None else f"{device_id}/{module_id}"
    return Target(device_id, module_id, sender, called)


def _levels(url: bytes) -> list[bytes]:
    path = url.partition(b"?")[0]
    if not path.startswith(b"/"):
        # The absolute form, which clients use towards proxies.
        path = b"/" + path.partition(b"://")[2].partition(b"/")[2]
    return path.removesuffix(b"/").split(b"/")[1:] or [b""]


def media_type(headers: Headers) -> tuple[str, str]:
    """Return media type and charset of a request in lower case; empty = not given."""
    value = _last(headers, b"content-type")
    kind, _, parameters = value.partition(";")
    charset = ""
    for parameter in parameters.split(";"):
        name, _, text = parameter.partition("=")
        if name.strip().lower() == "charset":
            charset = text.strip().strip('"').lower()
    return kind.strip().lower(), charset


def read_path(headers: Headers) -> str | None:
    """Return the path of hubs of the messages of a request, None = it has none."""
    return _last(headers, _PATH_HEADER) or None


def check_form(headers: Headers) -> bool:
    """Return whether a request carries a batch.

    Raises:
        RequestError: 415 for a body that is neither a message nor a readable batch.
    """
    kind, charset = media_type(headers)
    if kind == "multipart/form-data":
        raise RequestError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "a form; send the message itself as the body"
        )
    if kind != BATCH_TYPE:
        return False
    if charset not in {"", "utf-8"}:
        raise RequestError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "a batch is JSON in UTF-8")
    if _last(headers, b"content-encoding").lower() not in _NO_ENCODING:
        raise RequestError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "a batch cannot be compressed")
    return True


def single_message(
    target: Target, headers: Headers, body: bytes, bytes_max: int, now_ms: int
) -> Message:
    """Build the message of a request whose body is the message.

    Args:
        target: Who sends.
        headers: All headers of the request.
        body: The message.
        bytes_max: Of body, property names and values.
        now_ms: UTC in milliseconds since 1970; an expiry is counted from it.

    Raises:
        RequestError: If it is not one.
    """
    properties: Properties = {}
    system: Properties = {}
    for raw_name, raw_value in headers:
        if raw_name[:7].lower() != b"iothub-":
            continue
        name = raw_name.decode("ascii")
        _sort(name, _text(name, raw_value), properties, system, strict=True)
    if "contentType" not in system:
        kind, charset = media_type(headers)
        if kind:
            system["contentType"] = kind
            if charset or kind == "application/json":
                # JSON that is exchanged is UTF-8 [RFC 8259, section 8.1].
                system.setdefault("contentEncoding", charset or "utf-8")
    encoding = _last(headers, b"content-encoding")
    if encoding.lower() not in _NO_ENCODING:
        system["contentEncoding"] = encoding
    return _message(target, properties, system, body, bytes_max, now_ms)


def batch_messages(target: Target, body: bytes, bytes_max: int, now_ms: int) -> Iterator[Message]:
    """Build the messages of a batch one by one, in its order.

    Whether the whole batch is well-formed is known after the last message.

    Raises:
        RequestError: If anything in it is malformed; `index` is that of the first such entry.
    """
    for index, entry in enumerate(_entries(body)):
        if index == BATCH_MESSAGES_MAX:
            raise _too_many()
        try:
            message = _entry(target, entry, bytes_max, now_ms)
        except RequestError as problem:
            raise RequestError(
                problem.status, f"message {index}: {problem.detail}", index=index
            ) from None
        yield message


def _entries(body: bytes) -> Iterator[Any]:
    if len(body) > PLAIN_BYTES:
        return _plain_entries(body)
    try:
        entries = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise _no_json(str(error)) from None
    if not isinstance(entries, list) or not entries:
        raise _no_array()
    if len(entries) > BATCH_MESSAGES_MAX:
        raise _too_many()
    return iter(entries)


def _plain_entries(body: bytes) -> Iterator[Any]:
    """Read the entries of a long batch one by one, with turns for other clients in between."""
    begin = _BEGIN.match(body)
    if begin is None:
        raise _no_array()
    at, sign, index = begin.end(), b",", 0
    while sign == b",":
        found = _ENTRY.match(body, at)
        if found is None:
            raise RequestError(
                HTTPStatus.BAD_REQUEST,
                f"message {index}: "
                f"not an object of {', '.join(sorted(_ENTRY_KEYS))}, or with too many members"
                f" (byte {at})",
                index=index,
            )
        try:
            yield orjson.loads(found[1])
        except orjson.JSONDecodeError as error:
            raise _no_json(f"message {index}: {error}", index=index) from None
        at, sign, index = found.end(), found[2], index + 1
    if body[at:].strip():
        raise _no_json(f"bytes after its end, at byte {at}")


def _no_json(reason: str, index: int | None = None) -> RequestError:
    return RequestError(HTTPStatus.BAD_REQUEST, f"the batch is not JSON: {reason}", index=index)


def _too_many() -> RequestError:
    detail = f"more than {BATCH_MESSAGES_MAX} messages in a batch"
    return RequestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, detail)


def _no_array() -> RequestError:
    return RequestError(
        HTTPStatus.BAD_REQUEST, 'a batch is an array of one or more {"body": ..., ...}'
    )


def _entry(target: Target, entry: Any, bytes_max: int, now_ms: int) -> Message:
    if not isinstance(entry, dict):
        raise RequestError(HTTPStatus.BAD_REQUEST, "not an object")
    unknown = next((name for name in entry if name not in _ENTRY_KEYS), None)
    if unknown is not None:
        raise RequestError(HTTPStatus.BAD_REQUEST, _unknown(unknown, _ENTRY_KEYS))
    properties: Properties = {}
    system: Properties = {}
    given = entry.get("properties")
    if given is not None:
        if not isinstance(given, dict):
            raise RequestError(HTTPStatus.BAD_REQUEST, "properties: not an object")
        if len(given) > PROPERTIES_MAX:
            raise RequestError(HTTPStatus.BAD_REQUEST, f"properties: more than {PROPERTIES_MAX}")
        for name, value in given.items():
            if not (value is None or isinstance(value, str)):
                raise RequestError(
                    HTTPStatus.BAD_REQUEST, f"properties: {shown(name)} is neither a text nor null"
                )
            _sort(name, value, properties, system, strict=False)
    return _message(target, properties, system, _entry_body(entry), bytes_max, now_ms)


def _entry_body(entry: dict[str, Any]) -> bytes:
    body = entry.get("body")
    if not isinstance(body, str):
        raise RequestError(HTTPStatus.BAD_REQUEST, "body: missing, or not a text")
    encoded = entry.get("base64Encoded", True)
    if not isinstance(encoded, bool):
        raise RequestError(HTTPStatus.BAD_REQUEST, "base64Encoded: neither true nor false")
    if not encoded:
        return body.encode()
    try:
        return base64.b64decode(body, validate=True)
    except ValueError:
        raise RequestError(
            HTTPStatus.BAD_REQUEST, 'body: not base64; say "base64Encoded": false for plain text'
        ) from None


def _sort(
    name: str, value: str | None, properties: Properties, system: Properties, *, strict: bool
) -> None:
    lower = name.lower()
    if lower.startswith(APP_PREFIX):
        name = name[len(APP_PREFIX) :]
        if not name:
            raise RequestError(HTTPStatus.BAD_REQUEST, f"{APP_PREFIX}: a property without a name")
        _put(name, value, properties)
    elif lower in SYSTEM_NAMES:
        system[SYSTEM_NAMES[lower]] = value
    elif strict:
        raise RequestError(
            HTTPStatus.BAD_REQUEST, _unknown(lower, {*SYSTEM_NAMES, f"{APP_PREFIX}..."})
        )
    elif name:
        _put(name, value, properties)
    else:
        raise RequestError(HTTPStatus.BAD_REQUEST, "properties: a property without a name")


def _put(name: str, value: str | None, properties: Properties) -> None:
    if is_reserved(name):
        raise RequestError(
            HTTPStatus.BAD_REQUEST,
            f"property {shown(name)}: only hubs write it; give it another name",
        )
    properties[name] = value


def _message(
    target: Target,
    properties: Properties,
    system: Properties,
    body: bytes,
    bytes_max: int,
    now_ms: int,
) -> Message:
    size = len(body) + _length(properties) + _length(system)
    if size > bytes_max:
        raise RequestError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"{size} bytes of body and properties; at most {bytes_max}",
        )
    expiry = system.get(_EXPIRY)
    source = message_source(target.module_id, system.get("outputName"))
    expiry_ms = None if not expiry else _time_left(expiry, now_ms)
    return Message(target.device_id, target.module_id, source, properties, system, body, expiry_ms)


def _time_left(text: str, now_ms: int) -> int:
    try:
        at = datetime.fromisoformat(text)
        if at.tzinfo is None:
            at = at.replace(tzinfo=UTC)
        # At least 1: a late message is stored, and expires in its queue.
        return max(1, round(at.timestamp() * 1000) - now_ms)
    except (ValueError, OverflowError):
        raise RequestError(
            HTTPStatus.BAD_REQUEST,
            f"iothub-expiry: {shown(text)} is no time such as 2031-05-01T12:00:00Z",
        ) from None


def _id(kind: str, raw: bytes) -> str:
    text = unquote_to_bytes(raw).decode("utf-8", "replace")
    if not is_device_id(text):
        raise RequestError(HTTPStatus.BAD_REQUEST, f"{kind} id {shown(text)}: {ID_RULE}")
    return text


def _text(name: str, value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        raise RequestError(HTTPStatus.BAD_REQUEST, f"header {shown(name)} is not UTF-8") from None


def _last(headers: Headers, name: bytes) -> str:
    found = b""
    for raw_name, value in headers:
        if len(raw_name) == len(name) and raw_name.lower() == name:
            found = value
    return found.decode("latin-1").strip()


def _length(properties: Properties) -> int:
    return sum([len(name) + len(value or "") for name, value in properties.items()])


def _unknown(name: str, known: Iterable[str]) -> str:
    near = near_miss(name[:SHOWN_NAME_MAX], sorted(known), cutoff=0.6)
    hint = f"did you mean {near}?" if near else f"known: {', '.join(sorted(known))}"
    return f"unknown name {shown(name)}; {hint}"


SHOWN_NAME_MAX: Final = 64
"""Longer names are cut before they are compared, which takes quadratic time."""

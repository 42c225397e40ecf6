"""Messages written as JSON, for commands that explain what the hub would do with one.

Owns the form: `properties`, `system_properties`, `body` with `content_type` and `content_encoding`,
and its sender (`device`, `module`, `output` or `source`). Pure.
"""

from __future__ import annotations

import json
from typing import Any, Final

from edgehub.errors import EdgeHubError
from edgehub.message import Message, message_source
from edgehub.routes.query.properties import Properties, system_name

_MEMBERS: Final = frozenset(
    {
        "properties",
        "system_properties",
        "body",
        "content_type",
        "content_encoding",
        "device",
        "module",
        "output",
        "source",
    }
)
_CODECS: Final = {"utf-16": "utf-16-le", "utf-32": "utf-32-le"}
_SENDER: Final = ("connectiondeviceid", "connectionmoduleid", "edgemessageid")


class MessageFormError(EdgeHubError):
    """The JSON does not describe a message; the text says why."""


def read_message(form: Any) -> Message:
    """Read a message from its JSON form.

    Args:
        form: A JSON object; each member may be absent. `body` is any JSON value, encoded as
            `content_encoding` says (UTF-8 where that is no other known one); null = empty body.
            `device` and `module` may also be given as `connectionDeviceId` and
            `connectionModuleId` among the system properties.

    Raises:
        MessageFormError: If it is no object, or a member has the wrong type.
    """
    if not isinstance(form, dict):
        raise MessageFormError("the message must be an object")
    unknown = sorted(set(form) - _MEMBERS)
    if unknown:
        known = ", ".join(sorted(_MEMBERS))
        raise MessageFormError(f"`{unknown[0]}` is not known in a message; known are {known}")
    system = {system_name(name): value for name, value in _texts(form, "system_properties").items()}
    device, module, message_id = (system.pop(name, None) for name in _SENDER)
    for name, member in (("contentType", "content_type"), ("contentEncoding", "content_encoding")):
        value = _text(form, member)
        if value is not None:
            system[name] = value
    module = _text(form, "module") or module
    output = _text(form, "output")
    if output is not None:
        system["outputName"] = output
    return Message(
        device_id=_text(form, "device") or device or "",
        module_id=module,
        source=_text(form, "source") or message_source(module, system.get("outputName")),
        properties=_texts(form, "properties"),
        system=system,
        body=_body(form.get("body"), system.get("contentEncoding")),
        message_id=message_id or "",
    )


def _texts(form: dict[str, Any], member: str) -> Properties:
    values = form.get(member)
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise MessageFormError(f"`{member}` must be an object of texts")
    for name, value in values.items():
        if value is not None and not isinstance(value, str):
            raise MessageFormError(f"`{member}.{name}` must be a text or null, as all properties")
    return values


def _text(form: dict[str, Any], member: str) -> str | None:
    value = form.get(member)
    if value is None or isinstance(value, str):
        return value
    raise MessageFormError(f"`{member}` must be a text or null")


def _body(value: Any, encoding: str | None) -> bytes:
    if value is None:
        return b""
    codec = _CODECS.get((encoding or "").lower(), "utf-8")
    return json.dumps(value).encode(codec)

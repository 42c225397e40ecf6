"""Messages written as JSON, for commands that explain what the hub would do with one.

Owns the form: `properties`, `system_properties`, `body` with `content_type` and `content_encoding`,
and its sender (`device`, `module`, `output` or `source`). Pure.
"""

from __future__ import annotations

import json
from typing import Any, Final

from msgspec import Struct, ValidationError, convert

from edgehub.errors import EdgeHubError
from edgehub.message import Message, message_source
from edgehub.routes.query.properties import Properties, system_name

_CODECS: Final = {"utf-16": "utf-16-le", "utf-32": "utf-32-le"}
_SENDER: Final = ("connectiondeviceid", "connectionmoduleid", "edgemessageid")


class MessageFormError(EdgeHubError):
    """The JSON does not describe a message; the text says why."""


class _Form(Struct, forbid_unknown_fields=True, kw_only=True):
    properties: Properties | None = None
    system_properties: Properties | None = None
    body: Any = None
    content_type: str | None = None
    content_encoding: str | None = None
    device: str | None = None
    module: str | None = None
    output: str | None = None
    source: str | None = None


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
    try:
        given = convert(form, _Form)
    except ValidationError as error:
        known = ", ".join(_Form.__struct_fields__)
        raise MessageFormError(f"the message: {error}; known members are {known}") from error
    system = {system_name(name): value for name, value in (given.system_properties or {}).items()}
    device, module, message_id = (system.pop(name, None) for name in _SENDER)
    named = (
        ("contentType", given.content_type),
        ("contentEncoding", given.content_encoding),
        ("outputName", given.output),
    )
    system |= {name: value for name, value in named if value is not None}
    module = given.module or module
    return Message(
        device_id=given.device or device or "",
        module_id=module,
        source=given.source or message_source(module, system.get("outputName")),
        properties=given.properties or {},
        system=system,
        body=_body(given.body, system.get("contentEncoding")),
        message_id=message_id or "",
    )


def _body(value: Any, encoding: str | None) -> bytes:
    if value is None:
        return b""
    codec = _CODECS.get((encoding or "").lower(), "utf-8")
    return json.dumps(value).encode(codec)

"""Operations on messages to devices and modules: send, look, remove.

Owns nothing; asks the mailboxes.
"""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING, Any, Final

from edgehub.clock import utc_text
from edgehub.device_bound.message import ACK_PROPERTY, ACKS, TTL_S_MAX, Origin
from edgehub.message import DEFAULT_PRIORITY, PROPERTIES_MAX, WORST_EXPLICIT_PRIORITY, Priority
from edgehub.mqtt.property_bag import is_reserved
from edgehub.operations.arguments import CLIENT, client_of, flag, text, whole
from edgehub.operations.arguments import document as json_value
from edgehub.operations.operation import Argument, ArgumentError, ArgumentKind, Operation, Resource

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from edgehub.device_bound.mailboxes import Mailboxes
    from edgehub.device_bound.message import DeviceMessage
    from edgehub.store.store import Store

    Arguments = Mapping[str, Any]
    Owner = Callable[[str], Awaitable[str | None]]

BODY_BYTES_MAX: Final = 262_144
ID_CHARS_MAX: Final = 128

_PATH: Final = "/api/v1/devices/{device_id}/messages"


class DeviceMessageOperations:
    """Operations on messages to devices and modules.

    Args:
        store: Knows times.
        mailboxes: The messages.
        owner: Returns the other hub that owns a device, None = there is none.
    """

    __slots__ = ("_mailboxes", "_owner", "_store")

    def __init__(self, store: Store, mailboxes: Mailboxes, owner: Owner) -> None:
        self._store = store
        self._mailboxes = mailboxes
        self._owner = owner

    def table(self) -> list[Operation]:
        """Return every operation."""
        return [
            Operation(
                name="device send",
                about="Store a message for a device or module; it leaves once the client listens.",
                handler=self._send,
                result="edgehub.operations.results.device_messages:SentMessage",
                arguments=_SEND,
                changes=True,
                resource=Resource(method="POST", path=_PATH),
            ),
            Operation(
                name="device messages",
                about="List the messages that wait for a device or module, and dead letters.",
                handler=self._list,
                result="edgehub.operations.results.device_messages:DeviceMessagesDocument",
                arguments=CLIENT,
                resource=Resource(method="GET", path=_PATH),
            ),
            Operation(
                name="device purge",
                about="Remove messages to a device or module that it has not got yet.",
                handler=self._purge,
                result="edgehub.operations.results.device_messages:PurgedMessages",
                arguments=(
                    *CLIENT,
                    text("message_id", "Only this one."),
                    flag("dead", "Dead letters instead of messages that wait."),
                ),
                changes=True,
                resource=Resource(method="DELETE", path=_PATH),
            ),
        ]

    async def _send(
        self, *, ttl_s: int | None = None, priority: int | None = None, **arguments: Any
    ) -> dict[str, Any]:
        target = client_of(arguments["device_id"], arguments.get("module_id"))
        message, stored = self._mailboxes.accept(
            target,
            _body(arguments),
            _properties(arguments),
            _system(arguments),
            origin=Origin.API,
            priority=DEFAULT_PRIORITY if priority is None else Priority(priority),
            ttl_ms=None if ttl_s is None else ttl_s * 1000,
        )
        await asyncio.shield(stored)  # others wait for the same commit
        return {
            "message_id": message.message_id,
            "expires": self._utc(message.expires_ms),
            "waiting": len(self._mailboxes.of(target)),
            "owner": await self._owner(message.device_id),
        }

    async def _list(self, *, device_id: str, module_id: str | None = None) -> dict[str, Any]:
        target = client_of(device_id, module_id)
        return {
            "device_id": device_id,
            "module_id": module_id,
            "waiting": self._documents(self._mailboxes.of(target)),
            "dead_letters": self._documents(self._mailboxes.dead(target)),
            "owner": await self._owner(device_id),
        }

    async def _purge(
        self, *, dead: bool, message_id: str | None = None, **client: Any
    ) -> dict[str, Any]:
        purged = await self._mailboxes.purge(client_of(**client), message_id, dead=dead)
        return {"purged": purged}

    def _documents(self, messages: list[DeviceMessage]) -> list[dict[str, Any]]:
        return [
            {
                "message_id": each.message_id,
                "priority": None if each.priority == DEFAULT_PRIORITY else each.priority,
                "origin": each.origin.value,
                "enqueued": self._utc(each.enqueued_ms),
                "expires": self._utc(each.expires_ms),
                "deliveries": each.deliveries,
                "in_flight": self._mailboxes.in_flight(each),
                "dead": each.dead,
                "size": each.size,
            }
            for each in messages
        ]

    def _utc(self, hub_ms: int) -> str:
        return utc_text(self._store.utc_ms(hub_ms))


_SEND: Final = (
    *CLIENT,
    Argument(name="body", about="Payload as text.", kind=ArgumentKind.FILE),
    Argument(name="body_base64", about="Payload in base64.", kind=ArgumentKind.FILE),
    json_value("properties", "an object of texts: application properties"),
    text("message_id", "Its id; absent = the hub makes one."),
    text("correlation_id", "What it answers or belongs to."),
    text("content_type", "Of the payload."),
    text("content_encoding", "Of the payload."),
    whole(
        "priority",
        "0 is the best; absent = after all others.",
        maximum=WORST_EXPLICIT_PRIORITY,
    ),
    whole(
        "ttl_s",
        "Seconds that it may wait; absent = device_bound.ttl_s.",
        minimum=1,
        maximum=TTL_S_MAX,
    ),
    text("ack", "Of what the sender is informed.", choices=ACKS),
)


def _body(arguments: Arguments) -> bytes:
    given, packed = arguments.get("body"), arguments.get("body_base64")
    if given is not None and packed is not None:
        raise ArgumentError("`body`: want it or `body_base64`, not both")
    try:
        body = (given or "").encode() if packed is None else base64.b64decode(packed, validate=True)
    except ValueError as error:
        raise ArgumentError(f"the body: {error}") from error
    if len(body) > BODY_BYTES_MAX:
        raise ArgumentError(f"the body has {len(body)} bytes, at most {BODY_BYTES_MAX} are taken")
    return body


def _properties(arguments: Arguments) -> dict[str, str | None]:
    given = arguments.get("properties")
    properties: dict[str, str | None] = {}
    if given is not None:
        if not isinstance(given, dict) or len(given) > PROPERTIES_MAX:
            raise ArgumentError(f"`properties`: want an object of at most {PROPERTIES_MAX} texts")
        for name, value in given.items():
            _check_text(f"`properties`, {name[:40]!a}", name, value)
            if not name or is_reserved(name):
                raise ArgumentError(f"`properties`: {name[:40]!a} is a name that only hubs write")
            properties[name] = value
    if arguments.get("ack") not in {None, "none"}:
        properties[ACK_PROPERTY] = arguments["ack"]
    return properties


def _system(arguments: Arguments) -> dict[str, str | None]:
    system: dict[str, str | None] = {}
    for argument, name in _SYSTEM.items():
        value = arguments.get(argument)
        if value is None:
            continue
        _check_text(f"`{argument}`", value)
        if len(value) > ID_CHARS_MAX:
            raise ArgumentError(f"`{argument}`: at most {ID_CHARS_MAX} characters")
        system[name] = value
    return system


_SYSTEM: Final = {
    "message_id": "messageId",
    "correlation_id": "cid",
    "content_type": "contentType",
    "content_encoding": "contentEncoding",
}


def _check_text(what: str, *values: object) -> None:
    for value in values:
        if not isinstance(value, str):
            raise ArgumentError(f"{what}: want a text")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ArgumentError(f"{what}: {error}") from error

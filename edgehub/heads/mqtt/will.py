"""Wills: messages that the hub submits for clients that vanish.

Owns the wills of clients that may still come back. Invariant: a will is submitted at most once, and
no later than its session ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edgehub.devices.bounds import Bound
from edgehub.heads.mqtt.backlog import MESSAGE_OVERHEAD_BYTES
from edgehub.heads.mqtt.local.ingress import local_message
from edgehub.heads.mqtt.sign_in import SignInError
from edgehub.heads.mqtt.topics import (
    DIALECT,
    parse_events_topic,
    with_property,
)
from edgehub.local_message import LocalMessage
from edgehub.message import Message, message_source
from edgehub.mqtt.message_properties import MessageProperties
from edgehub.mqtt.packets import ConnectCode
from edgehub.mqtt.property_bag import (
    RETAIN_PROPERTY,
    WILL_PROPERTY,
    BagError,
    bytes_of,
    without_marks,
)
from edgehub.mqtt.reasons import ReasonCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.clock import Clock, TimerHandle
    from edgehub.devices.bounds import KnownIds, Usage
    from edgehub.heads.mqtt.local.rights import LocalRights
    from edgehub.heads.mqtt.local.space import LocalSpace
    from edgehub.heads.mqtt.sign_in import SignedInClient
    from edgehub.mqtt.packets import Will

PENDING_BYTES_MAX: Final = 16 * 2**20
"""Wills that may wait for their clients' return; beyond it they are submitted at once."""

_NO_PROPERTIES: Final = MessageProperties({})


def will_message(
    will: Will,
    client: SignedInClient,
    space: LocalSpace,
    rights: LocalRights,
    *,
    message_bytes_max: int,
) -> Message | LocalMessage:
    """Build the message of a will.

    Raises:
        SignInError: If its topic is neither the client's own telemetry topic nor a local one that
            it may publish to, or it is too large: a will that can never be sent is refused when the
            client connects.
    """
    given = will.properties or _NO_PROPERTIES
    if not will.topic.startswith(DIALECT):
        return _local_will(will, client, space, rights, message_bytes_max=message_bytes_max)
    try:
        topic = parse_events_topic(will.topic.decode())
    except BagError as error:
        raise _refused(f"will topic: {error}", ReasonCode.TOPIC_NAME_INVALID) from error
    if topic is None or topic.sender != client.id:
        raise _refused("will topic is not the client's events topic", ReasonCode.TOPIC_NAME_INVALID)
    size = len(will.body) + topic.properties_bytes + given.properties_bytes
    if size > message_bytes_max:
        raise _refused("will is larger than a message may be", ReasonCode.PACKET_TOO_LARGE)
    properties = {**given.properties, **topic.properties}
    properties = with_property(without_marks(properties), *WILL_PROPERTY)
    if will.retain:
        properties = with_property(properties, RETAIN_PROPERTY, "true")
    system = {**given.system, **topic.system}
    source = message_source(topic.module_id, system.get("outputName"))
    return Message(
        topic.device_id, topic.module_id, source, properties, system, will.body, given.expiry_ms
    )


def _local_will(
    will: Will,
    client: SignedInClient,
    space: LocalSpace,
    rights: LocalRights,
    *,
    message_bytes_max: int,
) -> LocalMessage:
    topic = space.topic(will.topic)
    if topic is None:
        raise _refused(
            "will topic is neither the client's events topic nor a local one",
            ReasonCode.TOPIC_NAME_INVALID,
        )
    if not rights.may_publish(topic):
        raise _refused("may not publish to its will topic", ReasonCode.NOT_AUTHORIZED)
    given = will.properties
    message = local_message(topic, will.body, given, client.id, will.qos, retain=will.retain)
    if len(message.body) + len(message.properties) > message_bytes_max:
        raise _refused("will is larger than a message may be", ReasonCode.PACKET_TOO_LARGE)
    if given is not None and not given.is_passable:
        raise _refused(
            "will has a property with control characters, or an invalid response topic",
            ReasonCode.PAYLOAD_FORMAT_INVALID,
        )
    return message


def will_bytes(message: Message | LocalMessage) -> int:
    """Return the bytes that a will takes in memory."""
    if isinstance(message, LocalMessage):
        return message.size + MESSAGE_OVERHEAD_BYTES
    properties = bytes_of(message.properties) + bytes_of(message.system)
    return len(message.body) + properties + MESSAGE_OVERHEAD_BYTES


def sender_of(message: Message | LocalMessage) -> str:
    """Return the id of the client that a will belongs to."""
    return message.publisher if isinstance(message, LocalMessage) else message.sender


def _refused(reason: str, code: ReasonCode) -> SignInError:
    return SignInError(ConnectCode.NOT_AUTHORIZED, reason, code)


class PendingWills:
    """Wills that wait for their clients' return.

    Args:
        clock: For their delays.
        submit: Submits a will.
        known: The identities in force.

    Attributes:
        bound: Bytes of the waiting wills.
    """

    def __init__(
        self,
        clock: Clock,
        submit: Callable[[Message | LocalMessage], None],
        known: KnownIds,
    ) -> None:
        self._clock = clock
        self._submit = submit
        self._pending: dict[str, tuple[Message | LocalMessage, TimerHandle, Usage]] = {}
        self.bound = Bound("bytes of delayed wills", PENDING_BYTES_MAX, known)

    def add(self, client_id: str, message: Message | LocalMessage, delay_s: float) -> None:
        """Submit a will after `delay_s`, at once if that is 0."""
        size = will_bytes(message)
        usage = self.bound.of(client_id)
        if delay_s <= 0 or not usage.has_room(size):
            self._submit(message)
            return
        self.session_ended(client_id)
        timer = self._clock.call_later(delay_s, lambda: self.session_ended(client_id))
        self._pending[client_id] = message, timer, usage
        usage.used += size

    def session_resumed(self, client_id: str) -> None:
        """Cancel the will of a client that is back."""
        self._take(client_id)

    def session_ended(self, client_id: str) -> None:
        """Submit a will that still waits: its session has ended."""
        message = self._take(client_id)
        if message is not None:
            self._submit(message)

    def submit_all(self) -> None:
        """Submit all waiting wills before the hub shuts down."""
        for client_id in list(self._pending):
            self.session_ended(client_id)

    def _take(self, client_id: str) -> Message | LocalMessage | None:
        entry = self._pending.pop(client_id, None)
        if entry is None:
            return None
        message, timer, usage = entry
        timer.cancel()
        usage.used -= will_bytes(message)
        return message

"""One connected client in the local topic space: its rights, its session and its link.

Lives as long as the connection; the session stays when that ends. Invariant: a client whose window
or write buffer is full is sent nothing more, and the session goes on once there is room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgehub.heads.mqtt.local.frames import frame
from edgehub.heads.mqtt.local.options import WINDOW
from edgehub.mqtt.packets import Puback, Pubcomp, Pubrec, pubrel
from edgehub.mqtt.reasons import ReasonCode
from edgehub.mqtt.topic_filter import split_share

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.heads.mqtt.client_connection import ClientConnection
    from edgehub.heads.mqtt.deliveries import Deliveries
    from edgehub.heads.mqtt.local.rights import LocalRights
    from edgehub.heads.mqtt.local.session import LocalSession
    from edgehub.heads.mqtt.local.space import LocalSpace
    from edgehub.heads.mqtt.local.tables import LocalEntry
    from edgehub.local_message import LocalMessage
    from edgehub.mqtt.packets import Acknowledgement


class LocalClient:
    """A connected client; the `Link` of its session.

    Args:
        space: The local topic space.
        session: The client's session in it.
        rights: Of the client there.
        connection: Of the client.
        deliveries: Packet ids and acknowledgements.

    Attributes:
        rights: Of the client there.
    """

    __slots__ = ("_connection", "_deliveries", "_granted", "_session", "_space", "rights")

    def __init__(
        self,
        space: LocalSpace,
        session: LocalSession,
        rights: LocalRights,
        connection: ClientConnection,
        deliveries: Deliveries,
    ) -> None:
        self._space = space
        self._session = session
        self.rights = rights
        self._connection = connection
        self._deliveries = deliveries
        self._granted: set[str] = set()

    # Subscriptions.

    def refusal(self, topic_filter: str) -> ReasonCode | None:
        """Return why the client may not subscribe to a filter; None = it may."""
        if topic_filter in self._granted:
            # Rights do not change while a connection lasts.
            return None
        if not self._space.can_match(topic_filter):
            return ReasonCode.TOPIC_FILTER_INVALID
        if not self.rights.may_subscribe(split_share(topic_filter)[1]):
            return ReasonCode.NOT_AUTHORIZED
        if topic_filter not in self._session.filters and not self._session.can_subscribe(
            topic_filter
        ):
            self._session.subscription_refused()
            return ReasonCode.QUOTA_EXCEEDED
        return None

    def subscribe(self, topic_filter: str, options: int) -> None:
        """Begin a subscription, or change its options."""
        self._granted.add(topic_filter)
        self._session.subscribe(topic_filter, options)

    def unsubscribe(self, topic_filter: str) -> None:
        """End a subscription."""
        self._granted.discard(topic_filter)
        self._session.unsubscribe(topic_filter)

    def replay(self, topic_filter: str, options: int) -> None:
        """Send the retained messages that a filter takes."""
        self._session.replay(topic_filter, options)

    # Life cycle.

    def attach(self) -> None:
        """Send the waiting messages, and later ones as they are published."""
        self._deliveries.reserved = self._session.packet_ids
        self._deliveries.freed = self._session.pump
        self._session.attach(self, self.rights)

    def detach(self) -> None:
        """Stop sending; the session stays."""
        self._session.detach(self)

    def pump(self) -> None:
        """Send what waits, as far as there is room."""
        self._session.pump()

    # As `session.Link`.

    @property
    def is_writable(self) -> bool:
        """Whether the client reads what it is sent."""
        return self._connection.is_writable

    @property
    def has_room(self) -> bool:
        """Whether the window has room, and the client reads."""
        return self._deliveries.has_room(WINDOW) and self._connection.is_writable

    def write(self, message: LocalMessage, *, retain: bool, identifiers: bytes) -> bool:
        """Send a message with QoS 0; False = larger than the client takes."""
        data = frame(
            message,
            retain=retain,
            identifiers=identifiers,
            now_ms=self._space.now_ms(),
            with_properties=self._deliveries.with_properties,
        )
        if not self._deliveries.fits(data):
            return False
        self._connection.write(data)
        return True

    def new_packet_id(self) -> int:
        """Return a packet id that is not in use on this connection."""
        return self._deliveries.free_id()

    def send(self, entry: LocalEntry, progress: Callable[[bool], None]) -> int:
        """Send the PUBLISH or PUBREL of an entry, and wait for its acknowledgement."""
        deliveries = self._deliveries
        packet_id = entry.packet_id or deliveries.free_id()
        if entry.is_received:
            data = pubrel(packet_id)
            awaited: type[Acknowledgement] = Pubcomp
        else:
            data = frame(
                entry.message,
                qos=entry.qos,
                packet_id=packet_id,
                retain=entry.retain,
                dup=entry.is_sent,
                identifiers=entry.identifiers,
                now_ms=self._space.now_ms(),
                with_properties=deliveries.with_properties,
            )
            awaited = Puback if entry.qos == 1 else Pubrec
        if not deliveries.fits(data):
            return 0
        deliveries.hold(packet_id, awaited, progress)
        self._connection.write(data)
        return packet_id

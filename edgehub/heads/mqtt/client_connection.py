"""The contract between the connection of a client and the parts that serve it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgehub.heads.mqtt.deliveries import ClientDelivery
    from edgehub.heads.mqtt.sign_in import SignedInClient
    from edgehub.heads.mqtt.statistics import CloseReason
    from edgehub.message import Refusal
    from edgehub.mqtt.reasons import ReasonCode


class ClientConnection(Protocol):
    """A connection as the other parts of the listener see it."""

    @property
    def client(self) -> SignedInClient | None:
        """The signed-in client, None before the sign-in."""

    @property
    def subscriptions(self) -> Mapping[str, int]:
        """Options of the client's subscriptions by topic filter."""

    @property
    def heard_s(self) -> float:
        """Monotonic time of the last received bytes of a signed-in client."""

    @property
    def pauses(self) -> int:
        """Reasons not to read the client at present, as bits of `transport`."""

    @property
    def is_writable(self) -> bool:
        """Whether the client reads what it is sent; if not, its local session goes on later."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait until the client reads, or confirms what it has."""

    def deliver(self, delivery: ClientDelivery) -> None:
        """Send a message to the client; see `Deliveries.send`."""

    def write(self, data: bytes) -> None:
        """Send bytes with the next flush."""

    def request_flush(self) -> None:
        """Write what was collected at the end of this turn of the loop."""

    def flush(self) -> None:
        """Write what was collected, and read on if the client was paused for its backlog."""

    def next_turn(self) -> None:
        """Decode the next slice of what the client has sent."""

    def refuse(self) -> None:
        """Close a connection of which there are too many."""

    def drain(self) -> None:
        """Take no more messages; acknowledgements of deliveries in flight are still read."""

    def session_stored(self, refusal: Refusal | None) -> None:
        """Read on after a change of the session was stored, or close if it could not be."""

    def refused_by_limit(self) -> None:
        """Close the connection, but that of one client only every few seconds."""

    def close(self, reason: CloseReason, detail: str = "", code: ReasonCode | None = None) -> None:
        """Close the connection after writing what was collected.

        Args:
            reason: For counts and logs.
            detail: What exactly, for the log and the client.
            code: Reason code for a client of MQTT 5 in place of the usual one for `reason`.
        """

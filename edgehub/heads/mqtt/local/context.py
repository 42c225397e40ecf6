"""What the sessions of one local topic space share: its bounds, counts and tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from edgehub.heads.mqtt.local.statistics import LocalCounters

if TYPE_CHECKING:
    from edgehub.clock import Clock
    from edgehub.devices.bounds import Bound
    from edgehub.heads.mqtt.local.filter_tree import FilterTree
    from edgehub.heads.mqtt.local.options import LocalOptions
    from edgehub.heads.mqtt.local.retained import RetainedMessages
    from edgehub.heads.mqtt.local.session import LocalSession
    from edgehub.heads.mqtt.local.shared import SharedSubscriptions
    from edgehub.heads.mqtt.local.tables import LocalContents
    from edgehub.local_message import LocalMessage, Settle
    from edgehub.telemetry.log_limit import LogLimit


class LocalStore(Protocol):
    """Retained and queued messages on disk; see `edgehub.heads.mqtt.local.tables`."""

    def now_ms(self) -> int:
        """Return hub time."""

    async def load(self) -> LocalContents:
        """Return what is stored."""

    def is_changing(self, topic: str) -> bool:
        """Return whether the last message of a topic is not durable yet."""

    def keep(self, message: LocalMessage, settle: Settle) -> None:
        """Store a message as the last of its topic; an empty one clears the topic."""

    def enqueue(
        self,
        client_id: str,
        message: LocalMessage,
        settle: Settle,
        *,
        retain: bool,
        sent: bool,
        qos: int,
        packet_id: int,
        identifiers: bytes,
    ) -> None:
        """Store a message for a session."""

    def mark_sent(self, client_id: str, message: LocalMessage) -> None:
        """Record that a stored message is on its way to its client."""

    def mark_received(self, client_id: str, message: LocalMessage, settle: Settle) -> None:
        """Record that the client of a stored message owns it."""

    def receive(self, session: int, packet_id: int, settle: Settle) -> None:
        """Store the packet id of what a client sent, with the messages handed in before."""

    def dequeue(self, client_id: str, message: LocalMessage) -> None:
        """Remove a message from a session."""

    def flush_now(self) -> None:
        """Have what has changed committed without delay."""

    async def flush(self) -> None:
        """Wait until all is durable."""


@dataclass(slots=True, kw_only=True, eq=False)
class LocalContext:
    """Shared by the sessions of one space.

    Attributes:
        queued: Messages that wait for clients or their acknowledgement.
        queued_bytes: Bound of their bytes; a message counts for each client that it waits for.
        subscription_bytes: Bound of what the subscriptions take in memory.
        branches: Bound of what a publish goes through to find its subscriptions. Its usage is that
            of all filters together, so it is not counted by kind of client.
    """

    options: LocalOptions
    clock: Clock
    store: LocalStore
    tree: FilterTree[LocalSession]
    shared: SharedSubscriptions[LocalSession]
    retained: RetainedMessages
    queued_bytes: Bound
    subscription_bytes: Bound
    branches: Bound
    log: LogLimit
    counters: LocalCounters = field(default_factory=LocalCounters)
    queued: int = 0

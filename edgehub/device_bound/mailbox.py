"""The messages of one client: which waits, which is in flight, which is next.

Owns the order. Pure. Invariants: messages leave by priority, and by arrival within one; at most
`IN_FLIGHT_MAX` are in flight; a message in flight stays until its result is known.
"""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

if TYPE_CHECKING:
    from edgehub.clock import TimerHandle
    from edgehub.device_bound.message import DeviceMessage
    from edgehub.heads.head import SendToClient

IN_FLIGHT_MAX: Final = 16
"""A better message that comes later waits for no more than these."""


class Mailbox(Struct, eq=False):
    """The messages of one device or module.

    Attributes:
        target: The client, `<device>` or `<device>/<module>`.
        messages: Those that wait or are in flight, the next one first.
        in_flight: Those that were handed to the client's connection.
        listens: Whether the client is connected and subscribed.
        retry: Runs while nothing is sent after a failure, None = it may be.
        send: Sends to it in another way than by the listener, None = it does not.
    """

    target: str
    messages: list[DeviceMessage] = field(default_factory=list)
    in_flight: set[DeviceMessage] = field(default_factory=set)
    listens: bool = False
    retry: TimerHandle | None = None
    send: SendToClient | None = None

    @property
    def is_movable(self) -> bool:
        """Return whether nothing ties its messages to this hub: its client does not listen here."""
        return not self.listens or self.send is not None

    @property
    def is_unused(self) -> bool:
        """Return whether nothing has to be remembered."""
        return not self.messages and not self.listens and self.retry is None

    def add(self, message: DeviceMessage) -> None:
        """Put a message at its place."""
        insort(self.messages, message, key=lambda each: each.order)

    def remove(self, message: DeviceMessage) -> None:
        """Remove a message."""
        self.in_flight.discard(message)
        self.messages.remove(message)

    def next(self) -> DeviceMessage | None:
        """Return the message that is to be sent now, None = none is."""
        if not self.listens or self.retry is not None or len(self.in_flight) >= IN_FLIGHT_MAX:
            return None
        return self.first()

    def first(self) -> DeviceMessage | None:
        """Return the first message that is not in flight, None = there is none."""
        return next((each for each in self.messages if each not in self.in_flight), None)

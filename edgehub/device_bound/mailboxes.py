"""Messages to devices and modules: from where they are taken to where they are acknowledged.

Owns the mailboxes, their bounds, and what becomes of every message. It calls the table, the request
queues of the devices, and the listener's delivery. Invariants: a message is acknowledged to its
sender once it is durable, or refused because of a bound; it may reach its client before that; it
leaves the table with its client's acknowledgement, when it expires, after too many deliveries, or
by an operator; the end of each is counted once, and its sender is informed if it asked for that.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter, OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog
from msgspec import Struct

from edgehub.device_bound.mailbox import Mailbox
from edgehub.device_bound.message import (
    DEAD,
    TTL_S_MAX,
    DeviceMessage,
    EndReason,
    QueueDepthExceededError,
    size_of,
)
from edgehub.devices.request_queue import RequestKind
from edgehub.heads.head import WaitingMessage
from edgehub.message import DEFAULT_PRIORITY, FailureKind, Priority, RefusedByClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.clock import Clock
    from edgehub.device_bound.message import Origin
    from edgehub.device_bound.table import DeviceMessageTable
    from edgehub.devices.request_queues import RequestQueues
    from edgehub.heads.head import SendToClient
    from edgehub.message import SendResult
    from edgehub.mqtt.property_bag import Properties
    from edgehub.settings.device_bound import DeviceBoundSettings

RETRY_S: Final = 1.0
"""After a failed delivery, where the client does not say another time."""

LOOK_S: Final = 1.0
"""How often expired messages are looked for."""

DEAD_MAX: Final = 1_000
"""Dead letters kept; the oldest leave."""

_ENDED_MAX: Final = 1_000
"""Messages that have left and are still in the heap of expiries."""

log = structlog.get_logger(__name__)


class MailboxStatistics(Struct, frozen=True, kw_only=True):
    """All mailboxes at one moment.

    Attributes:
        clients: Devices and modules with messages.
        waiting: Messages that wait or are in flight.
        in_flight: Of them, those without an acknowledgement yet.
        bytes: Of all that wait.
        dead: Dead letters.
        accepted_total: Messages stored since the start.
        ended_total: Messages by what became of them, since the start.
    """

    clients: int
    waiting: int
    in_flight: int
    bytes: int
    dead: int
    accepted_total: int
    ended_total: dict[str, int]


class Mailboxes:
    """The messages to all devices and modules.

    Args:
        table: Keeps them.
        settings: Bounds and defaults.
        clock: Timers.
        now_ms: Hub time.
        utc_ms: Returns the UTC of a hub time, None = it is not known.
        new_id: Makes an id for a message without one.
        queues: The request queues of devices.
        send: Sends to connected clients.
        report: Informs senders: message, what became of it, details.
    """

    def __init__(  # noqa: PLR0913 - its neighbours, each by name
        self,
        table: DeviceMessageTable,
        settings: DeviceBoundSettings,
        *,
        clock: Clock,
        now_ms: Callable[[], int],
        utc_ms: Callable[[int], int | None],
        new_id: Callable[[], str],
        queues: RequestQueues,
        send: SendToClient,
        report: Callable[[DeviceMessage, EndReason, str], None],
    ) -> None:
        self.settings = settings
        self._table = table
        self._clock = clock
        self._now_ms = now_ms
        self._utc_ms = utc_ms
        self._new_id = new_id
        self._queues = queues
        self._send = send
        self._report = report
        self._boxes: dict[str, Mailbox] = {}
        self._dead: OrderedDict[int, DeviceMessage] = OrderedDict()
        self._expiries: list[tuple[int, int, DeviceMessage]] = []
        """A heap of the times at which messages expire; some have left before."""
        self._last_number = 0
        self._waiting = self._bytes = self._accepted = 0
        self._ended: Counter[EndReason] = Counter()
        self.followers: list[Callable[[str], None]] = []
        """Called with the device of each message that is durable now."""
        self.newest_stored: asyncio.Future[None] | None = None
        """Done once all messages that were accepted so far are durable; None = none was."""
        self.newest = dict.fromkeys(EndReason, "")
        """Target and id of the newest message with each reason."""

    async def load(self) -> None:
        """Read what is stored, before any client is connected."""
        for message in await self._table.load():
            self._last_number = message.number
            if message.dead is None:
                self._insert(message)
            else:
                self._dead[message.number] = message

    async def run(self) -> None:
        """Remove expired messages until cancelled."""
        while True:
            await self._clock.sleep(LOOK_S)
            self.expire()

    def accept(
        self,
        target: str,
        body: bytes,
        properties: Properties,
        system: Properties,
        *,
        origin: Origin,
        priority: Priority = DEFAULT_PRIORITY,
        ttl_ms: int | None = None,
    ) -> tuple[DeviceMessage, asyncio.Future[None]]:
        """Take a message.

        Args:
            target: `<device>` or `<device>/<module>`.
            body: Payload.
            properties: Application properties.
            system: System properties; `messageId` is the id of the message, if it has one.
            origin: Who sent it.
            priority: 0 to 9, or the default one behind them.
            ttl_ms: How long it may wait, None = the default; at most 48 h.

        Returns:
            The message, and a future that is done once it is durable; it fails with a StoreError.

        Raises:
            QueueDepthExceededError: There is no room for it; the sender is informed if it asked
                for that.
            orjson.JSONEncodeError: A property cannot be written as UTF-8.
        """
        now_ms = self._now_ms()
        longest_ms = TTL_S_MAX * 1000
        ttl_ms = self.settings.ttl_s * 1000 if ttl_ms is None else min(ttl_ms, longest_ms)
        message = DeviceMessage(
            target=target,
            message_id=system.get("messageId") or self._new_id(),
            properties=properties,
            system=system,
            body=body,
            priority=priority,
            origin=origin,
            enqueued_ms=now_ms,
            expires_ms=now_ms + ttl_ms,
            size=size_of(properties, system, body),
        )
        if full := self.fault(target, message.size):
            self._record(message, EndReason.QUEUE_DEPTH_EXCEEDED, full)
            raise QueueDepthExceededError(full)
        message.number = self._last_number + 1
        stored = self._table.add(message)
        self._last_number = message.number
        self._accepted += 1
        self._insert(message)
        stored.add_done_callback(partial(self._stored, message))
        self.newest_stored = stored
        if not _is_refused(stored):
            # On a busy hub a commit takes longer than all the rest of the way to the client.
            self._pump(self._box(target))
        return message, stored

    def listening(self, target: str, listens: bool) -> None:
        """Record that a client begins or ceases to listen."""
        box = self._box(target)
        box.listens = listens
        if listens:
            # Most clients expect the answer to their SUBSCRIBE before what it brings.
            asyncio.get_running_loop().call_soon(self._pump, box)
        self._forget_unused(box)

    def send_by(self, target: str, send: SendToClient | None) -> None:
        """Send the messages of a client that always listens by `send`; None = no more."""
        self._box(target).send = send
        self.listening(target, send is not None)

    def has_next(self, target: str) -> bool:
        """Return whether a message of a client could be taken."""
        box = self._boxes.get(target)
        return box is not None and not box.listens and box.first() is not None

    def take(self, target: str) -> WaitingMessage | None:
        """Return the next message for a client that listens for a moment, None = there is none."""
        box, now_ms = self._boxes.get(target), self._now_ms()
        if box is None or box.listens:
            return None
        while (message := box.first()) is not None:
            if message.expires_ms <= now_ms:
                self._end(box, message, EndReason.EXPIRED)
                continue
            box.in_flight.add(message)
            return WaitingMessage(
                message=message.outgoing(now_ms, self._utc_ms(message.expires_ms))[1],
                settle=partial(self._settle, box, message),
                written=partial(self._written, message),
                has_more=box.first() is not None,
            )
        return None

    def fault(self, target: str, size: int) -> str:
        """Return why there is no room for a message of that size, "" = there is."""
        box = self._boxes.get(target)
        depth = 0 if box is None else len(box.messages)
        if depth >= self.settings.waiting_max:
            return f"{depth} messages wait for {target} (device_bound.waiting_max)"
        if self._bytes + size > self.settings.bytes_max:
            return f"{self._bytes} bytes wait for all clients (device_bound.bytes_max)"
        return ""

    def movable(self) -> list[str]:
        """Return the clients whose messages another hub could take."""
        return [target for target, box in self._boxes.items() if box.messages and box.is_movable]

    def lend(self, target: str) -> DeviceMessage | None:
        """Return the next message that another hub could take, and keep it until `give_back`."""
        box = self._boxes.get(target)
        message = None if box is None or not box.is_movable else box.first()
        if box is None or message is None or self.left_ms(message) <= 0:
            return None
        box.in_flight.add(message)
        return message

    def give_back(self, message: DeviceMessage, *, moved: bool) -> None:
        """Remove a message that another hub has stored, or let it wait here again."""
        box = self._boxes[message.target]
        box.in_flight.discard(message)
        if moved:
            self._end(box, message, EndReason.MOVED)
        self._pump(box)
        self._forget_unused(box)

    def left_ms(self, message: DeviceMessage) -> int:
        """Return the time to live that a message has left, in milliseconds."""
        return message.expires_ms - self._now_ms()

    def expire(self) -> None:
        """Remove expired messages; those in flight stay until their result is known."""
        now_ms = self._now_ms()
        while self._expiries and self._expiries[0][0] <= now_ms:
            _, _, message = heapq.heappop(self._expiries)
            box = self._boxes.get(message.target)
            if box is not None and message in box.messages and message not in box.in_flight:
                self._end(box, message, EndReason.EXPIRED)

    def of(self, target: str) -> list[DeviceMessage]:
        """Return the messages that wait for a client, the next one first."""
        box = self._boxes.get(target)
        return [] if box is None else list(box.messages)

    def waits(self, target: str, message_id: str) -> bool:
        """Return whether a message with this id waits for a client."""
        return any(each.message_id == message_id for each in self.of(target))

    def in_flight(self, message: DeviceMessage) -> bool:
        """Return whether a message was handed to its client's connection."""
        box = self._boxes.get(message.target)
        return box is not None and message in box.in_flight

    def dead(self, target: str) -> list[DeviceMessage]:
        """Return the dead letters of a client, the oldest first."""
        return [message for message in self._dead.values() if message.target == target]

    def counts(self) -> dict[str, int]:
        """Return the number of messages that wait, by client."""
        return {target: len(box.messages) for target, box in self._boxes.items() if box.messages}

    async def purge(self, target: str, message_id: str | None, *, dead: bool) -> int:
        """Remove messages that are not in flight.

        Args:
            target: The client, `<device>` or `<device>/<module>`.
            message_id: Only those with this id, None = all.
            dead: Dead letters instead of those that wait.

        Returns:
            How many were removed.

        Raises:
            StoreError: It could not be written.
        """
        box = self._box(target)
        found = self.dead(target) if dead else [m for m in box.messages if m not in box.in_flight]
        found = [each for each in found if message_id in (None, each.message_id)]
        stored: asyncio.Future[None] | None = None
        for message in found:
            if dead:
                del self._dead[message.number]
                stored = self._table.remove(message)
            else:
                stored = self._end(box, message, EndReason.PURGED)
        self._forget_unused(box)
        if stored is not None:
            await stored
        return len(found)

    def statistics(self) -> MailboxStatistics:
        """Return the mailboxes as they are now."""
        boxes = [box for box in self._boxes.values() if box.messages]
        return MailboxStatistics(
            clients=len(boxes),
            waiting=self._waiting,
            in_flight=sum(len(box.in_flight) for box in boxes),
            bytes=self._bytes,
            dead=len(self._dead),
            accepted_total=self._accepted,
            ended_total={reason.value: self._ended[reason] for reason in EndReason},
        )

    def close(self) -> None:
        """Stop the timers; nothing is sent any more."""
        for box in self._boxes.values():
            box.listens = False
            if box.retry is not None:
                box.retry.cancel()

    def _insert(self, message: DeviceMessage) -> None:
        self._box(message.target).add(message)
        self._waiting += 1
        self._bytes += message.size
        heapq.heappush(self._expiries, (message.expires_ms, message.number, message))
        if len(self._expiries) > 2 * self._waiting + _ENDED_MAX:
            waiting = [each for box in self._boxes.values() for each in box.messages]
            self._expiries = [(each.expires_ms, each.number, each) for each in waiting]
            heapq.heapify(self._expiries)

    def _stored(self, message: DeviceMessage, stored: asyncio.Future[None]) -> None:
        if not _is_refused(stored):
            for follower in self.followers:
                follower(message.device_id)

    def _box(self, target: str) -> Mailbox:
        box = self._boxes.get(target)
        if box is None:
            box = self._boxes[target] = Mailbox(target)
        return box

    def _forget_unused(self, box: Mailbox) -> None:
        if box.is_unused:
            self._boxes.pop(box.target, None)

    def _pump(self, box: Mailbox) -> None:
        while (message := box.next()) is not None:
            box.in_flight.add(message)
            queue = self._queues.of(message.device_id)
            queue.call(RequestKind.DOWNLINK, partial(self._deliver, box, message))

    def _deliver(self, box: Mailbox, message: DeviceMessage) -> None:
        now_ms = self._now_ms()
        if message.expires_ms <= now_ms:
            self._end(box, message, EndReason.EXPIRED)
            self._pump(box)
            return
        bag, leaving = message.outgoing(now_ms, self._utc_ms(message.expires_ms))
        send = self._send if box.send is None else box.send
        send(
            box.target,
            bag,
            leaving,
            partial(self._settle, box, message),
            dup=message.deliveries > 0,
            written=partial(self._written, message),
        )

    def _written(self, message: DeviceMessage) -> None:
        message.deliveries += 1
        self._table.update(message)

    def _settle(self, box: Mailbox, message: DeviceMessage, result: SendResult) -> None:
        box.in_flight.discard(message)
        if result.kind is None:
            self._end(box, message, EndReason.SUCCESS)
        elif isinstance(result, RefusedByClient) or result.kind in {
            FailureKind.REJECTED,
            FailureKind.TOO_LARGE,
        }:
            self._end(box, message, EndReason.REJECTED, result.reason)
        elif message.deliveries >= self.settings.deliveries_max:
            detail = f"delivered {message.deliveries} times, the last time: {result.reason}"
            self._end(box, message, EndReason.DELIVERY_COUNT_EXCEEDED, detail)
        elif message.expires_ms <= self._now_ms():
            self._end(box, message, EndReason.EXPIRED)
        elif result.kind not in {FailureKind.TIMEOUT, FailureKind.DISCONNECTED}:
            self._pause(box, result.retry_after_s or RETRY_S)
        self._pump(box)
        self._forget_unused(box)

    def _pause(self, box: Mailbox, seconds: float) -> None:
        if box.retry is None and box.listens:
            box.retry = self._clock.call_later(seconds, partial(self._retry, box))

    def _retry(self, box: Mailbox) -> None:
        box.retry = None
        self._pump(box)
        self._forget_unused(box)

    def _end(
        self, box: Mailbox, message: DeviceMessage, reason: EndReason, detail: str = ""
    ) -> asyncio.Future[None] | None:
        """End a message; returns a future that is done once its removal is durable."""
        self._take_out(box, message)
        # Before the change of the table, so that both are in one commit.
        self._record(message, reason, detail)
        if reason not in DEAD:
            return self._table.remove(message)
        message.dead, message.body = f"{reason}: {detail}", b""
        self._dead[message.number] = message
        self._table.update(message)
        log.warning(
            "device_bound.dead_letter",
            target=message.target,
            message_id=message.message_id,
            reason=message.dead,
        )
        while len(self._dead) > DEAD_MAX:
            self._table.remove(self._dead.popitem(last=False)[1])
        return None

    def _take_out(self, box: Mailbox, message: DeviceMessage) -> None:
        box.remove(message)
        self._waiting -= 1
        self._bytes -= message.size

    def _record(self, message: DeviceMessage, reason: EndReason, detail: str) -> None:
        self._ended[reason] += 1
        self.newest[reason] = f"{message.target}, {message.message_id}"
        if message.wants(reason):
            self._report(message, reason, detail)


def _is_refused(stored: asyncio.Future[None]) -> bool:
    """Return whether the store takes nothing more, so that the sender has no acknowledgement."""
    return stored.done() and (stored.cancelled() or stored.exception() is not None)

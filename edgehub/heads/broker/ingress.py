"""From a PUBLISH of a broker to the router, or to the local topic space, and back to its PUBACK.

Owns the messages of one connection that are not acknowledged yet. Invariants: a message is
acknowledged once it is durable, or dropped and counted; PUBACKs leave in the order of their
PUBLISHes [MQTT-4.6.0-2]; while a limit refuses a message, it and all later ones wait here, up to a
bound, and beyond that at the broker; nothing is acknowledged across connections.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from edgehub.clock import Clock, Timer, TimerHandle
from edgehub.heads.broker.statistics import BrokerDrop
from edgehub.message import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.heads.broker.dispatcher import Dispatcher
    from edgehub.heads.broker.statistics import BrokerCounters
    from edgehub.mqtt.client import Client
    from edgehub.mqtt.client_decoder import IncomingPublish
    from edgehub.telemetry.log_limit import LogLimit

MESSAGE_BYTES: Final = 256
"""Added to the packet size of each message."""

_FOR_NOW: Final = frozenset({Refusal.LIMIT, Refusal.UNAVAILABLE})
_FINAL: Final = {
    Refusal.INVALID: BrokerDrop.INVALID,
    Refusal.RESERVED: BrokerDrop.RESERVED,
}

SLICE: Final = 64
"""Messages that are handled at once; about three milliseconds of work."""

PAUSE_S_MAX: Final = 5.0
"""Longest pause of reading, since PINGRESP is not read either."""

FIRST_RETRY_S: Final = 0.2
RETRY_S_MAX: Final = 30.0


class Load:
    """Unsettled messages of all connections of one head.

    Args:
        emptied: Called when the last one is settled.

    Attributes:
        count: Messages.
        bytes: Their size.
    """

    def __init__(self, emptied: Callable[[], None]) -> None:
        self.count = 0
        self.bytes = 0
        self.emptied = emptied

    def add(self, size: int) -> None:
        """Count a message."""
        self.count += 1
        self.bytes += size

    def remove(self, size: int) -> None:
        """Remove a settled message."""
        self.count -= 1
        self.bytes -= size
        if not self.count:
            self.emptied()


class _Entry(Struct, eq=False):
    incoming: IncomingPublish
    is_waiting: bool = False
    is_settled: bool = False


class BrokerIngress:
    """Messages of one connection to the broker.

    Args:
        peer: The connection.
        dispatcher: Where messages go.
        load: Unsettled messages of all connections.
        counters: Of the head.
        clock: For retries after a refusal.
        log: For dropped messages.
        backlog_bytes_max: Bound of `load`.

    Attributes:
        is_holding: Whether messages wait here because a limit refused one.
    """

    def __init__(
        self,
        peer: Client,
        dispatcher: Dispatcher,
        load: Load,
        counters: BrokerCounters,
        *,
        clock: Clock,
        log: LogLimit,
        backlog_bytes_max: int,
    ) -> None:
        self._peer = peer
        self._dispatcher = dispatcher
        self._load = load
        self._counters = counters
        self._clock = clock
        self._log = log
        self._backlog_bytes_max = backlog_bytes_max
        # In order of arrival; `_first` is the token of the oldest.
        self._entries: deque[_Entry] = deque()
        self._first = 0
        self._fresh: deque[IncomingPublish] = deque()
        self._is_working = False
        self._is_slicing = False
        self.is_holding = False
        self._retry_s = FIRST_RETRY_S
        self._timer = Timer(clock, self._try_again)
        self._pause: TimerHandle | None = None
        self._may_pause = True
        self._has_left = False
        self.is_putting_off = False
        """Whether messages were left at the broker for the next connection."""
        self.takes = True
        """False = the hub shuts down, and no more messages are taken or acknowledged."""

    def take(self, messages: list[IncomingPublish]) -> None:
        """Handle received messages, a slice at a time."""
        self._counters.received_total += len(messages)
        self._fresh.extend(messages)
        if not self._is_working:
            self._is_working = True
            self._work()

    def _work(self) -> None:
        if self._has_left:
            return
        fresh = self._fresh
        for _ in range(min(SLICE, len(fresh))):
            incoming = fresh.popleft()
            self._counters.redelivered_total += incoming.dup
            if incoming.qos:
                self._take(incoming)
            else:
                self._take_qos0(incoming)
        self._acknowledge()
        if self._load.bytes * 2 > self._backlog_bytes_max:
            self._pause_reading()
        if fresh:
            if not self._is_slicing:
                # Else messages would pile up here.
                self._is_slicing = True
                self._peer.pause_reading()
            self._dispatcher.soon(self._work)
            return
        self._is_working = False
        if self._is_slicing:
            self._is_slicing = False
            self._peer.resume_reading()

    def stop(self) -> None:
        """Take no more messages; those already submitted are still acknowledged."""
        self.takes = False
        self._release_waiting()

    def leave(self) -> None:
        """Acknowledge nothing more; submitted messages are still counted until they are settled."""
        self._has_left = True
        self._release_waiting()

    # Back pressure on a broker that sends faster than messages can be stored.

    def _pause_reading(self) -> None:
        if self._may_pause and self._pause is None and not self.is_holding and self.takes:
            self._peer.pause_reading()
            self._pause = self._clock.call_later(PAUSE_S_MAX, self._give_up_pause)

    def _resume_reading(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
            self._peer.resume_reading()

    def _give_up_pause(self) -> None:
        # Nothing gets stored; further messages are left at the broker instead.
        self._may_pause = False
        self._resume_reading()

    def _release_waiting(self) -> None:
        self._resume_reading()
        self._timer.cancel()
        self.is_holding = False
        for entry in self._entries:
            if entry.is_waiting:
                entry.is_waiting = False
                self._unload(entry.incoming)

    # One message.

    def _take(self, incoming: IncomingPublish) -> None:
        size = _size(incoming)
        if not self.takes or self.is_putting_off:
            self._counters.put_off_total += 1
            return
        if self._load.bytes + size > self._backlog_bytes_max and self._load.count:
            # The broker sends it and all later ones again on the next connection.
            self.is_putting_off = True
            self._counters.put_off_total += 1
            return
        entry = _Entry(incoming)
        token = self._first + len(self._entries)
        self._entries.append(entry)
        self._load.add(size)
        if self.is_holding:
            entry.is_waiting = True
        else:
            self._offer(entry, token)

    def _take_qos0(self, incoming: IncomingPublish) -> None:
        reason = None
        if not self.takes:
            reason = BrokerDrop.CLOSING
        elif self.is_holding:
            reason = BrokerDrop.LIMIT
        elif self._load.bytes >= self._backlog_bytes_max:
            reason = BrokerDrop.QOS0_BACKLOG
        if reason is None:
            self._load.add(_size(incoming))
            settle = partial(self._settled_qos0, incoming)
            reason = self._dispatcher.offer(incoming, settle, 0)
            if reason is not None:
                settle(0, None)
        if reason is not None:
            self._drop(incoming, reason)

    def _offer(self, entry: _Entry, token: int) -> None:
        reason = self._dispatcher.offer(entry.incoming, self._settled, token)
        if reason is not None:
            self._drop(entry.incoming, reason)
            self._settled(token, None)

    # Its outcome.

    def _settled(self, token: int, refusal: Refusal | None) -> None:
        entry = self._entries[token - self._first]
        if refusal in _FOR_NOW and self.takes and not self._has_left:
            self._hold(entry)
            return
        if refusal in _FINAL:
            self._drop(entry.incoming, _FINAL[refusal])
            refusal = None
        elif refusal is Refusal.UNROUTED:
            refusal = None
        self._unload(entry.incoming)
        if refusal is None:
            entry.is_settled = True
            if token == self._first and not self._has_left:
                self._dispatcher.soon(self._acknowledge)
        # Else the hub shuts down, or the connection is closed, and the broker sends it again.

    def _settled_qos0(
        self, incoming: IncomingPublish, _token: int, refusal: Refusal | None
    ) -> None:
        self._unload(incoming)
        if refusal is not None and refusal is not Refusal.UNROUTED:
            reason = BrokerDrop.CLOSING if refusal is Refusal.CLOSED else BrokerDrop.LIMIT
            self._drop(incoming, _FINAL.get(refusal, reason))

    def _unload(self, incoming: IncomingPublish) -> None:
        self._load.remove(_size(incoming))
        self._eased()

    def _eased(self) -> None:
        if self._load.bytes * 4 <= self._backlog_bytes_max:
            self._may_pause = True
            if self._pause is not None:
                self._dispatcher.soon(self._resume_reading)

    def bring_back(self) -> bool:
        """Reconnect for the messages left at the broker, if all others are settled."""
        if not self.is_putting_off or self._has_left or self._load.count or not self.takes:
            return False
        self._acknowledge()
        self._peer.abort("there is room again for messages left at the broker")
        return True

    def _acknowledge(self) -> None:
        if self._has_left:
            return
        done: list[IncomingPublish] = []
        entries = self._entries
        while entries and entries[0].is_settled:
            done.append(entries.popleft().incoming)
        if done:
            self._first += len(done)
            self._counters.acknowledged_total += len(done)
            self._peer.acknowledge_all(done)

    # Refused by a limit.

    def _hold(self, entry: _Entry) -> None:
        entry.is_waiting = True
        self.is_holding = True
        self._resume_reading()
        if not self._timer.is_running:
            self._timer.start(self._retry_s)
            self._retry_s = min(RETRY_S_MAX, self._retry_s * 2)

    def _try_again(self) -> None:
        first = next(entry for entry in self._entries if entry.is_waiting)
        if not self._dispatcher.may_fit(first.incoming):
            self._hold(first)
            return
        self.is_holding = False
        # Messages settled at once change the order of entries only in `_acknowledge`.
        for place, entry in enumerate(list(self._entries)):
            if entry.is_waiting:
                entry.is_waiting = False
                self._offer(entry, self._first + place)
                if self.is_holding:
                    break
                self._retry_s = FIRST_RETRY_S
        self._acknowledge()

    def _drop(self, incoming: IncomingPublish, reason: BrokerDrop) -> None:
        self._counters.dropped[reason] += 1
        self._counters.newest_dropped[reason] = (incoming.topic or "")[:80]
        self._dispatcher.refused(incoming, reason)
        self._log.warning(
            "broker.message_dropped",
            reason=reason.value,
            topic=None if incoming.topic is None else incoming.topic[:80],
            bytes=incoming.size,
        )


def _size(incoming: IncomingPublish) -> int:
    return incoming.size + MESSAGE_BYTES

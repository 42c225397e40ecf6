"""From a broker's PUBLISH to the router, or to the local topic space, and back to its PUBACK.

Owns the messages of one connection that are not acknowledged yet. Invariants: a message is
acknowledged once it is durable, or dropped and counted; PUBACKs leave in the order of their
PUBLISHes [MQTT-4.6.0-2]; while a limit refuses one, it and all behind it wait here, up to a bound,
and beyond that at the broker; nothing is acknowledged across connections.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

from edgehub.heads.broker.statistics import BrokerDrop
from edgehub.message import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.clock import Clock, TimerHandle
    from edgehub.heads.broker.exchange import Exchange
    from edgehub.heads.broker.statistics import BrokerCounters
    from edgehub.mqtt.client import Client
    from edgehub.mqtt.client_decoder import IncomingPublish
    from edgehub.telemetry.log_limit import LogLimit

MESSAGE_BYTES: Final = 256
"""What a message counts beside its packet."""

_FOR_NOW: Final = frozenset({Refusal.LIMIT, Refusal.UNAVAILABLE})
_FINAL: Final = {
    Refusal.INVALID: BrokerDrop.INVALID,
    Refusal.RESERVED: BrokerDrop.RESERVED,
}

SLICE: Final = 64
"""Messages that are taken before others have their turn; about three milliseconds of work."""

PAUSE_S_MAX: Final = 5.0
"""Reading does not pause for longer, because answers to pings are not read either."""

FIRST_RETRY_S: Final = 0.2
RETRY_S_MAX: Final = 30.0


class Load:
    """What all connections of one head have taken and not settled.

    Attributes:
        count: Messages.
        bytes: Their size.
        emptied: Called when nothing is left.
    """

    __slots__ = ("bytes", "count", "emptied")

    def __init__(self) -> None:
        self.count = 0
        self.bytes = 0
        self.emptied: Callable[[], None] = _nothing

    def add(self, size: int) -> None:
        """Count a message that was taken."""
        self.count += 1
        self.bytes += size

    def remove(self, size: int) -> None:
        """Count one that is settled."""
        self.count -= 1
        self.bytes -= size
        if not self.count:
            self.emptied()


class _Entry:
    __slots__ = ("incoming", "is_settled", "is_waiting")

    def __init__(self, incoming: IncomingPublish) -> None:
        self.incoming = incoming
        self.is_waiting = False
        self.is_settled = False


class Intake:
    """See the module.

    Args:
        peer: The connection.
        exchange: Where messages go.
        load: Counts what is not settled, over all connections.
        counters: Of the head.
        clock: For the next try after a refusal.
        log: For what was dropped.
        backlog_bytes_max: Bound of `load`.
    """

    __slots__ = (
        "_backlog_bytes_max",
        "_clock",
        "_counters",
        "_entries",
        "_exchange",
        "_first",
        "_fresh",
        "_has_left",
        "_held",
        "_is_slicing",
        "_is_working",
        "_load",
        "_log",
        "_may_pause",
        "_pause",
        "_peer",
        "_retry_s",
        "_timer",
        "is_putting_off",
        "takes",
    )

    def __init__(
        self,
        peer: Client,
        exchange: Exchange,
        load: Load,
        counters: BrokerCounters,
        *,
        clock: Clock,
        log: LogLimit,
        backlog_bytes_max: int,
    ) -> None:
        self._peer = peer
        self._exchange = exchange
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
        self._held = False
        self._retry_s = FIRST_RETRY_S
        self._timer: TimerHandle | None = None
        self._pause: TimerHandle | None = None
        self._may_pause = True
        self._has_left = False
        self.is_putting_off = False
        """Messages were left at the broker; they come again over the next connection."""
        self.takes = True
        """False = the hub shuts down: what comes is neither taken nor acknowledged."""

    @property
    def is_holding(self) -> bool:
        """Whether a limit refused a message that waits here."""
        return self._held

    def take(self, messages: list[IncomingPublish]) -> None:
        """Take what came, with turns for others in between."""
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
                # What is read meanwhile would pile up here.
                self._is_slicing = True
                self._peer.pause_reading()
            self._exchange.soon(self._work)
            return
        self._is_working = False
        if self._is_slicing:
            self._is_slicing = False
            self._peer.resume_reading()

    def stop(self) -> None:
        """The hub shuts down: what is under way is still acknowledged, the rest comes again."""
        self.takes = False
        self._let_go()

    def leave(self) -> None:
        """The connection is gone: what is under way is still counted, and never acknowledged."""
        self._has_left = True
        self._let_go()

    # A broker that sends faster than messages can be stored.

    def _pause_reading(self) -> None:
        if self._may_pause and self._pause is None and not self._held and self.takes:
            self._peer.pause_reading()
            self._pause = self._clock.call_later(PAUSE_S_MAX, self._give_up_pause)

    def _resume_reading(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
            self._peer.resume_reading()

    def _give_up_pause(self) -> None:
        # Nothing gets stored; what is too much is left at the broker instead.
        self._may_pause = False
        self._resume_reading()

    def _let_go(self) -> None:
        self._resume_reading()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._held = False
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
            # It and all that follows come again once this connection has ended.
            self.is_putting_off = True
            self._counters.put_off_total += 1
            return
        entry = _Entry(incoming)
        token = self._first + len(self._entries)
        self._entries.append(entry)
        self._load.add(size)
        if self._held:
            entry.is_waiting = True
        else:
            self._offer(entry, token)

    def _take_qos0(self, incoming: IncomingPublish) -> None:
        reason = None
        if not self.takes:
            reason = BrokerDrop.CLOSING
        elif self._held:
            reason = BrokerDrop.LIMIT
        elif self._load.bytes >= self._backlog_bytes_max:
            reason = BrokerDrop.QOS0_BACKLOG
        if reason is None:
            self._load.add(_size(incoming))
            settle = partial(self._settled_qos0, incoming)
            reason = self._exchange.offer(incoming, settle, 0)
            if reason is not None:
                settle(0, None)
        if reason is not None:
            self._drop(incoming, reason)

    def _offer(self, entry: _Entry, token: int) -> None:
        reason = self._exchange.offer(entry.incoming, self._settled, token)
        if reason is not None:
            self._drop(entry.incoming, reason)
            self._settled(token, None)

    # What becomes of it.

    def _settled(self, token: int, refusal: Refusal | None) -> None:
        entry = self._entries[token - self._first]
        if refusal in _FOR_NOW and self.takes and not self._has_left:
            self._hold(entry)
            return
        if refusal in _FINAL:
            self._drop(entry.incoming, _FINAL[refusal])
            refusal = None
        self._unload(entry.incoming)
        if refusal is None:
            entry.is_settled = True
            if token == self._first and not self._has_left:
                self._exchange.soon(self._acknowledge)
        # Else the hub shuts down, or the connection is gone: it comes again.

    def _settled_qos0(
        self, incoming: IncomingPublish, _token: int, refusal: Refusal | None
    ) -> None:
        self._unload(incoming)
        if refusal is not None:
            reason = BrokerDrop.CLOSING if refusal is Refusal.CLOSED else BrokerDrop.LIMIT
            self._drop(incoming, _FINAL.get(refusal, reason))

    def _unload(self, incoming: IncomingPublish) -> None:
        self._load.remove(_size(incoming))
        self._eased()

    def _eased(self) -> None:
        if self._load.bytes * 4 <= self._backlog_bytes_max:
            self._may_pause = True
            if self._pause is not None:
                self._exchange.soon(self._resume_reading)

    def bring_back(self) -> bool:
        """Have the broker send again what was left there, if all that was taken is settled."""
        if not self.is_putting_off or self._has_left or self._load.count or not self.takes:
            return False
        self._acknowledge()
        self._peer.abort("there is room again for what was left at the broker")
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

    # A limit in the way.

    def _hold(self, entry: _Entry) -> None:
        entry.is_waiting = True
        self._held = True
        self._resume_reading()
        if self._timer is None:
            self._timer = self._clock.call_later(self._retry_s, self._try_again)
            self._retry_s = min(RETRY_S_MAX, self._retry_s * 2)

    def _try_again(self) -> None:
        self._timer = None
        first = next(entry for entry in self._entries if entry.is_waiting)
        if not self._exchange.may_fit(first.incoming):
            self._hold(first)
            return
        self._held = False
        # What is settled at once changes the row of entries only in `_acknowledge`.
        for place, entry in enumerate(list(self._entries)):
            if entry.is_waiting:
                entry.is_waiting = False
                self._offer(entry, self._first + place)
                if self._held:
                    break
                self._retry_s = FIRST_RETRY_S
        self._acknowledge()

    def _drop(self, incoming: IncomingPublish, reason: BrokerDrop) -> None:
        self._counters.dropped[reason] += 1
        self._counters.newest_dropped[reason] = (incoming.topic or "")[:80]
        self._exchange.refused(incoming, reason)
        self._log.warning(
            "broker.message_dropped",
            reason=reason.value,
            topic=None if incoming.topic is None else incoming.topic[:80],
            bytes=incoming.size,
        )


def _size(incoming: IncomingPublish) -> int:
    return incoming.size + MESSAGE_BYTES


def _nothing() -> None:
    """Stand in for a connection: there is none."""

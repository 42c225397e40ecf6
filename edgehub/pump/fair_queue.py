"""A queue whose rows are sent over the sessions of their devices, fairly between devices.

Owns the rows that were read and not handed over yet, a few of each device, and the round robin over
devices. It wraps the store's queue; the pump sees a `PumpQueue`. Invariants: the devices that may
send get one row each in turn; rows of one device are sent in the order of the queue; rows of a
device that may not send stay in the queue.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final

from edgehub.devices.upstream_sessions import SendState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from edgehub.devices.upstream_sessions import UpstreamSessions
    from edgehub.message import FailureKind, QueueId, Row
    from edgehub.pump.queue import PumpQueue

STAGED_MAX: Final = 2048
"""Rows read ahead for all devices of a queue."""

STAGED_OF_ONE_MAX: Final = 16
"""Rows read ahead for one device, so that one with a backlog leaves room for others."""

READ_ROWS: Final = 256
READ_BYTES: Final = 2**20


class FairQueue:
    """One queue with its devices; implements `PumpQueue`.

    Args:
        queue: The store's.
        sessions: Over which session rows of a device leave.
        wake: Called when rows can be read that could not before.

    Attributes:
        staged: Rows that were read and not handed over.
    """

    def __init__(
        self, queue: PumpQueue, sessions: UpstreamSessions, wake: Callable[[PumpQueue], None]
    ) -> None:
        self.id = queue.id
        self.endpoint_id = queue.endpoint_id
        self.priority = queue.priority
        self.out_of_turn = queue.out_of_turn
        self._queue = queue
        self._sessions = sessions
        self._wake = wake
        self._staged: dict[str, deque[Row]] = {}
        self._open: OrderedDict[str, None] = OrderedDict()
        """Devices with staged rows that may send, the next one first."""
        self.staged = 0
        self._full: dict[str, set[str]] = {}
        """Senders held back by device: enough of its rows are staged."""
        self._shut: dict[str, set[str]] = {}
        """Senders held back by device: it cannot send."""
        self._held: set[str | int] = set()
        """Senders and rows that the pump holds back."""
        self._in_flight: dict[int, str] = {}
        sessions.add_listener(self._state_changed)

    def has_ready(self) -> bool:
        """Return whether rows are ready; those whose device cannot send count until read."""
        return bool(self._open) or (self.staged < STAGED_MAX and self._queue.has_ready())

    async def read_batch(self, rows_max: int, bytes_max: int) -> list[Row]:
        """Read the oldest ready rows; they are in flight from here on."""
        while self.staged < STAGED_MAX and self._queue.has_ready():
            rows_left = STAGED_MAX - self.staged
            rows = await self._queue.read_batch(min(READ_ROWS, rows_left), READ_BYTES)
            self._stage(rows)
            if not rows or len(self._open) >= rows_max:
                break
        return self._take_turns(rows_max, bytes_max)

    def confirm(self, rows: Sequence[Row]) -> None:
        """Remove rows that were delivered."""
        self._queue.confirm(rows)
        self._settled(rows)

    def give_back(
        self, rows: Sequence[Row], *, attempted: bool, refusal: str | None = None
    ) -> None:
        """Return rows, and staged rows of the same devices, to keep the order."""
        self._queue.give_back(rows, attempted=attempted, refusal=refusal)
        for device_id in {row.message.device_id for row in rows}:
            self._unstage(device_id)
        self._settled(rows)

    def expire(self, rows: Sequence[Row]) -> None:
        """Remove rows in flight whose time to live has ended."""
        self._queue.expire(rows)
        self._settled(rows)

    def dead_letter(self, row: Row, kind: FailureKind, reason: str) -> None:
        """Make a row in flight a dead letter."""
        self._queue.dead_letter(row, kind, reason)
        self._settled((row,))

    def hold(self, who: str | int) -> None:
        """Hold the rows of a sender back, or the one row of an offset, until released."""
        if not self._is_held(who):
            self._queue.hold(who)
        self._held.add(who)
        if isinstance(who, str):
            self._unstage(who.partition("/")[0])

    def release(self, who: str | int) -> None:
        """End `hold`."""
        self._held.discard(who)
        if not self._is_held(who):
            self._queue.release(who)

    def close(self) -> None:
        """Return the staged rows: the pump has ended."""
        self._sessions.remove_listener(self._state_changed)
        for device_id in list(self._staged):
            self._unstage(device_id)

    def _stage(self, rows: Sequence[Row]) -> None:
        returned: list[Row] = []
        for row in rows:
            device_id, sender = row.message.device_id, row.message.sender
            staged = self._staged.get(device_id)
            if device_id in self._shut or (
                staged is None and self._sessions.send_state(device_id) is SendState.BLOCKED
            ):
                self._hold(self._shut, device_id, sender)
                returned.append(row)
                continue
            if sender in self._held or sender in self._full.get(device_id, ()):
                returned.append(row)
                continue
            if staged is None:
                staged = self._staged[device_id] = deque()
            staged.append(row)
            self.staged += 1
            self._sessions.count_staged(device_id, 1)
            if self._sessions.send_state(device_id) is SendState.OPEN:
                self._open.setdefault(device_id)
            if len(staged) >= STAGED_OF_ONE_MAX:
                for each in {one.message.sender for one in staged}:
                    self._hold(self._full, device_id, each)
        if returned:
            self._queue.give_back(returned, attempted=False)

    def _hold(self, why: dict[str, set[str]], device_id: str, sender: str) -> None:
        senders = why.setdefault(device_id, set())
        if sender not in senders:
            if not self._is_held(sender):
                self._queue.hold(sender)
            senders.add(sender)

    def _release(self, why: dict[str, set[str]], device_id: str) -> None:
        for sender in why.pop(device_id, ()):
            if not self._is_held(sender):
                self._queue.release(sender)

    def _is_held(self, who: str | int) -> bool:
        if who in self._held or isinstance(who, int):
            return who in self._held
        device_id = who.partition("/")[0]
        return who in self._shut.get(device_id, ()) or who in self._full.get(device_id, ())

    def _take_turns(self, rows_max: int, bytes_max: int) -> list[Row]:
        batch: list[Row] = []
        while self._open and len(batch) < rows_max and (bytes_max > 0 or not batch):
            device_id, _ = self._open.popitem(last=False)
            staged = self._staged[device_id]
            row = staged.popleft()
            self.staged -= 1
            bytes_max -= row.size
            batch.append(row)
            self._in_flight[row.offset] = device_id
            self._sessions.count_in_flight(device_id, 1)
            self._sessions.count_staged(device_id, -1)
            if staged:
                self._open[device_id] = None
            else:
                self._forget(device_id)
        return batch

    def _unstage(self, device_id: str) -> None:
        rows = self._staged.get(device_id)
        if rows is None:
            return
        self._forget(device_id)
        self.staged -= len(rows)
        if rows:
            self._queue.give_back(list(rows), attempted=False)
            self._sessions.count_staged(device_id, -len(rows))

    def _forget(self, device_id: str) -> None:
        self._staged.pop(device_id)
        self._open.pop(device_id, None)
        self._release(self._full, device_id)

    def _settled(self, rows: Sequence[Row]) -> None:
        for row in rows:
            device_id = self._in_flight.pop(row.offset, None)
            if device_id is not None:
                self._sessions.count_in_flight(device_id, -1)

    def _state_changed(self, device_id: str) -> None:
        state = self._sessions.send_state(device_id)
        if state is SendState.BLOCKED:
            self._unstage(device_id)
            return
        if device_id in self._staged:
            if state is SendState.OPEN:
                self._open.setdefault(device_id)
            else:
                self._open.pop(device_id, None)
        waited = device_id in self._shut
        self._release(self._shut, device_id)
        if waited or device_id in self._open:
            self._wake(self)


class FairQueues:
    """The fair queues of one endpoint.

    Args:
        queues: Returns the store's.
        sessions: Over which session rows of a device leave.

    Attributes:
        wake: Called when rows can be read that could not before; set once there is a pump.
    """

    def __init__(
        self, queues: Callable[[], Sequence[PumpQueue]], sessions: UpstreamSessions
    ) -> None:
        self._queues = queues
        self._sessions = sessions
        self._fair: dict[QueueId, FairQueue] = {}
        self.wake: Callable[[PumpQueue], None] = lambda _queue: None

    def __call__(self) -> list[FairQueue]:
        """Return them, best priority first."""
        return [self._of(queue) for queue in self._queues()]

    def close(self) -> None:
        """Return the staged rows: the pump has ended."""
        for fair in self._fair.values():
            fair.close()

    def _of(self, queue: PumpQueue) -> FairQueue:
        fair = self._fair.get(queue.id)
        if fair is None:
            fair = self._fair[queue.id] = FairQueue(queue, self._sessions, self._woken)
        return fair

    def _woken(self, queue: PumpQueue) -> None:
        self.wake(queue)

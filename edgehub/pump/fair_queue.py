"""A queue whose rows leave over the sessions of their devices: one lane for each device in it.

Owns the rows that were read and not handed over yet, a few of each device, and the turns between
devices. It stands in the place of the store's queue; the pump does not know of it. Invariants: the
lanes that may send get one row each in turn; rows of one device leave in the order of the queue; a
device that may not send keeps none of the places, its rows stay in the queue.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final, Protocol

from edgehub.devices.upstream_lanes import Way

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from edgehub.message import EndpointId, FailureKind, Priority, QueueId, Row
    from edgehub.pump.queue import OutOfTurn, PumpQueue

STAGED_MAX: Final = 2048
"""Rows read ahead for all devices of a queue."""

STAGED_OF_ONE_MAX: Final = 16
"""Rows read ahead for one of them, so that one with a backlog leaves places to the others."""

READ_ROWS: Final = 256
READ_BYTES: Final = 2**20


class DeviceWays(Protocol):
    """Who knows, and brings about, how rows of devices leave."""

    def way(self, device_id: str) -> Way:
        """Return how rows of a device may leave now."""

    def staged(self, device_id: str, rows: int) -> None:
        """Record rows that were read for a device; negative = they were handed over, or back.

        The first one has its session opened.
        """

    def handed_over(self, device_id: str, rows: int) -> None:
        """Record rows under way; negative = they were settled."""

    def follow(self, told: Callable[[str], None]) -> None:
        """Have `told` called with a device whose way has changed."""

    def unfollow(self, told: Callable[[str], None]) -> None:
        """End a `follow`."""


class FairQueue:
    """See the module; implements `PumpQueue`.

    Args:
        queue: The store's.
        ways: See `DeviceWays`.
        wake: Called when rows can be had that could not before.
    """

    def __init__(
        self, queue: PumpQueue, ways: DeviceWays, wake: Callable[[PumpQueue], None]
    ) -> None:
        self._queue = queue
        self._ways = ways
        self._wake = wake
        self._staged: dict[str, deque[Row]] = {}
        self._open: OrderedDict[str, None] = OrderedDict()
        """Devices with staged rows that may send, the one whose turn it is first."""
        self._count = 0
        self._full: dict[str, set[str]] = {}
        """Senders kept back by device, as enough of the device's rows are staged."""
        self._shut: dict[str, set[str]] = {}
        """Senders kept back by device, as it has no way."""
        self._held: set[str] = set()
        """Senders that the pump keeps back."""
        self._under_way: dict[int, str] = {}
        ways.follow(self._way_changed)

    @property
    def id(self) -> QueueId:
        """See `PumpQueue`."""
        return self._queue.id

    @property
    def endpoint_id(self) -> EndpointId:
        """See `PumpQueue`."""
        return self._queue.endpoint_id

    @property
    def priority(self) -> Priority:
        """See `PumpQueue`."""
        return self._queue.priority

    @property
    def out_of_turn(self) -> OutOfTurn:
        """See `PumpQueue`."""
        return self._queue.out_of_turn

    @property
    def staged(self) -> int:
        """Rows that were read and not handed over."""
        return self._count

    def has_ready(self) -> bool:
        """See `PumpQueue`; rows whose device has no way count once they have been looked at."""
        return bool(self._open) or (self._count < STAGED_MAX and self._queue.has_ready())

    async def read_batch(self, rows_max: int, bytes_max: int) -> list[Row]:
        """See `PumpQueue`."""
        while self._count < STAGED_MAX and self._queue.has_ready():
            rows_left = STAGED_MAX - self._count
            rows = await self._queue.read_batch(min(READ_ROWS, rows_left), READ_BYTES)
            self._stage(rows)
            if not rows or len(self._open) >= rows_max:
                break
        return self._deal(rows_max, bytes_max)

    def confirm(self, rows: Sequence[Row]) -> None:
        """See `PumpQueue`."""
        self._queue.confirm(rows)
        self._settled(rows)

    def give_back(
        self, rows: Sequence[Row], *, attempted: bool, refusal: str | None = None
    ) -> None:
        """See `PumpQueue`; what is staged of the same devices goes back too, to stay behind."""
        self._queue.give_back(rows, attempted=attempted, refusal=refusal)
        for device_id in {row.message.device_id for row in rows}:
            self._unstage(device_id)
        self._settled(rows)

    def expire(self, rows: Sequence[Row]) -> None:
        """See `PumpQueue`."""
        self._queue.expire(rows)
        self._settled(rows)

    def dead_letter(self, row: Row, kind: FailureKind, reason: str) -> None:
        """See `PumpQueue`."""
        self._queue.dead_letter(row, kind, reason)
        self._settled((row,))

    def hold_sender(self, sender: str) -> None:
        """See `PumpQueue`."""
        if not self._is_kept(sender):
            self._queue.hold_sender(sender)
        self._held.add(sender)
        self._unstage(sender.partition("/")[0])

    def release_sender(self, sender: str) -> None:
        """See `PumpQueue`."""
        self._held.discard(sender)
        if not self._is_kept(sender):
            self._queue.release_sender(sender)

    def hold_row(self, offset: int) -> None:
        """See `PumpQueue`."""
        self._queue.hold_row(offset)

    def release_row(self, offset: int) -> None:
        """See `PumpQueue`."""
        self._queue.release_row(offset)

    def close(self) -> None:
        """Put back what is staged: the pump has ended."""
        self._ways.unfollow(self._way_changed)
        for device_id in list(self._staged):
            self._unstage(device_id)

    def _stage(self, rows: Sequence[Row]) -> None:
        returned: list[Row] = []
        for row in rows:
            device_id, sender = row.message.device_id, row.message.sender
            staged = self._staged.get(device_id)
            if device_id in self._shut or (
                staged is None and self._ways.way(device_id) is Way.SHUT
            ):
                self._keep_back(self._shut, device_id, sender)
                returned.append(row)
                continue
            if sender in self._held or sender in self._full.get(device_id, ()):
                returned.append(row)
                continue
            if staged is None:
                staged = self._staged[device_id] = deque()
            staged.append(row)
            self._count += 1
            self._ways.staged(device_id, 1)
            if self._ways.way(device_id) is Way.OPEN:
                self._open.setdefault(device_id)
            if len(staged) >= STAGED_OF_ONE_MAX:
                for each in {one.message.sender for one in staged}:
                    self._keep_back(self._full, device_id, each)
        if returned:
            self._queue.give_back(returned, attempted=False)

    def _keep_back(self, why: dict[str, set[str]], device_id: str, sender: str) -> None:
        senders = why.setdefault(device_id, set())
        if sender not in senders:
            if not self._is_kept(sender):
                self._queue.hold_sender(sender)
            senders.add(sender)

    def _let_go(self, why: dict[str, set[str]], device_id: str) -> None:
        for sender in why.pop(device_id, ()):
            if not self._is_kept(sender):
                self._queue.release_sender(sender)

    def _is_kept(self, sender: str) -> bool:
        device_id = sender.partition("/")[0]
        return (
            sender in self._held
            or sender in self._shut.get(device_id, ())
            or sender in self._full.get(device_id, ())
        )

    def _deal(self, rows_max: int, bytes_max: int) -> list[Row]:
        batch: list[Row] = []
        while self._open and len(batch) < rows_max and (bytes_max > 0 or not batch):
            device_id, _ = self._open.popitem(last=False)
            staged = self._staged[device_id]
            row = staged.popleft()
            self._count -= 1
            bytes_max -= row.size
            batch.append(row)
            self._under_way[row.offset] = device_id
            self._ways.handed_over(device_id, 1)
            self._ways.staged(device_id, -1)
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
        self._count -= len(rows)
        if rows:
            self._queue.give_back(list(rows), attempted=False)
            self._ways.staged(device_id, -len(rows))

    def _forget(self, device_id: str) -> None:
        self._staged.pop(device_id)
        self._open.pop(device_id, None)
        self._let_go(self._full, device_id)

    def _settled(self, rows: Sequence[Row]) -> None:
        for row in rows:
            device_id = self._under_way.pop(row.offset, None)
            if device_id is not None:
                self._ways.handed_over(device_id, -1)

    def _way_changed(self, device_id: str) -> None:
        way = self._ways.way(device_id)
        if way is Way.SHUT:
            self._unstage(device_id)
            return
        if device_id in self._staged:
            if way is Way.OPEN:
                self._open.setdefault(device_id)
            else:
                self._open.pop(device_id, None)
        waited = device_id in self._shut
        self._let_go(self._shut, device_id)
        if waited or device_id in self._open:
            self._wake(self)


class FairQueues:
    """The queues of one endpoint, each with its lanes.

    Args:
        queues: Gives the store's.
        ways: See `DeviceWays`.

    Attributes:
        wake: Called when rows can be had that could not before; set once there is a pump.
    """

    def __init__(self, queues: Callable[[], Sequence[PumpQueue]], ways: DeviceWays) -> None:
        self._queues = queues
        self._ways = ways
        self._dealt: dict[QueueId, FairQueue] = {}
        self.wake: Callable[[PumpQueue], None] = _nobody

    def __call__(self) -> list[FairQueue]:
        """Return them, best priority first."""
        return [self._of(queue) for queue in self._queues()]

    def close(self) -> None:
        """Put back what is staged: the pump has ended."""
        for dealt in self._dealt.values():
            dealt.close()

    def _of(self, queue: PumpQueue) -> FairQueue:
        dealt = self._dealt.get(queue.id)
        if dealt is None:
            dealt = self._dealt[queue.id] = FairQueue(queue, self._ways, self._woken)
        return dealt

    def _woken(self, queue: PumpQueue) -> None:
        self.wake(queue)


def _nobody(_queue: PumpQueue) -> None:
    """Stand in for a pump that is not there yet."""

"""What a hub remembers of each device: whether it owns it.

Owns the flags and the position in the hub's stream of notices; both survive a restart. Invariants:
a device without a flag is `unknown`; a notice of an older election than the one that set the flag
changes nothing.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol, Self

from msgspec import Struct, field

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.devices.affinity.coordinator import Notice


class Ownership(StrEnum):
    """A hub's view of one device."""

    UNKNOWN = "unknown"  # never elected, or forgotten
    OWNER = "owner"  # the last message was elected here
    LOSER = "loser"  # refused, or notified that another hub took it


class Flag(Struct, frozen=True, kw_only=True):
    """Ownership, and the election from which it is known (0 = from none)."""

    ownership: Ownership
    epoch: int = 0


CHANGES_MAX: Final = 10_000
FLAGS_MAX: Final = 100_000
"""Devices whose flag is remembered; beyond it the one that changed longest ago is unknown again."""
NO_FLAG: Final = Flag(ownership=Ownership.UNKNOWN)


class StoredAffinity(Struct, kw_only=True):
    """What was kept: flags by device, and the position up to which notices were read."""

    flags: dict[str, Flag] = field(default_factory=dict)
    position: str = ""


class Cause(StrEnum):
    """Why a hub's view of a device changed."""

    FIRST = "first"  # no hub had it
    REGAINED = "regained"  # asked for again by the hub that was its owner all the time
    HEARD_FIRST = "heard_first"  # taken from another hub by one that need not wait
    OWNER_SILENT = "owner_silent"  # taken from another hub, which had the delay to ask and did not
    REFUSED = "refused"  # asked for, and another hub has it
    NOTIFIED = "notified"  # another hub took it
    CLOSED = "closed"  # given away on request
    NOTICES_MISSED = "notices_missed"  # nothing is known any more
    TAKEN_OVER = "taken_over"  # its upstream session went to another hub


class OwnershipChange(Struct, frozen=True, kw_only=True):
    """A change of ownership, for the ledger.

    Attributes:
        device_id: Id of the device.
        former: What it was.
        flag: What it is.
        cause: Why.
        other: The other hub, "" = none.
    """

    device_id: str
    former: Ownership
    flag: Flag
    cause: Cause
    other: str = ""


class AffinityStore(Protocol):
    """Keeps flags, position and ledger over a restart.

    No caller waits for a write or fails because of one: a flag that is lost by a crash costs
    one election. A position is never kept without the flags that the notices up to it changed.
    """

    async def load(self) -> StoredAffinity:
        """Read what was kept."""

    def save_flag(self, device_id: str, flag: Flag) -> None:
        """Keep the flag of a device."""

    def forget_flag(self, device_id: str) -> None:
        """Keep the flag of a device no longer."""

    def save_position(self, position: str) -> None:
        """Keep the position."""

    def record(self, change: OwnershipChange) -> None:
        """Keep a change in the ledger."""


class InProcessAffinityStore:
    """Flags and ledger in memory; implements `AffinityStore`."""

    def __init__(self, kept: StoredAffinity | None = None) -> None:
        self._kept = StoredAffinity() if kept is None else kept
        self.changes: deque[OwnershipChange] = deque(maxlen=CHANGES_MAX)
        """The newest changes, oldest first."""

    async def load(self) -> StoredAffinity:
        """Read what was kept."""
        return StoredAffinity(flags=dict(self._kept.flags), position=self._kept.position)

    def save_flag(self, device_id: str, flag: Flag) -> None:
        """Keep the flag of a device."""
        self._kept.flags[device_id] = flag

    def forget_flag(self, device_id: str) -> None:
        """Keep the flag of a device no longer."""
        self._kept.flags.pop(device_id, None)

    def save_position(self, position: str) -> None:
        """Keep the position."""
        self._kept.position = position

    def record(self, change: OwnershipChange) -> None:
        """Keep a change in the ledger."""
        self.changes.append(change)


class Flags:
    """The flags of all devices; set by their request queues and the reader of notices."""

    def __init__(self, store: AffinityStore, stored: StoredAffinity) -> None:
        self._store = store
        self._listeners: list[Callable[[str], None]] = []
        self._flags = OrderedDict(stored.flags)
        self.position = stored.position
        """Position up to which notices were read."""

    @classmethod
    async def open(cls, store: AffinityStore) -> Self:
        """Read what was kept before the first message."""
        return cls(store, await store.load())

    def of(self, device_id: str) -> Ownership:
        """Return whether this hub owns a device."""
        return self._flags.get(device_id, NO_FLAG).ownership

    def flag(self, device_id: str) -> Flag:
        """Return ownership and the election from which it is known."""
        return self._flags.get(device_id, NO_FLAG)

    def all(self) -> dict[str, Flag]:
        """Return the flags of all devices that were ever elected here."""
        return dict(self._flags)

    def count(self, ownership: Ownership) -> int:
        """Count the devices with a flag."""
        return sum(flag.ownership is ownership for flag in self._flags.values())

    def add_listener(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with a device whenever this hub was elected for it, or lost it."""
        self._listeners.append(listener)

    def remove_listener(self, listener: Callable[[str], None]) -> None:
        """Call it no more."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def set(
        self, device_id: str, ownership: Ownership, epoch: int = 0, *, cause: Cause, other: str = ""
    ) -> None:
        """Change a flag.

        Args:
            device_id: Id of the device.
            ownership: What it becomes. An election that was over before the one that is known
                already makes this hub no owner: its answer was overtaken by a notice.
            epoch: Number of the election, 0 = of none; the highest one is remembered.
            cause: Why, for the ledger.
            other: The other hub, "" = none.
        """
        before = self._flags.get(device_id, NO_FLAG)
        if ownership is Ownership.OWNER and 0 < epoch < before.epoch:
            return
        self._put(
            device_id, Flag(ownership=ownership, epoch=max(epoch, before.epoch)), cause, other
        )
        for listener in self._listeners:
            listener(device_id)

    def apply(self, notice: Notice) -> bool:
        """Apply a notice; False = it is older than what is known."""
        if notice.epoch < self._flags.get(notice.device_id, NO_FLAG).epoch:
            return False
        self.set(
            notice.device_id,
            Ownership.LOSER,
            notice.epoch,
            cause=Cause.NOTIFIED,
            other=notice.owner,
        )
        return True

    def forget_elections(self) -> tuple[str, ...]:
        """Drop ownership and all elections; return the devices that were owned.

        For lost notices, and for a coordinator that has lost its data and counts from the start.
        """
        owned = []
        for device_id, flag in list(self._flags.items()):
            if flag.ownership is Ownership.OWNER:
                owned.append(device_id)
            kept = Ownership.LOSER if flag.ownership is Ownership.LOSER else Ownership.UNKNOWN
            self._put(device_id, Flag(ownership=kept), Cause.NOTICES_MISSED, "")
        for device_id in owned:
            for listener in self._listeners:
                listener(device_id)
        return tuple(owned)

    def advance(self, position: str) -> None:
        """Remember up to where notices were read."""
        self.position = position
        self._store.save_position(position)

    def record_take_over(self, device_id: str) -> None:
        """Record in the ledger that a device's upstream session went to another hub."""
        flag = self.flag(device_id)
        self._store.record(
            OwnershipChange(
                device_id=device_id, former=flag.ownership, flag=flag, cause=Cause.TAKEN_OVER
            )
        )

    def _put(self, device_id: str, flag: Flag, cause: Cause, other: str) -> None:
        before = self._flags.get(device_id, NO_FLAG)
        if flag == before:
            return
        self._flags[device_id] = flag
        self._flags.move_to_end(device_id)
        self._store.save_flag(device_id, flag)
        while len(self._flags) > FLAGS_MAX:
            self._store.forget_flag(self._flags.popitem(last=False)[0])
        if flag.ownership is not before.ownership:
            change = OwnershipChange(
                device_id=device_id, former=before.ownership, flag=flag, cause=cause, other=other
            )
            self._store.record(change)


class SoleOwnerFlags(Flags):
    """The flags of a hub that shares devices with no other: it owns all of them."""

    def of(self, device_id: str) -> Ownership:
        """Return whether this hub owns a device."""
        del device_id
        return Ownership.OWNER

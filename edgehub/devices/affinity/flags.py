"""What a hub remembers of each device: whether it speaks for it.

Owns the flags and the position in the hub's stream of notices; both survive a restart. Invariants:
a device without a flag is `unknown`; a notice of an older election than the one that set the flag
changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from edgehub.devices.affinity.coordinator import Notice


class Ownership(StrEnum):
    """A hub's view of one device."""

    UNKNOWN = "unknown"  # never judged, or forgotten
    OWNER = "owner"  # the last message was elected here
    LOSER = "loser"  # refused, or told to release it


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """Ownership, and the election from which it is known (0 = from none)."""

    ownership: Ownership
    epoch: int = 0


NO_FLAG: Final = Flag(ownership=Ownership.UNKNOWN)


@dataclass(slots=True, kw_only=True)
class StoredAffinity:
    """What was kept: flags by device, and the position up to which notices were read."""

    flags: dict[str, Flag] = field(default_factory=dict)
    position: str = ""


class AffinityStore(Protocol):
    """Keeps flags and position over a restart."""

    async def load(self) -> StoredAffinity:
        """Read what was kept."""

    async def save_flag(self, device_id: str, flag: Flag) -> None:
        """Keep the flag of a device."""

    async def save_position(self, position: str) -> None:
        """Keep the position, after the flags that the notices up to it changed."""


class InProcessAffinityStore:
    """Keeps what it is given as long as the object lives; implements `AffinityStore`."""

    __slots__ = ("_kept",)

    def __init__(self, kept: StoredAffinity | None = None) -> None:
        self._kept = StoredAffinity() if kept is None else kept

    async def load(self) -> StoredAffinity:
        """See `AffinityStore`."""
        return StoredAffinity(flags=dict(self._kept.flags), position=self._kept.position)

    async def save_flag(self, device_id: str, flag: Flag) -> None:
        """See `AffinityStore`."""
        self._kept.flags[device_id] = flag

    async def save_position(self, position: str) -> None:
        """See `AffinityStore`."""
        self._kept.position = position


class Flags:
    """See the module; one writer per device, its request queue, beside the reader of notices."""

    __slots__ = ("_flags", "_position", "_store")

    def __init__(self, store: AffinityStore, stored: StoredAffinity) -> None:
        self._store = store
        self._flags = stored.flags
        self._position = stored.position

    @classmethod
    async def open(cls, store: AffinityStore) -> Flags:
        """Read what was kept before the first message."""
        return cls(store, await store.load())

    @property
    def position(self) -> str:
        """Position up to which notices were read."""
        return self._position

    def of(self, device_id: str) -> Ownership:
        """Tell whether this hub speaks for a device."""
        return self._flags.get(device_id, NO_FLAG).ownership

    async def set(self, device_id: str, ownership: Ownership, epoch: int = 0) -> None:
        """Change a flag.

        Args:
            device_id: Whose.
            ownership: What it becomes. An election that was over before the one that is known
                already makes nobody an owner: its answer was overtaken by a notice.
            epoch: Number of the election, 0 = of none; the highest one is remembered.
        """
        before = self._flags.get(device_id, NO_FLAG)
        if ownership is Ownership.OWNER and 0 < epoch < before.epoch:
            return
        await self._put(device_id, Flag(ownership=ownership, epoch=max(epoch, before.epoch)))

    async def apply(self, notice: Notice) -> bool:
        """Give a device away as told; False = the notice is older than what is known."""
        if notice.epoch < self._flags.get(notice.device_id, NO_FLAG).epoch:
            return False
        await self.set(notice.device_id, Ownership.LOSER, notice.epoch)
        return True

    async def forget_elections(self) -> tuple[str, ...]:
        """Own nothing and compare with no election any more; gives the devices that were owned.

        For when notices are missing, or the coordinator has lost its memory and counts anew.
        """
        owned = []
        for device_id, flag in list(self._flags.items()):
            if flag.ownership is Ownership.OWNER:
                owned.append(device_id)
            kept = Ownership.LOSER if flag.ownership is Ownership.LOSER else Ownership.UNKNOWN
            await self._put(device_id, Flag(ownership=kept))
        return tuple(owned)

    async def advance(self, position: str) -> None:
        """Remember up to where notices were read."""
        self._position = position
        await self._store.save_position(position)

    async def _put(self, device_id: str, flag: Flag) -> None:
        if flag != self._flags.get(device_id, NO_FLAG):
            self._flags[device_id] = flag
            await self._store.save_flag(device_id, flag)

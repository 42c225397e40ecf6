"""Held messages by client, ranked by number and by bytes.

Owns the shares of clients and their ranks. Calls nothing. Invariants: an empty share is removed;
to find the largest costs no more with ten thousand clients than with ten, as a client may send
under ever new names.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from itertools import count
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.entities.effects import Instant
    from edgehub.entities.topics import EntityTopic

HELD_BYTES: Final = 128
"""What a held message counts in addition to its topic and payload."""

_SLACK: Final = 1000
"""Outdated entries of a ranking, beyond one for each share, before it is rebuilt."""


class HeldMessage(Struct, eq=False):
    """One held message.

    Attributes:
        seq: Place in the order of arrival.
        topic: Its topic.
        payload: Its payload.
        client: Its sender.
        anonymous: Whether that client had no identity when it came.
        at: When it came.
        size: Bytes that it counts.
    """

    seq: int
    topic: EntityTopic
    payload: bytes
    client: str
    at: Instant
    anonymous: bool
    size: int = 0

    def __post_init__(self) -> None:
        self.size = HELD_BYTES + len(self.topic.text) + len(self.payload)


class ClientShare(Struct, eq=False):
    """The held messages of one client.

    Attributes:
        telemetry: Its telemetry, oldest first.
        other: All others, oldest first.
        bytes: The size of both.
        ranks: Size under which each ranking has it; never less than what it is.
    """

    telemetry: OrderedDict[int, HeldMessage] = field(default_factory=OrderedDict)
    other: OrderedDict[int, HeldMessage] = field(default_factory=OrderedDict)
    bytes: int = 0
    ranks: list[int] = field(default_factory=lambda: [0, 0])

    def __len__(self) -> int:
        return len(self.telemetry) + len(self.other)

    def oldest(self) -> HeldMessage:
        """Return the message to evict first: the oldest telemetry, then the oldest other one."""
        held = self.telemetry or self.other
        return next(iter(held.values()))


class ClientShares:
    """The shares of all clients of one kind."""

    def __init__(self) -> None:
        self._shares: dict[str, ClientShare] = {}
        self._by_messages = _Ranking(self._shares, 0, len)
        self._by_bytes = _Ranking(self._shares, 1, lambda share: share.bytes)

    def __len__(self) -> int:
        return len(self._shares)

    def get(self, client: str) -> ClientShare | None:
        """Return the share of a client, None = it has none."""
        return self._shares.get(client)

    def add(self, held: HeldMessage, *, is_telemetry: bool) -> None:
        """Count a message."""
        share = self._shares.get(held.client)
        if share is None:
            share = self._shares[held.client] = ClientShare()
        (share.telemetry if is_telemetry else share.other)[held.seq] = held
        share.bytes += held.size
        self._by_messages.grew(share)
        self._by_bytes.grew(share)

    def drop(self, held: HeldMessage, *, is_telemetry: bool) -> None:
        """Remove a message."""
        share = self._shares[held.client]
        del (share.telemetry if is_telemetry else share.other)[held.seq]
        share.bytes -= held.size
        if not len(share):
            del self._shares[held.client]

    def most_messages(self) -> ClientShare:
        """Return the share with most messages; there is one."""
        return self._by_messages.first()

    def most_bytes(self) -> ClientShare:
        """Return the share with most bytes; there is one."""
        return self._by_bytes.first()


class _Ranking:
    """Shares by one size, the largest first.

    A share that shrinks is moved down only when it is the first: until then its entry is too
    large, which does not hide a larger one.
    """

    def __init__(
        self, shares: dict[str, ClientShare], index: int, size: Callable[[ClientShare], int]
    ) -> None:
        self._shares = shares
        self._index = index
        self._size = size
        self._serial = count()
        self._heap: list[tuple[int, int, ClientShare]] = []

    def grew(self, share: ClientShare) -> None:
        size = self._size(share)
        if size > share.ranks[self._index]:
            share.ranks[self._index] = size
            heapq.heappush(self._heap, (-size, next(self._serial), share))
            if len(self._heap) > 2 * len(self._shares) + _SLACK:
                self._rebuild()

    def first(self) -> ClientShare:
        while True:
            noted, serial, share = self._heap[0]
            size = self._size(share)
            if -noted != share.ranks[self._index] or not size:
                heapq.heappop(self._heap)  # it has a larger entry, or is empty
            elif -noted == size:
                return share
            else:
                share.ranks[self._index] = size
                heapq.heapreplace(self._heap, (-size, serial, share))

    def _rebuild(self) -> None:
        for share in self._shares.values():
            share.ranks[self._index] = self._size(share)
        self._heap = [
            (-share.ranks[self._index], next(self._serial), share)
            for share in self._shares.values()
        ]
        heapq.heapify(self._heap)

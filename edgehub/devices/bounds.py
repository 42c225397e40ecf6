"""Bounds that all clients share, and how much of each anonymous clients may use.

Owns the count of what is used, by kind of client. Invariant: while there are identities, anonymous
clients get at most half of a bound, so nothing they do locks out a client with an identity; without
identities there is none to protect, and they may use all of it.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct


class KnownIds(Protocol):
    """The identities in force.

    Sign-in admits a client under an id of theirs only with its password or certificate, so every
    other id is that of an anonymous client, also in what is on disk.
    """

    def __len__(self) -> int: ...

    def get(self, identity_id: str, /) -> object | None:
        """Return the entry of an id, None = it has none."""


class BoundStatistics(Struct, frozen=True, kw_only=True):
    """What is used of one bound.

    Attributes:
        name: What is bounded.
        setting: That sets the limit, empty = none does.
        used: By all clients.
        limit: For all clients.
        anonymous: By anonymous clients.
        anonymous_limit: For anonymous clients.
    """

    name: str
    setting: str
    used: int
    limit: int
    anonymous: int
    anonymous_limit: int


class Usage:
    """What clients of one kind use of a bound.

    Attributes:
        used: Message paths count it up and down in place.
    """

    __slots__ = ("_bound", "used")

    def __init__(self, bound: Bound) -> None:
        self._bound = bound
        self.used = 0

    @property
    def limit(self) -> int:
        """Return how much these clients may use, given what the others use."""
        bound = self._bound
        if self is bound.identified:
            # What anonymous clients had before there were identities is not theirs to keep.
            return bound.limit - min(bound.anonymous.used, bound.anonymous_limit)
        return min(bound.anonymous_limit, bound.limit - bound.identified.used)

    @property
    def is_full(self) -> bool:
        """Return whether nothing is left for them."""
        bound = self._bound
        if (bound.identified.used + bound.anonymous.used) * 2 < bound.limit - 1:
            # Less than either kind may use. Nearly always so, and asked at each read of a client.
            return False
        return self.used >= self.limit

    def has_room(self, more: int = 1) -> bool:
        """Return whether they may use so much more."""
        return self.used + more <= self.limit


class Bound:
    """One bound.

    Args:
        name: What is bounded, in the plural.
        limit: For all clients.
        known: The identities in force.
        setting: That sets the limit, empty = none does.
        own: The hub's id, whose messages count as those of an identity, empty = there are none.

    Attributes:
        limit: See above; may be changed.
        identified: What clients with an identity use, and parts of the hub.
        anonymous: What the others use.
    """

    __slots__ = ("_known", "_own", "_setting", "anonymous", "identified", "limit", "name")

    def __init__(
        self, name: str, limit: int, known: KnownIds, *, setting: str = "", own: str = ""
    ) -> None:
        self._known = known
        self._own = own
        self._setting = setting
        self.name = name
        self.limit = limit
        self.identified = Usage(self)
        self.anonymous = Usage(self)

    @property
    def used(self) -> int:
        """Return what all clients use."""
        return self.identified.used + self.anonymous.used

    @property
    def anonymous_limit(self) -> int:
        """Return how much anonymous clients may use."""
        return self.limit // 2 if len(self._known) else self.limit

    def is_anonymous(self, client_id: str) -> bool:
        """Return whether a client has no identity."""
        return self._known.get(client_id) is None and client_id != self._own

    def of(self, client_id: str) -> Usage:
        """Return the usage in which a client is counted."""
        return self.of_kind(anonymous=self.is_anonymous(client_id))

    def of_kind(self, *, anonymous: bool) -> Usage:
        """Return the usage of anonymous clients, or of the others."""
        return self.anonymous if anonymous else self.identified

    def statistics(self) -> BoundStatistics:
        """Return the counts of this moment."""
        return BoundStatistics(
            name=self.name,
            setting=self._setting,
            used=self.used,
            limit=self.limit,
            anonymous=self.anonymous.used,
            anonymous_limit=self.anonymous_limit,
        )

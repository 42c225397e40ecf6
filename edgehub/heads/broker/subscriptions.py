"""Subscriptions of the hub's session at the broker, and which copy of a message counts.

Owns the list of subscriptions in the order in which they were made, and its form on disk: the
session at the broker outlives the hub, so topics that no route names any more must be unsubscribed
from later too. Invariants: of the copies of a message for overlapping subscriptions one is taken,
if each has the identifier of its subscription (MQTT 5); a copy for an unknown subscription is
always taken.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

from msgspec import MsgspecError, Struct, json

from edgehub.mqtt.topic_filter import SHARED, covers, matches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

NUMBERS: Final = 268_435_455
"""Subscription identifiers go from 1 to this; MQTT 5, 3.8.2.1.2."""

_FIRSTS_MAX: Final = 4096


class BrokerSubscription:
    """One subscription of the session.

    Attributes:
        wire: As in SUBSCRIBE, with `$share/<group>/` where it is shared.
        filter: The topic filter.
        shared: Whether each message reaches one hub of the group.
        number: Subscription identifier; the same for the same `wire`, also after a restart.
        established: Whether the broker granted it in the session that it keeps.
        is_leaving: Whether UNSUBSCRIBE was sent, or is about to be.
    """

    __slots__ = ("established", "filter", "is_leaving", "number", "shared", "wire")

    def __init__(self, wire: str, *, established: bool = False) -> None:
        self.wire = wire
        self.shared = wire.startswith(SHARED)
        self.filter = wire.split("/", 2)[2] if self.shared else wire
        self.number = zlib.crc32(wire.encode()) % NUMBERS + 1
        self.established = established
        self.is_leaving = False


def wanted_wires(
    route_filters: Iterable[str], local_topics: Iterable[str], *, share_group: str | None
) -> list[str]:
    """Return the subscriptions for routes and local topics, without those that another one covers.

    Args:
        route_filters: Topic filters of live routes.
        local_topics: Topic filters that broker and local topic space share; never in a group.
        share_group: Group of hubs, None = each hub gets every message.
    """
    own = list(dict.fromkeys(local_topics))
    routed = [each for each in dict.fromkeys(route_filters) if not _is_covered(each, own)]
    if share_group is None:
        return _widest([*own, *routed])
    return [*_widest(own), *(f"{SHARED}{share_group}/{each}" for each in _widest(routed))]


def _widest(filters: Sequence[str]) -> list[str]:
    kept: list[str] = []
    for each in filters:
        if _is_covered(each, kept):
            continue
        kept = [other for other in kept if not covers(each, other)]
        kept.append(each)
    return kept


def _is_covered(topic_filter: str, others: Iterable[str]) -> bool:
    return any(covers(other, topic_filter) for other in others)


class _Stored(Struct):
    """Subscriptions as they are on disk, with the session that they are of."""

    session: list[str | int]
    subscriptions: list[str]
    established: set[str]


class Subscriptions:
    """Subscriptions of one session.

    Args:
        identity: Of the session; stored subscriptions of another one are ignored.
    """

    def __init__(self, identity: Sequence[str | int]) -> None:
        self._identity = list(identity)
        self._known: dict[str, BrokerSubscription] = {}
        self._firsts: dict[tuple[str, bool], int] = {}

    def __iter__(self) -> Iterator[BrokerSubscription]:
        return iter(self._known.values())

    def restore(self, text: bytes) -> None:
        """Restore what `document` wrote; anything else is ignored."""
        try:
            stored = json.decode(text, type=_Stored)
        except (MsgspecError, UnicodeDecodeError, RecursionError):
            return
        if stored.session == self._identity:
            for wire in stored.subscriptions:
                established = wire in stored.established
                self._known[wire] = BrokerSubscription(wire, established=established)

    def document(self) -> bytes:
        """Return the form on disk."""
        established = {wire for wire, each in self._known.items() if each.established}
        stored = _Stored(self._identity, list(self._known), established)
        return json.format(json.encode(stored), indent=1)

    def forget(self) -> None:
        """Remove all: the broker has not kept the session."""
        self._known.clear()
        self._firsts.clear()

    def add(self, wire: str) -> BrokerSubscription:
        """Add a subscription that is about to be made."""
        self._firsts.clear()
        return self._known.setdefault(wire, BrokerSubscription(wire))

    def doubt(self) -> None:
        """Make all again on a new connection: a broker may lose the newest state in a power cut."""
        for each in self._known.values():
            each.established = each.is_leaving = False

    def leave(self, wires: Iterable[str]) -> None:
        """Record that subscriptions are about to end: their copies do not count any more."""
        self._firsts.clear()
        for wire in wires:
            self._known[wire].is_leaving = True
            self._known[wire].established = False

    def remove(self, wire: str) -> None:
        """Remove a subscription that has ended or was refused."""
        self._firsts.clear()
        self._known.pop(wire, None)

    def to_make(self, wanted: Iterable[str]) -> list[str]:
        """Return the wanted subscriptions that are not established."""
        known = self._known
        return [wire for wire in wanted if wire not in known or not known[wire].established]

    def to_give_up(self, wanted: Iterable[str]) -> list[str]:
        """Return the subscriptions of the session that are not wanted any more."""
        kept = set(wanted)
        return [wire for wire in self._known if wire not in kept]

    def is_further_copy(self, topic: str, numbers: Sequence[int]) -> bool:
        """Return whether another copy of a message, for an earlier subscription, is to be taken.

        Args:
            topic: Of the message.
            numbers: Identifiers of the subscriptions that this copy is for.
        """
        # The earlier subscription existed whenever the later one did, so its copy is sent too.
        for each in self._known.values():
            if each.number in numbers:
                if each.is_leaving:
                    return False
                # A message that every hub gets does not count for the group as well.
                first = self._first(topic, shared=False)
                if not first and each.shared:
                    first = self._first(topic, shared=True)
                return bool(first) and first not in numbers
        return False

    def _first(self, topic: str, *, shared: bool) -> int:
        number = self._firsts.get((topic, shared))
        if number is None:
            number = next(
                (
                    each.number
                    for each in self._known.values()
                    if each.shared is shared and not each.is_leaving and matches(each.filter, topic)
                ),
                0,
            )
            if len(self._firsts) >= _FIRSTS_MAX:
                self._firsts.clear()
            self._firsts[topic, shared] = number
        return number

"""Shared subscriptions: sessions of one group share the messages of a filter.

Owns the groups. Invariants: a message goes to one member of each group whose filter matches; a
member that can be sent the message at once is preferred to a busy one, that one to one that is not
connected, and among equals the one that was served longest ago. Source: MQTT 5, section 4.8.2.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from edgehub.heads.mqtt.local.filter_tree import FilterTree


class Member(Protocol):
    """A session as its groups use it."""

    @property
    def durable(self) -> bool:
        """Whether it outlives its connection."""

    @property
    def is_connected(self) -> bool:
        """Whether its client is connected."""

    @property
    def is_ready(self) -> bool:
        """Whether a message of QoS 1 or 2 would be sent at once."""


M = TypeVar("M", bound=Member)


class SharedSubscription(Generic[M]):
    """One filter of one group.

    Attributes:
        members: Options by member, the one that was served longest ago first.
    """

    __slots__ = ("members",)

    def __init__(self) -> None:
        self.members: dict[M, int] = {}

    def next_member(self, qos: int) -> tuple[M, int] | None:
        """Return the member for a message of this quality of service, and its options."""
        chosen = None
        for member in self.members:
            if member.is_ready:
                chosen = member
                break
            if chosen is None or (member.is_connected and not chosen.is_connected):
                chosen = member
        if chosen is None or not (chosen.is_connected or (qos and chosen.durable)):
            return None
        options = self.members.pop(chosen)
        self.members[chosen] = options
        return chosen, options


class SharedSubscriptions(Generic[M]):
    """All shared subscriptions of a space."""

    def __init__(self) -> None:
        self._by_name: dict[tuple[str, str], SharedSubscription[M]] = {}
        self._tree: FilterTree[SharedSubscription[M]] = FilterTree()
        self.count = 0

    def add(self, group: str, topic_filter: str, member: M, options: int) -> None:
        """Add a member, or change its options."""
        shared = self._by_name.get((group, topic_filter))
        if shared is None:
            shared = self._by_name[group, topic_filter] = SharedSubscription()
            self._tree.add(topic_filter, shared)
        self.count += member not in shared.members
        shared.members[member] = options

    def remove(self, group: str, topic_filter: str, member: M) -> None:
        """Remove a member."""
        shared = self._by_name[group, topic_filter]
        del shared.members[member]
        self.count -= 1
        if not shared.members:
            del self._by_name[group, topic_filter]
            self._tree.remove(topic_filter, shared)

    def match(self, topic: str) -> list[SharedSubscription[M]]:
        """List those whose filter takes a topic."""
        return [shared for found in self._tree.match(topic) for shared in found]

"""Tree of topic filters: the subscribers of a topic.

Owns the tree of filter levels, and the number of branches below each that one topic can pass.
Invariants: a branch exists exactly while a filter needs it; a match takes time in proportion to the
branches that match the topic, which are at most `branches`, and not to the number of filters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from edgehub.mqtt.topic_filter import ANY_LEVEL, ANY_REST, WILDCARDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

S = TypeVar("S")


class _Node(Generic[S]):
    """One level of filters.

    Attributes:
        branches: Most nodes from here on, this one included, that one topic can pass: it passes to
            the wildcards and to one name.
        _by_branches: Number of names below by their branches; None = there is no name.
    """

    __slots__ = ("_by_branches", "branches", "children", "subscribers")

    def __init__(self) -> None:
        self.children: dict[str, _Node[S]] = {}
        self.subscribers: dict[S, int] = {}
        self.branches = 1
        self._by_branches: dict[int, int] | None = None

    @property
    def most(self) -> int:
        """Branches of the name below that has most."""
        return max(self._by_branches) if self._by_branches else 0

    def recount(self, level: str, before: int, after: int) -> None:
        """Update the branches for a level below that has other ones, 0 = it does not exist."""
        if level in WILDCARDS:
            self.branches += after - before
            return
        most = self.most
        counts = self._by_branches = self._by_branches or {}
        if after:
            counts[after] = counts.get(after, 0) + 1
        if before:
            counts[before] -= 1
            if not counts[before]:
                del counts[before]
        self.branches += self.most - most


class FilterTree(Generic[S]):
    """Subscriptions of subscribers of type `S`, each with its options."""

    def __init__(self) -> None:
        self._root: _Node[S] = _Node()
        self.count = 0

    @property
    def branches(self) -> int:
        """Most nodes that one topic can pass."""
        return self._root.branches

    def branches_with(self, topic_filter: str) -> int:
        """Return what `branches` would be with one filter more."""
        node = self._root
        levels = topic_filter.split("/")
        path: list[tuple[_Node[S], str, int]] = []
        for level in levels:
            child = node.children.get(level)
            path.append((node, level, 0 if child is None else child.branches))
            if child is None:
                break
            node = child
        else:
            return self._root.branches
        branches = len(levels) - len(path) + 1
        for node, level, before in reversed(path):
            less = before if level in WILDCARDS else min(node.most, branches)
            branches += node.branches - less
        return branches

    def add(self, topic_filter: str, subscriber: S, options: int = 0) -> None:
        """Add a subscription, or change its options."""
        node = self._root
        path: list[tuple[_Node[S], str, int]] = []
        for level in topic_filter.split("/"):
            child = node.children.get(level)
            before = 0
            if child is None:
                child = node.children[level] = _Node()
            else:
                before = child.branches
            path.append((node, level, before))
            node = child
        if subscriber not in node.subscribers:
            self.count += 1
        node.subscribers[subscriber] = options
        _recount(path)

    def remove(self, topic_filter: str, subscriber: S) -> None:
        """Remove a subscription, if it exists."""
        node = self._root
        path: list[tuple[_Node[S], str, int]] = []
        for level in topic_filter.split("/"):
            child = node.children.get(level)
            if child is None:
                return
            path.append((node, level, child.branches))
            node = child
        if node.subscribers.pop(subscriber, None) is None:
            return
        self.count -= 1
        _recount(path)

    def match(self, topic: str) -> list[Mapping[S, int]]:
        """Return subscribers with their options, one mapping for each filter that matches.

        The mappings are the tree's own: read them before anything is added or removed.
        """
        found: list[Mapping[S, int]] = []
        names = topic.split("/")
        nodes = [self._root]
        if topic.startswith("$"):
            # No wildcard in the first level matches it.
            named = self._root.children.get(names.pop(0))
            nodes = [] if named is None else [named]
        for name in names:
            following = []
            for node in nodes:
                children = node.children
                if ANY_REST in children:
                    found.append(children[ANY_REST].subscribers)
                if ANY_LEVEL in children:
                    following.append(children[ANY_LEVEL])
                if name in children:
                    following.append(children[name])
            nodes = following
        for node in nodes:
            found.append(node.subscribers)
            if ANY_REST in node.children:
                found.append(node.children[ANY_REST].subscribers)
        return found


def _recount(path: Sequence[tuple[_Node[S], str, int]]) -> None:
    """Update the branches along a path, and remove those that no filter needs."""
    for parent, level, before in reversed(path):
        child = parent.children[level]
        after = child.branches
        if not (child.children or child.subscribers):
            del parent.children[level]
            after = 0
        if after == before:
            return
        parent.recount(level, before, after)

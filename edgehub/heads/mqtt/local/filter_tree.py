"""Topic filters to those who subscribed to them, found by topic.

Owns the tree of filter levels. Invariants: a branch exists exactly while a filter needs it; finding
takes time in proportion to the branches that fit the topic, not to the number of filters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from edgehub.mqtt.topic_filter import ANY_LEVEL, ANY_REST

if TYPE_CHECKING:
    from collections.abc import Mapping

S = TypeVar("S")


class _Node(Generic[S]):
    __slots__ = ("children", "subscribers")

    def __init__(self) -> None:
        self.children: dict[str, _Node[S]] = {}
        self.subscribers: dict[S, int] = {}


class FilterTree(Generic[S]):
    """Subscriptions of subscribers of type `S`, each with its options."""

    __slots__ = ("_root", "count")

    def __init__(self) -> None:
        self._root: _Node[S] = _Node()
        self.count = 0

    def add(self, topic_filter: str, subscriber: S, options: int = 0) -> None:
        """Take a subscription in, or change its options."""
        node = self._root
        for level in topic_filter.split("/"):
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _Node()
            node = child
        if subscriber not in node.subscribers:
            self.count += 1
        node.subscribers[subscriber] = options

    def remove(self, topic_filter: str, subscriber: S) -> None:
        """Take a subscription out; one that is not there is passed over."""
        path: list[tuple[_Node[S], str]] = []
        node = self._root
        for level in topic_filter.split("/"):
            child = node.children.get(level)
            if child is None:
                return
            path.append((node, level))
            node = child
        if node.subscribers.pop(subscriber, None) is None:
            return
        self.count -= 1
        for parent, level in reversed(path):
            child = parent.children[level]
            if child.children or child.subscribers:
                return
            del parent.children[level]

    def match(self, topic: str) -> list[Mapping[S, int]]:
        """Give subscribers with their options, one mapping for each filter that takes the topic.

        The mappings are the tree's own: read them before anything is added or removed.
        """
        found: list[Mapping[S, int]] = []
        names = topic.split("/")
        nodes = [self._root]
        if topic.startswith("$"):
            # No wildcard in the first level takes it.
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

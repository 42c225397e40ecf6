"""The tree of filters finds what one by one would be found, and leaves nothing behind."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from edgehub.heads.mqtt.local.filter_tree import FilterTree
from edgehub.mqtt.topic_filter import matches
from tests.unit.mqtt.test_topic_filter import FILTERS, TOPICS

CHANGES = st.lists(st.tuples(st.booleans(), FILTERS, st.integers(0, 3)), min_size=12, max_size=30)


@given(CHANGES, st.lists(TOPICS, max_size=5))
def test_against_a_list(changes: list[tuple[bool, str, int]], topics: list[str]):
    """After any changes each topic finds exactly the subscriptions whose filter takes it."""
    tree: FilterTree[int] = FilterTree()
    kept: dict[tuple[str, int], int] = {}
    for number, (added, topic_filter, subscriber) in enumerate(changes):
        if added:
            tree.add(topic_filter, subscriber, number)
            kept[topic_filter, subscriber] = number
        else:
            tree.remove(topic_filter, subscriber)
            kept.pop((topic_filter, subscriber), None)
    assert tree.count == len(kept)
    for topic in topics:
        taken = tree.match(topic)
        assert len(taken) < tree.branches
        found = [pair for node in taken for pair in node.items()]
        expected = [
            (subscriber, options)
            for (topic_filter, subscriber), options in kept.items()
            if matches(topic_filter, topic)
        ]
        assert sorted(found) == sorted(expected)


BRANCHING = st.lists(st.sampled_from("+ab"), min_size=1, max_size=5).flatmap(
    lambda levels: st.sampled_from(["/".join(levels), "/".join([*levels, "#"])])
)


@given(st.lists(st.tuples(st.booleans(), BRANCHING, st.integers(0, 1)), min_size=10, max_size=40))
def test_branches_are_those_of_the_worst_topic(changes: list[tuple[bool, str, int]]):
    """After any changes the tree knows how far one topic branches, and what a filter would add."""
    tree: FilterTree[int] = FilterTree()
    for added, topic_filter, subscriber in changes:
        if added:
            foreseen = tree.branches_with(topic_filter)
            tree.add(topic_filter, subscriber)
            assert tree.branches == foreseen
        else:
            tree.remove(topic_filter, subscriber)
        assert tree.branches == worst(root(tree))


def worst(node: Any) -> int:
    """Count the nodes that one topic passes through at most: all wildcards, and one name."""
    below = {level: worst(child) for level, child in node.children.items()}
    wildcards = sum(below.pop(level, 0) for level in "+#")
    return 1 + wildcards + max(below.values(), default=0)


def root(tree: FilterTree[int]) -> Any:
    """Return the first node."""
    return vars(tree)["_root"]


@given(st.lists(FILTERS, unique=True, min_size=5, max_size=20))
def test_nothing_is_left(filters: list[str]):
    """A tree whose subscriptions are all gone has no branches, so that it does not grow."""
    tree: FilterTree[int] = FilterTree()
    for topic_filter in filters:
        tree.add(topic_filter, 1)
    for topic_filter in filters:
        tree.remove(topic_filter, 1)
        tree.remove(topic_filter, 2)
    assert tree.count == 0
    assert root(tree).children == {}
    assert tree.branches == 1

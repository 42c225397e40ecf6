"""The tree of filters finds what one by one would be found, and leaves nothing behind."""

from __future__ import annotations

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
        found = [pair for node in tree.match(topic) for pair in node.items()]
        expected = [
            (subscriber, options)
            for (topic_filter, subscriber), options in kept.items()
            if matches(topic_filter, topic)
        ]
        assert sorted(found) == sorted(expected)


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
    assert tree.__getstate__()[1]["_root"].children == {}

"""Topic filters: which topics they take, and how two of them relate, against a slow oracle."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgehub.mqtt.topic_filter import covers, filter_fault, is_topic, matches, overlaps

NAMES = st.sampled_from(["a", "b", "", "$x"])
TOPICS = st.lists(NAMES, min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = (
    st.tuples(
        st.lists(st.one_of(NAMES, st.just("+")), min_size=0, max_size=4), st.sampled_from(["", "#"])
    )
    .map(lambda parts: "/".join([*parts[0], *parts[1]]))
    .filter(bool)
)
EVERY_TOPIC = [
    "/".join(levels)
    for size in range(1, 5)
    for levels in itertools.product(["a", "", "$x"], repeat=size)
]


def naive(topic_filter: str, topic: str) -> bool:
    """Match by a regular expression, written from the words of the specification."""
    if topic.startswith("$") and topic_filter[0] in "+#":
        return False
    pattern = re.escape(topic_filter).replace(r"\+", "[^/]*")
    if pattern == r"\#":
        return True
    if pattern.endswith(r"/\#"):
        pattern = pattern[: -len(r"/\#")] + "(/.*)?"
    return re.fullmatch(pattern, topic) is not None


@given(FILTERS, TOPICS)
def test_matching(topic_filter: str, topic: str):
    """A filter takes what its regular expression takes."""
    assert matches(topic_filter, topic) == naive(topic_filter, topic)


@given(FILTERS, FILTERS)
def test_overlap_and_cover(one: str, other: str):
    """Two filters overlap when a topic fits both; what one covers is all of the other."""
    small = [topic for topic in EVERY_TOPIC if topic]
    both = [naive(one, topic) and naive(other, topic) for topic in small]
    if any(both):
        assert overlaps(one, other)
        assert overlaps(other, one)
    if covers(one, other):
        assert all(naive(one, topic) for topic in small if naive(other, topic))


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("te/#", "#", True),
        ("te/#", "te", True),
        ("te/#", "+/x", True),
        ("te/#", "tea/x", False),
        ("te/#", "devices/#", False),
        ("$edge/#", "#", False),
        ("$edge/#", "+/clients", False),
        ("a/b", "a", False),
        ("a/+", "a/b/c", False),
    ],
)
def test_overlaps(one: str, other: str, expected: bool):
    """Whether some topic is taken by both."""
    assert overlaps(one, other) is overlaps(other, one) is expected


@pytest.mark.parametrize(
    ("wider", "narrower", "expected"),
    [
        ("te/#", "te/+/x", True),
        ("te/#", "te/#", True),
        ("te/#", "te", True),
        ("te/+", "te/x", True),
        ("te/+", "te/#", False),
        ("te/x", "te/+", False),
        ("#", "$edge/#", False),
        ("te/device/d1/#", "te/device/+/m", False),
        ("te/+/x", "te/+/x/y", False),
        ("+/#", "#", True),
        ("+/#", "$edge/#", False),
        ("te/+/#", "te/#", False),
        ("+/+/#", "#", False),
    ],
)
def test_covers(wider: str, narrower: str, expected: bool):
    """Whether one takes all that the other does."""
    assert covers(wider, narrower) is expected


@pytest.mark.parametrize("text", ["", "a/#/b", "a#", "#a", "a+/b", "+a", "a\0b"])
def test_faults(text: str):
    """Wildcards stand for whole levels, `#` for the last one."""
    assert filter_fault(text)


@pytest.mark.parametrize("text", ["#", "+", "+/#", "/", "a//b", "/#", "te/+/+/#", "a b/*"])
def test_valid_filters(text: str):
    """Empty levels, blanks and stars are levels like others."""
    assert filter_fault(text) == ""


def test_topics():
    """A topic name has no wildcards and is not empty."""
    assert [is_topic(text) for text in ("a/b", "/", "$edge/x")] == [True] * 3
    assert [is_topic(text) for text in ("", "a/+", "#", "a\0")] == [False] * 4


@pytest.mark.parametrize("topic", ["plant/3", "plant/3/", "plant/3/x"])
def test_the_parent_level_is_included(topic: str):
    """M-04: `#` takes the level above it too."""
    assert matches("plant/3/#", topic)
    assert not matches("plant/3/#", "plant/33")
    assert not matches("plant/3/#", "plant")

"""`If-Match` and `If-None-Match`: what they ask for, and what is malformed."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgehub.web.problem import ProblemError
from edgehub.web.revisions import Wanted, entity_tag, parse_if_match, parse_if_none_match


@pytest.mark.parametrize(
    ("header", "anything", "revisions"),
    [
        ('"17"', False, {17}),
        (' "17" , "18" ', False, {17, 18}),
        ("*", True, set()),
        (" * ", True, set()),
        ('W/"17"', False, set()),
        ('"abc"', False, set()),
        ('W/"1", "2"', False, {2}),
        ('"-1"', False, set()),
    ],
)
def test_tags_are_read(header, anything, revisions):
    """Weak tags, and those that no revision has, match nothing."""
    assert parse_if_match(header) == Wanted(anything, frozenset(revisions))


@pytest.mark.parametrize("header", ["", "17", '"17', '"17" "18"', '"17",', "*, *", "W/17"])
def test_malformed_ones_are_refused(header):
    """A condition that is not understood must not be passed over."""
    with pytest.raises(ProblemError) as refused:
        parse_if_match(header)
    assert refused.value.status == 400


@given(st.integers(0, 2**53))
def test_what_the_hub_gives_it_takes(revision):
    """The tag of an answer comes back as the same revision."""
    assert parse_if_match(entity_tag(revision)) == Wanted(False, frozenset({revision}))


@given(st.text(max_size=60))
def test_any_header_is_read_or_refused(header):
    """Nothing else happens."""
    with suppress(ProblemError):
        assert parse_if_match(header) is not None


def test_a_write_can_be_for_something_new_only():
    """`*` says so; anything else makes no sense for a write."""
    assert parse_if_match(None) is None
    assert parse_if_none_match(None) is False
    assert parse_if_none_match("*") is True
    with pytest.raises(ProblemError):
        parse_if_none_match('"17"')

"""`If-Match` and `If-None-Match`: what they ask for, and what is malformed."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgehub.operations.problem import ProblemError
from edgehub.web.revisions import conditions, entity_tag, parse_if_match


@pytest.mark.parametrize(
    ("header", "revisions"),
    [
        ('"17"', [17]),
        (' "17" , "18" ', [17, 18]),
        ("*", None),
        (" * ", None),
        ('W/"17"', []),
        ('"abc"', []),
        ('W/"1", "2"', [2]),
        ('"-1"', []),
        ('"0"', []),
    ],
)
def test_tags_are_read(header, revisions):
    """Weak tags, and those that no stored route has, match nothing."""
    assert parse_if_match(header) == revisions


@pytest.mark.parametrize("header", ["", "17", '"17', '"17" "18"', '"17",', "*, *", "W/17"])
def test_malformed_ones_are_refused(header):
    """A condition that is not understood must not be passed over."""
    with pytest.raises(ProblemError) as refused:
        parse_if_match(header)
    assert refused.value.status == 400


@given(st.integers(1, 2**53))
def test_what_the_hub_gives_it_takes(revision):
    """The tag of an answer comes back as the same revision."""
    assert parse_if_match(entity_tag(revision)) == [revision]


@given(st.text(max_size=60))
def test_any_header_is_read_or_refused(header):
    """Nothing else happens."""
    with suppress(ProblemError):
        parse_if_match(header)


def test_headers_become_arguments():
    """Those that the operation knows; any other condition is refused, since it would not hold."""
    names = {"if_match", "if_exists", "if_absent"}
    assert conditions({}, ()) == {}
    assert conditions({"if-match": '"7"'}, names) == {"if_match": [7]}
    assert conditions({"if-match": "*"}, names) == {"if_exists": True}
    assert conditions({"if-none-match": "*"}, names) == {"if_absent": True}
    for headers, known in (
        ({"if-none-match": '"17"'}, names),
        ({"if-match": "*", "if-none-match": "*"}, names),
        ({"if-match": "*"}, ()),
        ({"if-none-match": "*"}, {"if_match"}),
    ):
        with pytest.raises(ProblemError) as refused:
            conditions(headers, known)
        assert (refused.value.status, refused.value.code) == (400, "bad_header")

"""Times in headers of HTTP."""

from __future__ import annotations

from email.utils import formatdate

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edgehub.http1.date import http_date, read_http_date


@given(st.integers(0, 253_402_300_799))
@example(1_709_209_799)
def test_what_is_written_is_read(second: int) -> None:
    """In the form that the standard library writes."""
    assert http_date(second) == formatdate(second, usegmt=True)
    assert read_http_date(http_date(second)) == second


@pytest.mark.parametrize(
    "text",
    ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"],
)
def test_all_three_forms_are_read(text: str) -> None:
    """As RFC 9110 wants it of a recipient, with its example."""
    assert read_http_date(text) == 784_111_777


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "Sun, 06 Nov 1994 08:49:37 CET",
        "Sun, 06 Now 1994 08:49:37 GMT",
        "Sun, 31 Nov 1994 08:49:37 GMT",
        "Sun, 06 Nov 1994 24:49:37 GMT",
        "Sun, 06 Nov 0000 08:49:37 GMT",
        "Sun, 0\u0666 Nov 1994 08:49:37 GMT",
    ],
)
def test_what_is_no_date_is_none(text: str) -> None:
    """No form, no such day, no such time, no digits of ASCII."""
    assert read_http_date(text) is None


def test_two_digits_are_a_year_of_this_century_or_the_end_of_the_last() -> None:
    """Which is which is not said; no peer dates an answer before 1970."""
    assert read_http_date("Wednesday, 01-Jan-69 00:00:00 GMT") == 3_124_224_000
    assert read_http_date("Thursday, 01-Jan-70 00:00:00 GMT") == 0

"""SmartREST lines."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgehub.entities import smartrest


@pytest.mark.parametrize(
    ("field", "written"),
    [
        ("plain text", "plain text"),
        ("a,b", '"a,b"'),
        ('5" pipe', '"5"" pipe"'),
        ("two\nlines", '"two\nlines"'),
        ("cr\rlf", '"cr\rlf"'),
        (" padded ", " padded "),
        ("Grüße", "Grüße"),
        ("", ""),
    ],
)
def test_field_is_quoted_on_demand(field, written):
    """Only where a comma, a quote, CR or LF asks for it; inner quotes are doubled."""
    assert smartrest.line("101", field).decode() == f"101,{written}"


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))))
def test_any_line_reads_back_as_its_fields(fields):
    """What a CSV reader finds in a line is what was put in."""
    line = smartrest.line("102", *fields).decode()
    assert list(csv.reader(io.StringIO(line, newline=""), strict=True)) == [["102", *fields]]


def test_reason_is_cut_at_a_character():
    """At most 500 bytes, never half a character."""
    assert smartrest.reason("é" * 300) == "é" * 250
    assert len(smartrest.reason("x" + "é" * 300).encode()) == 499


def test_reason_loses_control_characters():
    """CR, LF and TAB stay."""
    assert smartrest.reason("a\x00b\x1b[0m\tc\r\nd\x7fe\x85") == "ab[0m\tc\r\nde"

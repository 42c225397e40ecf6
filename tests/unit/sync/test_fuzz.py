"""Rows and log entries of a shared table: whatever stands there, a hub can show and store it."""

from __future__ import annotations

import orjson
from hypothesis import given
from hypothesis import strategies as st

from edgehub.sync.redis import log_entry
from edgehub.sync.sqlite import parse_row
from edgehub.sync.storage import BrokenRow
from tests.support.fuzzing import bounded, fuzzer, hostile, hostile_text

RAWS = [f"17 {'ab' * 32} 1 api 1790000000000 1790000000001", f"1 {'cd' * 32} 0 manifest 1 1"]
KEYS = ["default/default/r1", "acme/press/a/b"]
PIECES = [" ", "/", "-1", "1_0", "+5", "\u0663", "9" * 5_000, "9" * 25, "\0", "\n", "\ud800"]


@fuzzer
@given(hostile_text(KEYS, PIECES), hostile_text(RAWS, PIECES))
def test_a_damaged_row_is_a_row_or_a_broken_one(key, raw):
    """A row that counts as whole has numbers that storages, answers and logs can hold."""
    row = bounded(lambda: parse_row(key, raw))
    if isinstance(row, BrokenRow):
        assert row.reason
        return
    orjson.dumps([row.revision, row.created_ms, row.modified_ms])
    assert row.revision >= 0
    assert parse_row(str(row.key), row.raw) == row


@fuzzer
@given(
    hostile([b"3-17", b"18446744073709551615-0"], [b"-", b"9" * 20, b"\xd9\xa3"]),
    st.lists(hostile([b"key", b"default/default/r1", b"instance", b"i", b"session", b"s"])),
)
def test_a_damaged_entry_of_the_log_has_no_key_or_one(entry_id, fields):
    """Neither its id nor its fields end the reader."""
    entry = bounded(lambda: log_entry(entry_id, fields))
    assert entry.epoch >= 0
    assert entry.revision >= 0


def test_a_number_that_nothing_can_hold_makes_a_broken_row():
    """A revision or a time of more than 15 digits, or one with a sign, is none that a hub wrote."""
    good = f"17 {'ab' * 32} 1 api 1790000000000 1790000000001"
    assert not isinstance(parse_row("default/default/r1", good), BrokenRow)
    for wrong in (good.replace("17 ", "9" * 25 + " "), f"-{good}", f"{good}0000", f"+{good}"):
        assert isinstance(parse_row("default/default/r1", wrong), BrokenRow)

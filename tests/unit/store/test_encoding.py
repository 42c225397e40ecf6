"""Messages and rows as columns: the round trip."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgehub.errors import StoreCorruptError
from edgehub.message import NEVER_MS, Message
from edgehub.store.encoding import decode_message, decode_row, encode_header
from edgehub.store.labels import LABELS_MAX, Labels

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
PAIRS = st.dictionaries(TEXT, st.none() | TEXT, max_size=4)


@given(TEXT, st.none() | TEXT, TEXT, PAIRS, PAIRS, st.binary(max_size=50))
def test_message_comes_back_equal(
    device: str,
    module: str | None,
    source: str,
    properties: dict[str, str | None],
    system: dict[str, str | None],
    body: bytes,
) -> None:
    """Any text that can be written as UTF-8 comes back as it was, NUL and emoji included."""
    message = Message(device, module, source, properties, system, body, None, "id-1")
    labels = Labels()
    message.header = encode_header(message, labels)
    again = decode_message(message.header, body, "id-1", labels)
    for name in Message.__slots__:
        assert getattr(again, name) == getattr(message, name)
    assert list(again.properties) == list(properties)


@pytest.mark.parametrize(
    "message",
    [
        Message("\ud800", None, "/messages/", {}, {}, b""),
        Message("d", "\ud800", "/messages/", {}, {}, b""),
        Message("d", None, "/\ud800/", {}, {}, b""),
        Message("d", None, "/messages/", {"\ud800": "v"}, {}, b""),
        Message("d", None, "/messages/", {}, {"k": "\udfff"}, b""),
    ],
)
def test_lone_surrogates_are_errors(message: Message) -> None:
    """What cannot be written as UTF-8 is refused before it joins a group."""
    with pytest.raises((TypeError, UnicodeEncodeError)):
        encode_header(message, Labels())


def test_row_comes_back_from_its_columns() -> None:
    """Ids are derived from the offset, of the body where it is shared, unless stored."""
    labels = Labels()
    header = encode_header(Message("d", "m", "/x/", {}, {}, b"b"), labels)
    routes = labels.intern_routes(("r1", "r2"))
    message = (header, b"b")
    plain = (258, 5, None, 90, routes, 2, None, None, None, 70, None, *message)
    row = decode_row(plain, labels, "abc")
    assert (row.offset, row.enqueued_ms, row.expires_ms, row.size) == (258, 5, NEVER_MS, 90)
    assert (row.attempts, row.routes, row.predecessor) == (2, ("r1", "r2"), None)
    assert row.message.message_id == "abc-102"
    of_two = (258, 5, 99, 90, routes, 0, 7, None, 257, None, 1, *message)
    shared = decode_row(of_two, labels, "abc")
    assert (shared.message.message_id, shared.expires_ms, shared.predecessor) == ("abc-101", 99, 7)
    assert (row.fresh_until_ms, shared.fresh_until_ms) == (70, NEVER_MS)
    assert (row.creation, shared.creation) == (False, True)
    known = (258, 5, 99, 90, routes, 0, None, "old-1", 257, None, None, *message)
    own = decode_row(known, labels, "a")
    assert own.message.message_id == "old-1"


def test_labels_are_bounded_and_long_texts_stay_in_their_rows() -> None:
    """Sources made from topics cannot fill memory."""
    labels = Labels()
    assert labels.intern("x" * 1000) == "x" * 1000
    for number in range(LABELS_MAX + 50):
        label = labels.intern(f"/mqtt/{number}")
        assert labels.text(label) == f"/mqtt/{number}"
    assert len(labels.unsaved) == LABELS_MAX
    routes = labels.intern_routes(("late",))
    assert isinstance(routes, str)
    assert labels.routes(routes) == ("late",)


def test_labels_are_unsaved_until_their_transaction() -> None:
    """A label is written with the first rows that use it, and again after a roll-back."""
    labels = Labels([(1, "/messages/")])
    assert labels.intern("/messages/") == 1
    assert labels.unsaved == []
    assert labels.intern("/x/") == 2
    written = list(labels.unsaved)
    labels.intern("/y/")
    labels.saved(written)
    assert labels.unsaved == [(3, "/y/")]
    assert Labels([(2, '["a","b"]')]).routes(2) == ("a", "b")


@pytest.mark.parametrize("header", [None, b"", b"\x00", b"{}", b"[]", b"[1", b"[99999]"])
def test_a_damaged_header_is_damage_not_a_crash(header: bytes | None) -> None:
    """What a disk made of a row is told as damage of that row."""
    record = (7, 1, None, 10, 1, 0, None, None, None, None, None, header, b"body")
    with pytest.raises(StoreCorruptError, match="row 7 cannot be read"):
        decode_row(record, Labels(), "store")

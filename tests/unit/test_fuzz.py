"""Texts and blobs that hubs write and read: damaged ones are read or refused as documented."""

from __future__ import annotations

import zlib

import orjson
from hypothesis import given

from edgehub.journal.events import unpack
from edgehub.journal.row_events import EventColumns, RowEvent, pack
from edgehub.message import NEVER_MS, EndpointId, Message, Priority, Row
from edgehub.mqtt.property_bag import BagError, build_bag, parse_bag
from tests.support.fuzzing import JSON_PIECES, bounded, fuzzer, hostile, hostile_text

BAGS = [
    "kind=alarm&%24.ct=application%2Fjson&%24.mid=1",
    "?a=%C3%A9&b&c=&%24.cdid=other&ack=full",
]
BAG_PIECES = ["&", "=", "%", "%2", "%FF", "%00", "%ED%A0%80", "?", "+", "a=b&" * 500, "\ud800"]


@fuzzer
@given(hostile_text(BAGS, BAG_PIECES))
def test_a_damaged_property_bag_is_read_or_refused(text):
    """What was read is written so that it is read the same; an error is short and printable."""
    try:
        app, system = bounded(lambda: parse_bag(text))
    except BagError as error:
        shown = str(error)
    else:
        shown = ""
        assert all([*app, *system])
        if "\ud800" not in text:
            written = build_bag(Message("d", None, "/", app, system, b""), sender=False)
            again = parse_bag(written)
            assert again == (
                {name: value or None for name, value in app.items()},
                {name: value or None for name, value in system.items()},
            )
    assert len(shown) < 400
    assert shown.isprintable()


def a_blob() -> bytes:
    """Pack the events of a commit with rows of two devices in two queues."""
    columns = EventColumns()
    columns.add(
        RowEvent.ENQUEUED,
        [
            Row(n, Message(f"d{n % 2}", None, "/", {}, {}, b"x"), n, NEVER_MS, ("r",), 64, 0)
            for n in range(1, 9)
        ],
        None,
        None,
    )
    return pack(17, 18, [["stop"]], [(EndpointId("upstream"), Priority(7), columns)])


BLOB = a_blob()


@fuzzer
@given(hostile([BLOB]))
def test_a_damaged_blob_of_the_journal_is_events_or_a_value_error(blob):
    """Its checksum finds what is damaged."""
    try:
        events = bounded(lambda: unpack(blob))
    except ValueError:
        return
    assert (events.hub_ms, events.wall_ms) == (17, 18)


@fuzzer
@given(hostile([zlib.decompress(BLOB)], JSON_PIECES))
def test_a_blob_of_another_form_is_a_value_error(text):
    """Whatever JSON a whole blob holds; its rows are read by whoever needs them."""
    try:
        events = bounded(lambda: unpack(zlib.compress(text)))
    except ValueError:
        return
    assert orjson.loads(text)[1] == events.hub_ms

"""Which properties may be passed on to receivers, and what a will holds while it waits."""

from __future__ import annotations

import pytest

from edgehub.clock import ManualClock
from edgehub.heads.mqtt.will import PENDING_BYTES_MAX, PendingWills
from edgehub.local_message import LocalMessage
from edgehub.message import Message
from edgehub.mqtt.message_properties import MessageProperties
from edgehub.mqtt.properties import Property


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (Property.RESPONSE_TOPIC, "te/+"),
        (Property.RESPONSE_TOPIC, "#"),
        (Property.RESPONSE_TOPIC, ""),
        (Property.RESPONSE_TOPIC, "te/\x01"),
        (Property.CONTENT_TYPE, "a\x9f"),
        (Property.USER_PROPERTY, [("a", "1"), ("b\n", "")]),
        (Property.USER_PROPERTY, [("a", "\U0002ffff")]),
    ],
)
def test_what_receivers_may_close_over(name: Property, value: object):
    """A response topic that is none, and texts with control or non-characters."""
    assert not MessageProperties({name: value}).is_passable


def test_what_all_receivers_take():
    """Texts of all scripts, nothing at all, and bytes that are no text."""
    values = {
        Property.RESPONSE_TOPIC: "$a//ü",
        Property.CONTENT_TYPE: "",
        Property.CORRELATION_DATA: b"\x00\xff",
        Property.USER_PROPERTY: [("", ""), ("\u200b\u00a0", "\U0001f600\ue000")],
    }
    assert MessageProperties(values).is_passable
    assert MessageProperties({}).is_passable


@pytest.mark.parametrize(
    "will",
    [
        LocalMessage("te/" + "x" * 60_000, b"", publisher="d"),
        LocalMessage("te/x", b"", publisher="d", properties=b"p" * 60_000),
        Message("d", None, "/messages/", {"k": "v" * 60_000}, {}, b""),
    ],
)
def test_wills_that_wait_count_whole(will: Message | LocalMessage):
    """Topic and properties are held as the body is, so they count against the bound."""
    submitted: list[object] = []
    wills = PendingWills(ManualClock(), submitted.append, {})
    count = PENDING_BYTES_MAX // 60_000 + 1
    for number in range(count):
        wills.add(f"d{number}", will, 10)
    assert submitted
    wills.submit_all()
    assert len(submitted) == count

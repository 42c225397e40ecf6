"""Messages to devices that clients publish: who may send to whom."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from edgehub.device_bound.message import split_priority
from edgehub.device_bound.request_handler import TOPICS, DeviceMessageHandler
from edgehub.devices.identity_file import Identity
from edgehub.devices.ids import split_sender
from edgehub.heads.mqtt.requests import ClientRequest, RequestRefusal
from edgehub.heads.mqtt.sign_in import SignedInClient
from edgehub.message import DEFAULT_PRIORITY, Refusal

LEVELS = st.one_of(
    st.sampled_from(
        ["devices", "press-1", "other", "modules", "m", "messages", "devicebound", "a=b", "", "$"]
    ),
    st.text(max_size=5),
)
TEXTS = st.one_of(
    st.lists(LEVELS, max_size=8).map("/".join),
    st.tuples(LEVELS, LEVELS).map(lambda pair: "devices/{}/messages/devicebound/{}".format(*pair)),
)
RIGHTS = (
    None,
    (),
    ("#",),
    ("+/press-1/messages/devicebound/#",),
    ("devices/press-1/messages/devicebound/#",),
)


class Mailboxes:
    """Remembers what it was given."""

    def __init__(self) -> None:
        self.targets: list[str] = []

    def accept(self, target, *_, **__):
        """See `Mailboxes`; nothing is durable yet."""
        self.targets.append(target)
        return None, self

    def add_done_callback(self, _callback) -> None:
        """See `asyncio.Future`."""


@given(topic=TEXTS, rights=st.sampled_from(RIGHTS), signed_in=st.booleans())
def test_no_topic_reaches_a_device_without_the_right(topic, rights, signed_in):
    """Only a filter that names the device's own topics gives it, whatever the topic looks like."""
    identity = Identity(id="client", publish=rights) if signed_in else None
    client = SignedInClient(id="client", identity=identity, scope=re.compile(".*"), model_id=None)
    mailboxes, settled = Mailboxes(), []
    handler = DeviceMessageHandler(mailboxes)
    if TOPICS.match(topic.encode()) is None:
        return
    handler(ClientRequest(client, topic, b"", None, handler), lambda *told: settled.append(told), 1)
    if mailboxes.targets:
        assert (signed_in, rights, mailboxes.targets) == (True, RIGHTS[-1], ["press-1"])
        assert settled == []
    else:
        assert settled in ([(1, Refusal.INVALID)], [(1, RequestRefusal.NOT_AUTHORIZED)])


@given(TEXTS)
def test_a_target_is_always_an_id(topic):
    """With the right to all devices a message goes to a valid device or module, or nowhere."""
    identity = Identity(id="client", publish=("devices/#",))
    client = SignedInClient(id="client", identity=identity, scope=None, model_id=None)
    mailboxes = Mailboxes()
    handler = DeviceMessageHandler(mailboxes)
    handler(ClientRequest(client, topic, b"", None, handler), lambda *_: None, 1)
    assert all(split_sender(target) is not None for target in mailboxes.targets)


@given(st.one_of(st.none(), st.text(max_size=3), st.integers(-5, 15).map(str)))
def test_the_priority_that_a_property_names(value):
    """One digit is one; anything else is none, and the property is gone in any case."""
    priority, others = split_priority({"edgehub-priority": value, "a": "b"})
    expected = int(value) if value in {str(digit) for digit in range(10)} else DEFAULT_PRIORITY
    assert priority == expected
    assert others == {"a": "b"} or value is None

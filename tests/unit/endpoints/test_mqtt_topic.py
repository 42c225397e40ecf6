"""Topics of the dialect and of templates."""

from __future__ import annotations

import pytest

from edgehub.endpoints.mqtt_topic import (
    IotHubTopics,
    TopicError,
    TopicTemplate,
    published_filters,
)
from edgehub.errors import ConfigError
from edgehub.message import UPSTREAM, Message
from edgehub.mqtt.topic_filter import matches
from tests.support.memory_queue import a_row


def template(text: str) -> TopicTemplate:
    """Build a template of the upstream endpoint."""
    return TopicTemplate(text, endpoint_id=UPSTREAM, key="upstream.topic")


def test_a_device_publishes_on_its_events_topic() -> None:
    """The bag is the last level, with properties, message id and sender."""
    topic = IotHubTopics().topic(a_row(7, device="dev-1", properties={"kind": "alarm"}))
    assert topic == b"devices/dev-1/messages/events/kind=alarm&%24.mid=m7&%24.cdid=dev-1"


def test_a_module_publishes_on_its_own_topic() -> None:
    """Device and module stand in the topic, the output in the bag."""
    row = a_row(7, device="edge", module="cam")
    row.message.system["outputName"] = "alerts"
    topic = IotHubTopics().topic(row)
    assert topic.startswith(b"devices/edge/modules/cam/messages/events/")
    assert b"%24.on=alerts" in topic


def test_rows_with_equal_headers_differ_in_their_ids_alone() -> None:
    """The topic of a header is built once; ids of the sender, and rows not stored, are built."""
    built: list[str] = []

    def leaving(message: Message) -> Message:
        built.append(message.message_id)
        return message

    topics = IotHubTopics(leaving)
    rows = [a_row(number, device="d", properties={"k": "a b"}) for number in range(3)]
    for row in rows:
        row.message.header = b"h"
    found = [topics.topic(row) for row in rows]
    assert found == [
        b"devices/d/messages/events/k=a%%20b&%%24.mid=m%d&%%24.cdid=d" % number
        for number in range(3)
    ]
    assert built == ["m0"]
    own, other = a_row(4, device="d"), a_row(5, device="d")
    own.message.system["messageId"] = "mine"
    own.message.header = other.message.header = b"of the sender"
    assert b"%24.mid=mine" in topics.topic(own)
    assert b"%24.mid=m5" in topics.topic(other)
    bare = a_row(6, device="e")
    assert topics.topic(bare) == b"devices/e/messages/events/%24.mid=m6&%24.cdid=e"


@pytest.mark.parametrize("device", ["a/b", "a+", "#", "", "nul\0"])
def test_ids_that_would_change_the_topic_are_refused(device: str) -> None:
    """A broker would close the connection for them; a named error is better."""
    with pytest.raises(TopicError, match="device id"):
        IotHubTopics().topic(a_row(1, device=device))


def test_a_template_takes_its_values_from_the_row() -> None:
    """All placeholders; absent values are a dash, so that levels stay where they are."""
    row = a_row(1, device="d", properties={"kind": "alarm"})
    topic = template("s/{device}/{module}/{output}/{endpoint}/{property:kind}/{property:x}")
    assert topic.topic(row) == b"s/d/-/-/upstream/alarm/-"


def test_values_cannot_add_levels_or_wildcards() -> None:
    """Characters that mean something in topics are written as %XX."""
    row = a_row(1, properties={"p": "a/b+c#d%\0"})
    assert template("t/{property:p}").topic(row) == b"t/a%2Fb%2Bc%23d%25%00"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty topic"),
        ("a/{devise}", r"unknown placeholder \{devise\}"),
        ("a/{property:}", r"unknown placeholder"),
        ("a/{device", r"single \{"),
        ("a/device}", r"single \}"),
        ("a/#", "'#' in the topic"),
        ("+/{device}", r"'\+' in the topic"),
    ],
)
def test_a_wrong_template_says_what_is_wrong(text: str, reason: str) -> None:
    """Faults are found when settings are read, with the setting's name."""
    with pytest.raises(ConfigError, match=reason) as caught:
        template(text)
    assert caught.value.key == "upstream.topic"


@pytest.mark.parametrize("module", [None, "cam"])
@pytest.mark.parametrize(
    "text", [None, "s/{device}/x-{property:a/b}/{module}", "{device}", "a/{output}{device}/"]
)
def test_filters_take_every_topic(text: str | None, module: str | None) -> None:
    """Whatever a row holds, its topic falls under one of the filters."""
    topics = IotHubTopics() if text is None else template(text)
    for value in ("", "v", "a/b+#", "/"):
        row = a_row(1, device="d", module=module, properties={"a/b": value})
        topic = topics.topic(row).decode()
        assert any(matches(each, topic) for each in published_filters(text))

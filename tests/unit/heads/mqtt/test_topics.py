"""Topics of the dialect: what may be published and subscribed to, and by whom."""

import pytest

from edgehub.heads.mqtt.topics import (
    ClientTopic,
    client_prefixes,
    input_prefixes,
    parse_events_topic,
    parse_subscription,
)
from edgehub.mqtt.property_bag import BagError


@pytest.mark.parametrize(
    ("topic", "sender", "source"),
    [
        ("devices/d/messages/events", "d", "/messages/"),
        ("devices/d/messages/events/", "d", "/messages/"),
        ("devices/d/messages/events/k=v", "d", "/messages/"),
        ("devices/d/messages/events/k=v/", "d", "/messages/"),
        ("devices/d/modules/m/messages/events", "d/m", "/messages/modules/m/"),
        (
            "devices/d/modules/m/messages/events/%24.on=o&k=v/",
            "d/m",
            "/messages/modules/m/outputs/o/",
        ),
        ("devices/a.b-c_1@x:y=z/messages/events/", "a.b-c_1@x:y=z", "/messages/"),
    ],
)
def test_events_topics(topic, sender, source):
    """Telemetry topics name the sender and give the message source."""
    parsed = parse_events_topic(topic)
    assert parsed is not None
    assert (parsed.sender, parsed.source) == (sender, source)


@pytest.mark.parametrize(
    "topic",
    [
        "",
        "devices",
        "devices/d",
        "devices//messages/events",
        "devices/d/messages",
        "devices/d/messages/events/a=1/b=2",
        "devices/d/messages/events///",
        "devices/d/messages/devicebound/",
        "devices/d/modules/m/messages",
        "devices/d/modules//messages/events",
        "devices/d/modules/m/inputs/i/",
        "Devices/d/messages/events",
        "/devices/d/messages/events",
        "devices/d+/messages/events",
        "devices/#/messages/events",
        "devices/d d/messages/events",
        "devices/d\0/messages/events",
        f"devices/{'d' * 129}/messages/events",
        "$iothub/twin/GET/?$rid=1",
        "te/device/main///m/x",
    ],
)
def test_other_topics(topic):
    """Everything else is not a topic to publish to."""
    assert parse_events_topic(topic) is None


def test_a_malformed_bag_is_distinguished():
    """A telemetry topic with a broken bag is an error of its own."""
    with pytest.raises(BagError):
        parse_events_topic("devices/d/messages/events/a=1&")


def test_properties_count_by_their_text():
    """Names and values count as they are, not as they are written on the wire."""
    parsed = parse_events_topic("devices/d/messages/events/a%20b=c%3D&flag&%24.ct=x")
    assert parsed is not None
    assert parsed.properties_bytes == len("a b") + len("c=") + len("flag") + len("contentType") + 1


@pytest.mark.parametrize(
    ("topic_filter", "target"),
    [
        ("devices/d/messages/devicebound/#", "d"),
        ("devices/d/modules/m/messages/devicebound/#", "d/m"),
        ("devices/d/modules/m/#", "d/m"),
        ("devices/d/modules/m/inputs/#", "d/m"),
        ("devices/d/modules/m/inputs/i/#", "d/m"),
        ("$iothub/twin/res/#", "client"),
        ("$iothub/twin/PATCH/properties/desired/#", "client"),
        ("$iothub/methods/POST/#", "client"),
    ],
)
def test_subscriptions(topic_filter, target):
    """A subscription names whom its deliveries are meant for, and the prefix they have."""
    subscription = parse_subscription(topic_filter, "client")
    assert subscription is not None
    assert subscription.target == target
    assert subscription.prefix + "#" == topic_filter


@pytest.mark.parametrize(
    "topic_filter",
    [
        "#",
        "+/#",
        "$SYS/#",
        "devices/#",
        "devices/+/messages/devicebound/#",
        "devices/d/messages/devicebound",
        "devices/d/messages/devicebound/",
        "devices/d/messages/events/#",
        "devices/d/modules/+/#",
        "devices/d/modules/m/inputs/+/#",
        "devices/d/modules/m/inputs/i",
        "devices/d/modules/m/inputs//#",
        "$iothub/twin/res/",
        "$iothub/methods/POST/reboot/#",
        "$iothub/#",
    ],
)
def test_refused_subscriptions(topic_filter):
    """What the hub has nothing to send for is refused, not silently accepted."""
    assert parse_subscription(topic_filter, "client") is None


def test_delivery_prefixes():
    """Deliveries go out under the topics of the dialect, found under three filters."""
    assert client_prefixes("d", ClientTopic.MESSAGES) == ("devices/d/messages/devicebound/",)
    assert input_prefixes("h", "m", "i") == (
        "devices/h/modules/m/inputs/i/",
        "devices/h/modules/m/inputs/",
        "devices/h/modules/m/",
    )

"""Messages that come back by way of the broker that the hub joins."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest

from edgehub.settings import Settings
from edgehub.settings.configuration import named_endpoints
from edgehub.settings.loops import is_same_broker, loop_warnings

if TYPE_CHECKING:
    from collections.abc import Iterable


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (("mqtt.example.com", 1883), ("MQTT.example.com.", 1883), True),
        (("mqtt.example.com", 1883), ("mqtt.example.com", 8883), True),
        (("mqtt.example.com", 1883), ("mqtt.example.com", 1884), False),
        (("mqtt.example.com", 1884), ("mqtt.example.com", 1884), True),
        (("mqtt.example.com", 1883), ("other.example.com", 1883), False),
        (("localhost", 1883), ("127.0.0.1", 1883), True),
        (("localhost", 1883), ("::1", 1883), True),
        (("127.0.0.1", 1883), ("[::1]", 8883), True),
        (("127.0.0.1", 1883), ("::ffff:127.0.0.1", 1883), True),
        (("127.0.1.1", 1883), ("ip6-localhost", 1883), True),
        (("0.0.0.0", 1883), ("127.0.0.1", 1883), True),
        ((socket.gethostname(), 1883), ("localhost", 1883), True),
        (("fe80::1", 1883), ("FE80:0::1", 1883), True),
        (("192.168.1.7", 1883), ("127.0.0.1", 1883), False),
    ],
)
def test_addresses_of_one_broker(
    one: tuple[str, int], other: tuple[str, int], *, same: bool
) -> None:
    """Names in any spelling, all names of this machine, the ports with and without TLS."""
    assert is_same_broker(*one, *other) is same
    assert is_same_broker(*other, *one) is same


def _warnings(
    upstream: dict[str, Any], filters: Iterable[str], *, broker: dict[str, Any] | None = None
) -> list[str]:
    settings = Settings(
        mqtt={"port": 1884},
        broker={"host": "127.0.0.1", **(broker or {})},
        upstream={"type": "mqtt", "host": "localhost", **upstream},
        endpoints={"away": {"type": "mqtt", "host": "cloud", "topic": "site/{device}"}},
    )
    return list(loop_warnings(settings, named_endpoints(settings), filters))


@pytest.mark.parametrize(
    ("topic", "filters", "found"),
    [
        ("site/{device}", ["site/#"], "site/#"),
        ("site/{device}", ["+/a"], "+/a"),
        ("site/{property:a/b}/x", ["site/+/x"], "site/+/x"),
        ("site/x-{device}", ["site/x-1"], "site/x-1"),
        ("site/{device}", ["other/#", "#", "site/+"], "#, site/+"),
        (None, ["#"], "#"),
        (None, ["devices/press-1/messages/events/+"], "devices/press-1/messages/events/+"),
        (None, ["devices/+/modules/cam/#"], "devices/+/modules/cam/#"),
        ("site/{device}", ["site"], None),
        ("site/{device}", ["site/+/x"], None),
        (None, ["site/#"], None),
        ("site/{device}", [], None),
    ],
)
def test_a_topic_that_is_subscribed_to(
    topic: str | None, filters: list[str], found: str | None
) -> None:
    """A topic that some row of the endpoint can have falls under a filter of a route."""
    warnings = _warnings({"topic": topic}, filters)
    if found is None:
        assert warnings == []
    else:
        (warning,) = warnings
        assert warning.startswith("upstream: publishes on ")
        assert f"subscribes to {found}: what it sends comes back" in warning


def test_topics_that_broker_and_hub_share_count_too() -> None:
    """They are subscribed to without any route."""
    (warning,) = _warnings({"topic": "te/{device}"}, [], broker={"local_topics": ["te/#"]})
    assert "subscribes to te/#" in warning


def test_another_broker_or_none_is_no_loop() -> None:
    """Only what is published at the broker that the hub joins can come back."""
    assert _warnings({"host": "cloud", "topic": "site/{device}"}, ["#"]) == []
    alone = Settings(upstream={"type": "mqtt", "host": "cloud"})
    assert list(loop_warnings(alone, named_endpoints(alone), ["#"])) == []


@pytest.mark.parametrize(
    ("mqtt", "upstream", "warned"),
    [
        ({}, {"host": "localhost"}, True),
        ({"host": "0.0.0.0", "port": 1999}, {"host": "127.0.0.1", "port": 1999}, True),
        ({}, {"host": "localhost", "topic": "te/{device}"}, True),
        ({}, {"host": "localhost", "topic": "site/{device}"}, False),
        ({}, {"host": "localhost", "port": 8883}, False),
        ({"host": "192.168.1.7"}, {"host": "localhost"}, False),
        ({}, {"host": "parent"}, False),
    ],
)
def test_the_listener_of_the_hub_itself(
    mqtt: dict[str, Any], upstream: dict[str, Any], *, warned: bool
) -> None:
    """What is published there comes back by a route, of the dialect or of local topics."""
    settings = Settings(mqtt=mqtt, upstream={"type": "mqtt", **upstream})
    warnings = list(loop_warnings(settings, named_endpoints(settings), ["te/#"]))
    assert len(warnings) == warned
    assert all(
        "upstream: " in each and "the listener of this hub itself" in each for each in warnings
    )


@pytest.mark.parametrize(
    ("http", "url", "warned"),
    [
        ({"port": 8080}, "http://localhost:8080/devices/a/messages/events", True),
        ({"port": 443, "host": "::"}, "https://127.0.0.1/devices/a/messages/events", True),
        ({"port": 8080}, "http://localhost:8081/devices/a/messages/events", False),
        ({"port": 8080}, "http://parent:8080/devices/a/messages/events", False),
        ({}, "http://localhost/in", False),
    ],
)
def test_the_http_head_of_the_hub_itself(http: dict[str, Any], url: str, *, warned: bool) -> None:
    """What is posted there is a message of this hub again."""
    settings = Settings(
        mqtt={"identities_file": "identities"}, http=http, upstream={"type": "http", "url": url}
    )
    warnings = list(loop_warnings(settings, named_endpoints(settings), ["#"]))
    assert len(warnings) == warned
    assert all("is the HTTP head of this hub itself" in each for each in warnings)

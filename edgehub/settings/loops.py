"""Messages that come back: the hub publishes at the broker that it subscribes to, or at itself.

Pure, apart from the name of this machine; a warning never keeps a hub from starting.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from edgehub.endpoints.mqtt_topic import published_filters
from edgehub.mqtt.topic_filter import overlaps
from edgehub.settings import HttpEndpointSettings, MqttEndpointSettings
from edgehub.settings.derived import broker_topics

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from edgehub.settings import EndpointSettings, Settings

_USUAL_PORTS: Final = frozenset({1883, 8883})
"""Of MQTT without and with TLS: one broker listens on both."""

_LOOPBACK: Final = "localhost"
_LOOPBACK_NAMES: Final = frozenset(
    {_LOOPBACK, "localhost.localdomain", "ip6-localhost", "ip6-loopback"}
)


def loop_warnings(
    settings: Settings,
    named: Iterable[tuple[str, EndpointSettings]],
    route_filters: Iterable[str],
) -> Iterator[str]:
    """List the endpoints whose messages come back by way of `[broker]`, or of the hub itself.

    Args:
        settings: The hub's.
        named: Endpoints with the keys of their sections.
        route_filters: Topic filters of the routes.
    """
    filters = tuple(route_filters)
    named = tuple(named)
    published = [(key, each) for key, each in named if isinstance(each, MqttEndpointSettings)]
    yield from _own_listener_warnings(settings, published, filters)
    yield from _own_http_warnings(settings, named)
    broker = settings.broker
    if broker is None:
        return
    subscribed = dict.fromkeys((*broker_topics(settings, broker), *filters))
    for key, endpoint in published:
        if not is_same_broker(endpoint.host, endpoint.port, broker.host, broker.port):
            continue
        found = _overlapping(subscribed, endpoint)
        if found:
            topic = "the IoT Hub dialect" if endpoint.topic is None else endpoint.topic
            yield (
                f"{key}: publishes on {topic} at the broker of [broker], where this hub subscribes "
                f"to {', '.join(found)}: what it sends comes back, and a route that sends it there "
                "again makes an endless loop; publish on other topics, or narrow the filter"
            )


def _own_listener_warnings(
    settings: Settings,
    published: Iterable[tuple[str, MqttEndpointSettings]],
    route_filters: Iterable[str],
) -> Iterator[str]:
    mqtt = settings.mqtt
    ports = {mqtt.port, mqtt.tls_port} if mqtt.certificate_file else {mqtt.port}
    for key, endpoint in published:
        is_own = endpoint.port in ports and _machine(endpoint.host) == _machine(mqtt.host)
        if is_own and (endpoint.topic is None or _overlapping(route_filters, endpoint)):
            yield (
                f"{key}: {endpoint.host}:{endpoint.port} is the listener of this hub itself: what"
                " it sends comes back, and a route that sends it there again makes an endless"
                " loop; name the peer's address"
            )


def _own_http_warnings(
    settings: Settings, named: Iterable[tuple[str, EndpointSettings]]
) -> Iterator[str]:
    for key, endpoint in named:
        if not isinstance(endpoint, HttpEndpointSettings):
            continue
        url = urlsplit(endpoint.url)
        port = url.port or (443 if url.scheme == "https" else 80)
        is_here = _machine(url.hostname or "") == _machine(settings.http.host)
        if port == settings.http.port and is_here:
            yield (
                f"{key}: {endpoint.url} is the HTTP head of this hub itself: what it sends comes"
                " back as a message that holds it, and a route that sends that there again makes"
                " a loop; name the peer's address"
            )


def _overlapping(filters: Iterable[str], endpoint: MqttEndpointSettings) -> list[str]:
    """List the filters that take some topic on which an endpoint publishes."""
    published = published_filters(endpoint.topic)
    return [each for each in filters if any(overlaps(each, own) for own in published)]


def is_same_broker(host: str, port: int, other_host: str, other_port: int) -> bool:
    """Return whether two addresses name one broker, as far as names and usual ports show."""
    if port != other_port and not _USUAL_PORTS.issuperset((port, other_port)):
        return False
    return _machine(host) == _machine(other_host)


def _machine(host: str) -> str:
    name = host.strip().strip("[]").rstrip(".").lower()
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        is_here = name in _LOOPBACK_NAMES or name == socket.gethostname().lower()
        return _LOOPBACK if is_here else name
    mapped = getattr(address, "ipv4_mapped", None)
    address = mapped or address
    return _LOOPBACK if address.is_loopback or address.is_unspecified else str(address)

"""Hubs that are each other's upstream: a message goes round once, and every operator is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.devices import Device
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.support.daemon import Daemon

pytestmark = pytest.mark.e2e

BY_MQTT = 'type = "mqtt"\nhost = "127.0.0.1"\nport = {mqtt}'
BY_HTTP = 'type = "http"\nurl = "http://127.0.0.1:{http}/devices/{name}/messages/events"'


@pytest.fixture
def make_circle(make_daemon: Callable[..., Daemon]) -> Callable[..., list[Daemon]]:
    """Return a function that starts hubs each of which has the next one as its upstream."""

    def make(*upstreams: str) -> list[Daemon]:
        hubs = [make_daemon() for _ in upstreams]
        ports = [{"mqtt": free_port(), "http": free_port()} for _ in hubs]
        for number, (hub, upstream) in enumerate(zip(hubs, upstreams, strict=True)):
            above = (number + 1) % len(hubs)
            section = upstream.format(**ports[above], name=f"hub-{number}")
            (hub.folder / "password").write_text("secret", "utf-8")
            hub.config.write_text(
                f'data_dir = "data"\n[mqtt]\nport = {ports[number]["mqtt"]}\n'
                f'identities_file = "identities"\n[http]\nport = {ports[number]["http"]}\n'
                f'[upstream]\n{section}\nusername = "hub-{number}"\npassword_file = "password"\n'
                '[log]\nformat = "json"\n',
                "utf-8",
            )
            for child in {(number - 1) % len(hubs), number}:
                _add(hub, f"hub-{child}", "--on-behalf", "*")
        for hub in hubs:
            hub.start()
        return hubs

    return make


def _add(hub: Daemon, name: str, *rights: str) -> None:
    options = ["--file", "identities", "--password-file", "password", *rights]
    assert hub.edgehub("identity", "add", name, *options).returncode == 0


def _figures(hub: Daemon, head: str) -> tuple[int, int]:
    """Return how many messages a hub has taken by a head, and how many had been here before."""
    shown = hub.call("status")[head]
    if head == "http":
        return shown["messages_total"] + shown["loops_total"], shown["loops_total"]
    return shown["received_total"], shown["dropped"]["loop"]


def _is_idle(hubs: Sequence[Daemon]) -> bool:
    return all(queue["depth"] == 0 for hub in hubs for queue in hub.call("queue list")["queues"])


def _check_warned(hub: Daemon, event: str, *, other: str, sender: str) -> None:
    (warning,) = [each for each in hub.call("status")["warnings"] if "been in this hub" in each]
    assert f"client {other}: sent back a message of '{sender}'" in warning
    assert "point [upstream] or an endpoint of one of them elsewhere" in warning
    line = hub.wait_event(event)
    assert other in line["newest"]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("batch", ["", '\nbatch = "plain"'])
@pytest.mark.parametrize("count", [2, 3])
def test_by_mqtt_a_message_is_taken_once_by_each_hub(
    make_circle: Callable[..., list[Daemon]], count: int, batch: str
) -> None:
    """The hub where it began drops it when it comes back, whoever has sent it an id or not."""
    hubs = make_circle(*[BY_MQTT + batch] * count)
    first, *others = hubs
    device = Device("press-1", first.mqtt_port)
    for number in range(5):
        device.publish("x", number)
    assert device.wait_in_flight_below(1, 10)
    device.close()
    first.wait_until(lambda: _figures(first, "mqtt")[1] == 5, 30)
    assert _figures(first, "mqtt") == (_received(first, 5, 5, batch), 5)
    assert all(_figures(hub, "mqtt")[1] == 0 for hub in others)
    first.wait_until(lambda: _is_idle(hubs), 20)
    _check_warned(first, "mqtt.loop_found", other=f"hub-{count - 1}", sender="press-1")
    assert all("been in" not in str(hub.call("status")["warnings"]) for hub in others)
    assert [hub.call("status")["endpoints"][0]["sent_total"] for hub in hubs] == [5] * count


def _received(hub: Daemon, own: int, returned: int, batch: str) -> int:
    """Return the PUBLISHes that a hub should have had; batches come in as few as they like."""
    return hub.call("status")["mqtt"]["received_total"] if batch else own + returned


@pytest.mark.timeout(120)
@pytest.mark.parametrize("batch", ["", '\nbatch = "plain"'])
def test_by_mqtt_ids_of_senders_hide_nothing(
    make_circle: Callable[..., list[Daemon]], batch: str
) -> None:
    """With an id of its device a message tells only by the mark; the second hub is told."""
    hubs = make_circle(BY_MQTT + batch, BY_MQTT + batch)
    first, second = hubs
    device = Device("press-1", first.mqtt_port)
    device.publish_raw("devices/press-1/messages/events/%24.mid=17", b"x").wait_for_publish(10)
    device.close()
    second.wait_until(lambda: _figures(second, "mqtt")[1] == 1, 30)
    first.wait_until(lambda: _is_idle(hubs), 20)
    assert _figures(first, "mqtt") == (2, 0)
    assert _figures(second, "mqtt") == (2, 1)
    _check_warned(second, "mqtt.loop_found", other="hub-0", sender="press-1")


@pytest.mark.timeout(120)
def test_by_http_a_message_is_taken_once_by_each_hub(
    make_circle: Callable[..., list[Daemon]],
) -> None:
    """The header of a request says which hubs its messages have passed."""
    hubs = make_circle(BY_HTTP, BY_HTTP)
    first, second = hubs
    device = Device("press-1", first.mqtt_port)
    device.publish("x", 1)
    assert device.wait_in_flight_below(1, 10)
    device.close()
    first.wait_until(lambda: _figures(first, "http")[1] == 1, 30)
    first.wait_until(lambda: _is_idle(hubs), 20)
    assert _figures(first, "http") == (1, 1)
    assert _figures(second, "http") == (1, 0)
    _check_warned(first, "http.loop_found", other="hub-1", sender="hub-1")


@pytest.mark.timeout(120)
def test_a_circle_of_both_protocols_ends(make_circle: Callable[..., list[Daemon]]) -> None:
    """What a mark says stays said when a message changes the protocol."""
    hubs = make_circle(BY_MQTT, BY_HTTP)
    first, second = hubs
    device = Device("press-1", first.mqtt_port)
    device.publish("x", 1)
    assert device.wait_in_flight_below(1, 10)
    device.close()
    first.wait_until(lambda: _figures(first, "http")[1] == 1, 30)
    first.wait_until(lambda: _is_idle(hubs), 20)
    assert _figures(second, "mqtt") == (1, 0)

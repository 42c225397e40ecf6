"""A child hub and its parent as the guide describes them, with passwords and rights."""

from __future__ import annotations

import asyncio
import http.client
import json
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from edgehub.mqtt.batch import BATCH_TYPE, build_batch
from tests.support import mqtt_wire as wire
from tests.support.devices import Device
from tests.support.http_head import BATCH
from tests.support.mosquitto import find
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.daemon import Daemon

pytestmark = pytest.mark.e2e

RATE = 4


def _add(daemon: Daemon, name: str, *rights: str) -> None:
    (daemon.folder / "password").write_text("secret", "utf-8")
    options = ["--file", "identities", "--password-file", "password", *rights]
    assert daemon.edgehub("identity", "add", name, *options).returncode == 0


def _with_identities(daemon: Daemon) -> Daemon:
    text = daemon.config.read_text("utf-8")
    daemon.config.write_text(
        text.replace("[mqtt]\n", '[mqtt]\nidentities_file = "identities"\n'), "utf-8"
    )
    return daemon


def _depth(daemon: Daemon) -> int:
    return sum(queue["depth"] for queue in daemon.call("queue list")["queues"])


def _child_of(
    parent: Daemon, make_daemon: Callable[..., Daemon], *, mqtt: str = "auto", rate: int = 1
) -> Daemon:
    child = make_daemon(upstream=parent.mqtt_port, rate=rate)
    text = child.config.read_text("utf-8")
    child.config.write_text(
        text.replace(
            'type = "mqtt"\n',
            f'type = "mqtt"\nmqtt = "{mqtt}"\nusername = "gateway-7"\n'
            f'password_file = "{parent.folder / "password"}"\n',
        ),
        "utf-8",
    )
    return child


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("mqtt", "event"), [("3.1.1", "mqtt.client_closed"), ("auto", "mqtt.message_dropped")]
)
def test_a_child_hub_speaks_for_its_devices(
    make_daemon: Callable[..., Daemon], mqtt: str, event: str
) -> None:
    """User name, password file and `on_behalf` are all that the guide asks for."""
    parent = _with_identities(make_daemon())
    _add(parent, "gateway-7", "--on-behalf", "line-7-*")
    parent.start()
    child = _child_of(parent, make_daemon, mqtt=mqtt).start()
    device = Device("line-7-a", child.mqtt_port)
    for number in range(20):
        device.publish("x", number)
    assert device.wait_in_flight_below(1, 10)
    child.wait_until(lambda: _depth(child) == 0, 20)
    assert _depth(parent) == 20
    device.close()

    stranger = Device("other-1", child.mqtt_port)
    stranger.publish("x", 0)
    refused = parent.wait_event(event)
    assert refused["reason"] == "foreign_identity"
    assert "other-1" in refused["detail"]
    stranger.close()
    assert child.stop() == 0
    assert parent.stop() == 0


@pytest.mark.timeout(60)
def test_a_client_id_that_the_parent_refuses_is_said(make_daemon: Callable[..., Daemon]) -> None:
    """The endpoint parks, and status says which setting to mend."""
    parent = _with_identities(make_daemon())
    _add(parent, "gateway-7", "--on-behalf", "*")
    parent.start()
    child = _child_of(parent, make_daemon)
    text = child.config.read_text("utf-8")
    child.config.write_text(
        text.replace('username = "gateway-7"\n', 'username = "gateway-7"\nclient_id = "other"\n'),
        "utf-8",
    )
    child.start()
    child.wait_event("pump.endpoint_parked")
    upstream = child.call("status")["endpoints"][0]
    assert upstream["state"] == "parked"
    assert "client_id" in upstream["reason"]
    assert upstream["backoff_remaining_s"] > 30
    (warning,) = child.call("status")["warnings"]
    assert warning.startswith("endpoint 'upstream' is parked: ")
    assert upstream["reason"] in warning
    # Once for each reload, not with each try.
    child.call("config reload")
    child.wait_event("pump.endpoint_parked")


@pytest.mark.timeout(90)
@pytest.mark.parametrize(
    ("mqtt", "words"),
    [
        ("3.1.1", ("closed the connection over this message", "other-1")),
        ("auto", ("refused: Not authorized",)),
    ],
)
def test_a_device_that_the_child_may_not_speak_for_ends_as_a_dead_letter(
    make_daemon: Callable[..., Daemon], mqtt: str, words: tuple[str, ...]
) -> None:
    """The parent closes over its message, or says no; the others get through, before and after."""
    parent = _with_identities(make_daemon())
    _add(parent, "gateway-7", "--on-behalf", "line-7-*")
    parent.start()
    child = _child_of(parent, make_daemon, mqtt=mqtt, rate=RATE).start()
    stranger, device = Device("other-1", child.mqtt_port), Device("line-7-a", child.mqtt_port)
    stranger.publish("x", 0)
    assert stranger.wait_in_flight_below(1, 10)
    for number in range(20):
        device.publish("x", number)
    assert device.wait_in_flight_below(1, 10)
    retries = iter(range(1000))

    def dead() -> bool:
        if next(retries) % 20 == 0:
            child.call("config reload")  # tries at once; back-off is tried elsewhere
        return bool(child.call("status")["store"]["dead_letter_rows"])

    child.wait_until(dead, 60)
    child.wait_until(lambda: _depth(child) == 0, 20)
    assert _depth(parent) == 20
    assert child.call("status")["store"]["dead_letter_rows"] == 1
    reason = child.wait_event("pump.rows_dead_lettered")["reason"]
    assert all(each in reason for each in (*words, "on_behalf"))
    stranger.close()
    device.close()
    assert child.stop() == 0
    assert parent.stop() == 0


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("mqtt", "words"), [("3.1.1", "closed by the peer"), ("auto", "refused: Not authorized")]
)
def test_a_device_that_the_parent_refuses_keeps_no_other_back(
    make_daemon: Callable[..., Daemon], mqtt: str, words: str
) -> None:
    """It sends on, those of the other are there within 20 s, and flow itself once it may."""
    parent = _with_identities(make_daemon())
    _add(parent, "gateway-7", "--on-behalf", "line-7-*")
    parent.start()
    child = _child_of(parent, make_daemon, mqtt=mqtt, rate=RATE).start()
    stranger, device = Device("other-1", child.mqtt_port), Device("line-7-a", child.mqtt_port)
    started = time.monotonic()
    sent = 0
    for number in range(30):
        device.publish("x", number)
    assert device.wait_in_flight_below(1, 10)

    def arrived() -> bool:
        nonlocal sent
        if (time.monotonic() - started) * RATE >= sent:
            stranger.publish("x", sent)
            sent += 1
        # The parent may have some of them twice.
        return _depth(parent) >= 30 and _depth(child) <= sent

    parent.wait_until(arrived, 20 / RATE)
    held = child.wait_event("pump.sender_held")
    assert held["sender"] == "other-1"
    assert held["reason"].startswith(words)
    (found,) = child.call("status")["endpoints"][0]["refused_senders"]
    assert found["sender"] == "other-1"
    (warning,) = child.call("status")["warnings"]
    assert "'other-1'" in warning
    assert "on_behalf" in warning
    dead = child.call("status")["store"]["dead_letter_rows"]
    identities = parent.folder / "identities"
    text = identities.read_text("utf-8")
    identities.write_text(text.replace('"line-7-*"', '"line-7-*", "other-*"'), "utf-8")
    parent.call("config reload")
    child.wait_until(lambda: _depth(child) == 0, 62)
    assert dead <= child.call("status")["store"]["dead_letter_rows"] <= dead + 1
    assert _depth(parent) >= 30 + sent - child.call("status")["store"]["dead_letter_rows"]
    child.wait_event("pump.sender_released")
    assert child.call("status")["warnings"] == []
    stranger.close()
    device.close()
    assert child.stop() == 0
    assert parent.stop() == 0


FORGED = build_batch([b'{"id": "f", "device": "line-7-victim", "body": "forged"}'], compress=False)
"""What a hub believes when another hub sends it: a message of the device that it names."""

EVENTS = "devices/line-7-a/messages/events/"
AS_BATCH = EVENTS + "%24.ct=application%2Fvnd.edgehub.batch%2Bjsonl"
MANIFEST = {
    "schemaVersion": "1.1",
    "routes": {
        "devices": "FROM /messages/* INTO $upstream",
        "local": "FROM /mqtt/site/# INTO $upstream",
    },
    "storeAndForwardConfiguration": {"timeToLiveSecs": 7200},
}


def _post(port: int, body: bytes, headers: dict[str, str]) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("POST", "/devices/line-7-a/messages/events", body, headers)
    status = connection.getresponse().status
    connection.close()
    return status


def _forge_over_http(port: int) -> list[int]:
    """Try each place of a request that reaches a content type or a sender; returns the answers."""
    entries = [
        json.dumps([{"body": FORGED.decode(), "base64Encoded": False, "properties": properties}])
        for properties in (
            {"iothub-contenttype": BATCH_TYPE},
            {"iothub-app-$.ct": BATCH_TYPE},
            {"$.ct": BATCH_TYPE},
            {"$.cdid": "line-7-victim"},
        )
    ]
    return [
        _post(port, FORGED, {"Content-Type": BATCH_TYPE}),
        _post(port, FORGED, {"iothub-contenttype": BATCH_TYPE}),
        _post(port, FORGED, {"iothub-app-$.ct": BATCH_TYPE}),
        _post(port, FORGED, {"iothub-app-$.cdid": "line-7-victim"}),
        *(_post(port, entry.encode(), {"Content-Type": BATCH}) for entry in entries),
    ]


async def _forge_over_mqtt(port: int) -> None:
    """Publish with the content type in the topic, and leave it behind as a will."""
    client = await wire.RawClient.signed_in(port, "line-7-a", will=(AS_BATCH, FORGED))
    client.send(wire.publish(AS_BATCH, FORGED, qos=1))
    assert await client.closed()
    await client.close()
    leaving = await wire.RawClient.signed_in(port, "line-7-a", will=(AS_BATCH, FORGED))
    leaving.cut()


def _forge_over_mqtt_5(port: int, topic: str) -> None:
    """Publish with the content type as the property that MQTT 5 has for it."""
    command = [find("mosquitto_pub"), "-p", str(port), "-V", "5", "-q", "1", "-i", "line-7-a"]
    command += ["-t", topic, "-m", FORGED.decode(), "-D", "publish", "content-type", BATCH_TYPE]
    subprocess.run(command, check=False, timeout=10, capture_output=True)


@pytest.mark.timeout(60)
def test_a_device_cannot_speak_as_another_at_the_parent(
    make_daemon: Callable[..., Daemon],
) -> None:
    """Whatever a device calls a batch, at whatever way in, the parent never takes it apart."""
    parent = _with_identities(make_daemon())
    _add(parent, "gateway-7", "--on-behalf", "*")
    parent.start()
    port = free_port()
    child = make_daemon(
        top='manifest = "m.json"',
        extra=f'local_topics = ["site/#"]\n[http]\nport = {port}\n'
        f'[upstream]\ntype = "mqtt"\nhost = "127.0.0.1"\nport = {parent.mqtt_port}\n'
        f'username = "gateway-7"\npassword_file = "{parent.folder / "password"}"\n',
    )
    (child.folder / "m.json").write_text(json.dumps(MANIFEST), "utf-8")
    child.start()
    assert _forge_over_http(port) == [400] * 8
    asyncio.run(_forge_over_mqtt(child.mqtt_port))
    child.wait_until(lambda: child.call("status")["mqtt"]["dropped"].get("reserved") == 2, 10)
    _forge_over_mqtt_5(child.mqtt_port, EVENTS)
    _forge_over_mqtt_5(child.mqtt_port, "site/a")
    assert child.call("status")["mqtt"]["dropped"]["reserved"] == 3
    device = Device("line-7-a", child.mqtt_port)
    device.publish("x", 0)
    assert device.wait_in_flight_below(1, 10)
    parent.wait_until(lambda: bool(_depth(parent)), 20)
    rows = parent.call("queue peek", queue="upstream", payload=True)["rows"]
    assert [row["device"] for row in rows] == ["line-7-a"]
    assert parent.call("status")["mqtt"]["received_total"] == 1
    device.close()
    assert child.stop() == 0
    assert parent.stop() == 0

"""A child hub and its parent as the guide describes them, with passwords and rights."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.devices import Device

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.daemon import Daemon

pytestmark = pytest.mark.e2e


def _add(daemon: Daemon, name: str, *rights: str) -> None:
    (daemon.folder / "password").write_text("secret", "utf-8")
    command = ["identity", "add", name, "--file", "identities", "--password-file", "password"]
    subprocess.run(
        [sys.executable, "-m", "edgehub", *command, *rights],
        cwd=daemon.folder,
        check=True,
        timeout=20,
    )


def _with_identities(daemon: Daemon) -> Daemon:
    text = daemon.config.read_text("utf-8")
    daemon.config.write_text(
        text.replace("[mqtt]\n", '[mqtt]\nidentities_file = "identities"\n'), "utf-8"
    )
    return daemon


def _depth(daemon: Daemon) -> int:
    return sum(queue["depth"] for queue in daemon.call("queue list"))


def _child_of(parent: Daemon, make_daemon: Callable[..., Daemon]) -> Daemon:
    child = make_daemon(upstream=parent.mqtt_port)
    text = child.config.read_text("utf-8")
    child.config.write_text(
        text.replace(
            'type = "mqtt"\n',
            f'type = "mqtt"\nusername = "gateway-7"\n'
            f'password_file = "{parent.folder / "password"}"\n',
        ),
        "utf-8",
    )
    return child


@pytest.mark.timeout(60)
def test_a_child_hub_speaks_for_its_devices(make_daemon: Callable[..., Daemon]) -> None:
    """User name, password file and `on_behalf` are all that the guide asks for."""
    parent = _with_identities(make_daemon())
    _add(parent, "gateway-7", "--on-behalf", "line-7-*")
    parent.start()
    child = _child_of(parent, make_daemon).start()
    device = Device("line-7-a", child.mqtt_port)
    for number in range(20):
        device.publish("x", number)
    assert device.wait_in_flight_below(1, 10)
    child.wait_until(lambda: _depth(child) == 0, 20)
    assert _depth(parent) == 20
    device.close()

    stranger = Device("other-1", child.mqtt_port)
    stranger.publish("x", 0)
    closed = parent.wait_event("mqtt.client_closed")
    assert closed["reason"] == "foreign_identity"
    assert "other-1" in closed["detail"]
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
def test_a_device_that_the_child_may_not_speak_for_ends_as_a_dead_letter(
    make_daemon: Callable[..., Daemon],
) -> None:
    """The parent closes over its message; the others get through, before and after it."""
    parent = _with_identities(make_daemon())
    _add(parent, "gateway-7", "--on-behalf", "line-7-*")
    parent.start()
    child = _child_of(parent, make_daemon).start()
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
    assert child.wait_event("pump.rows_dead_lettered")["reason"] == "connection closed"
    stranger.close()
    device.close()
    assert child.stop() == 0
    assert parent.stop() == 0

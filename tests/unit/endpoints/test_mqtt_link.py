"""Which version of MQTT an uplink begins with, and which one follows."""

from __future__ import annotations

import pytest

from edgehub.endpoints.mqtt_link import VersionChoice, first_level, refusal
from edgehub.message import FailureKind
from edgehub.mqtt.client import LinkError
from edgehub.mqtt.client_packets import RefusedPublish

REFUSED = LinkError("closed by the peer", connect_refused=True)
PARKED = LinkError("refused: Not authorized", parked=True, connect_refused=True)
UNREACHABLE = LinkError("connect timed out")


@pytest.mark.parametrize(
    ("mqtt", "host", "level"),
    [
        ("auto", "parent.example.com", 5),
        ("auto", "factory.azure-devices.net", 4),
        ("auto", "Factory.Azure-Devices.CN.", 4),
        ("auto", "azure-devices.net.example.com", 5),
        ("5", "factory.azure-devices.net", 5),
        ("3.1.1", "parent.example.com", 4),
    ],
)
def test_the_first_version(mqtt: str, host: str, level: int) -> None:
    """5, but for Azure IoT Hub and what the settings say."""
    assert first_level(mqtt, host) == level


def test_3_1_1_follows_a_refusal_and_is_remembered() -> None:
    """Until the choice is forgotten; a later failure of it is one like any other."""
    version = VersionChoice(5, falls_back=True)
    assert version.failed(REFUSED)
    assert version.level == 4
    version.connected()
    assert not version.failed(REFUSED)
    assert version.level == 4
    version.forget()
    assert version.level == 5


def test_a_peer_that_takes_no_version_is_asked_for_5_again() -> None:
    """One refusal of each, then the back-off of a link."""
    version = VersionChoice(5, falls_back=True)
    assert version.failed(REFUSED)
    assert not version.failed(REFUSED)
    assert version.level == 5
    assert version.failed(REFUSED)
    assert not version.failed(UNREACHABLE)
    assert version.level == 5


@pytest.mark.parametrize("error", [PARKED, UNREACHABLE])
def test_what_says_nothing_of_the_version(error: LinkError) -> None:
    """Wrong credentials, and a peer that is not there."""
    version = VersionChoice(5, falls_back=True)
    assert not version.failed(error)
    assert version.level == 5


def test_a_peer_that_has_taken_5_is_not_asked_for_less() -> None:
    """A close at a later CONNECT is a restart of something on the way."""
    version = VersionChoice(5, falls_back=True)
    version.connected()
    assert not version.failed(REFUSED)
    assert version.level == 5


@pytest.mark.parametrize("level", [4, 5])
def test_a_fixed_version_stays(level: int) -> None:
    """Whatever the peer says of it."""
    version = VersionChoice(level, falls_back=False)
    assert not version.failed(REFUSED)
    assert version.level == level


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (0x80, FailureKind.TRANSIENT),
        (0x83, FailureKind.REJECTED),
        (0x87, FailureKind.NOT_AUTHORIZED),
        (0x90, FailureKind.REJECTED),
        (0x95, FailureKind.TOO_LARGE),
        (0x97, FailureKind.TRANSIENT),
        (0xFE, FailureKind.REJECTED),
    ],
)
def test_what_a_refusal_means(code: int, kind: FailureKind) -> None:
    """With the peer's words where it has some."""
    assert refusal(RefusedPublish(1, code)).kind is kind
    assert refusal(RefusedPublish(1, code, "because")).reason.endswith(": because")

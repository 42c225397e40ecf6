"""`[broker]` and endpoints of type `cumulocity`: what fits together."""

from __future__ import annotations

from typing import Any

import pytest

from edgehub.settings import SettingsError, check_settings

BROKER = {"host": "127.0.0.1"}
CLOUD = {"type": "cumulocity", "host": "acme.example.com"}


def faults_of(document: dict[str, Any]) -> str:
    """Return what is wrong with settings."""
    with pytest.raises(SettingsError) as error:
        check_settings(document, file=None)
    return str(error.value)


@pytest.mark.parametrize(
    ("broker", "fault"),
    [
        ({"local_topics": ["te/#"], "version": "3.1.1"}, "local_topics need version 5"),
        ({"session_expiry_s": 60, "version": "3.1.1"}, "session_expiry_s needs version 5"),
        ({"local_topics": ["site/#"]}, "add it to mqtt.local_topics"),
        ({"local_topics": ["$SYS/#"]}, "the broker's own"),
        ({"local_topics": ["a/#/b"]}, "must be the whole last level"),
        ({"share_group": "a/b"}, "broker.share_group"),
        ({"ca_file": "/x"}, "ca_file without tls = true"),
        ({"tls": True, "key_file": "/x"}, "certificate_file and key_file belong together"),
        ({"password_file": "/x"}, "password_file without username"),
        ({"receive_maximum": 0}, "broker.receive_maximum"),
        ({"recieve_maximum": 1}, "receive_maximum"),
    ],
)
def test_a_broker_that_cannot_be_is_refused(broker: dict[str, Any], fault: str) -> None:
    """With the key, and what would be right."""
    assert fault in faults_of({"broker": {**BROKER, **broker}})


def test_local_topics_may_be_part_of_the_space() -> None:
    """What the space has always, and what the settings add."""
    settings = check_settings(
        {
            "mqtt": {"local_topics": ["site/#"]},
            "broker": {**BROKER, "local_topics": ["te/device/+/#", "c8y/s/us", "site/7/#"]},
        },
        file=None,
    )
    assert settings.broker is not None


@pytest.mark.parametrize(
    ("endpoint", "fault"),
    [
        ({"username": "t1/u"}, "username and password_file belong together"),
        ({"tls": False, "ca_file": "/x"}, "ca_file without tls = true"),
        ({"templates": ["a/b"]}, "upstream.templates"),
        ({"client_id": "a:b"}, "upstream.client_id"),
    ],
)
def test_a_platform_that_cannot_be_is_refused(endpoint: dict[str, Any], fault: str) -> None:
    """Likewise."""
    assert fault in faults_of({"upstream": {**CLOUD, **endpoint}})


def test_sessions_that_would_end_each_other_are_refused() -> None:
    """The broker head, an MQTT endpoint and a platform at one peer under one client id."""
    same = {"host": "10.0.0.1", "port": 1883, "client_id": "gw"}
    mqtt = {"type": "mqtt", **same}
    cloud = {"type": "cumulocity", "tls": False, **same}
    assert "would end the other's session" in faults_of({"broker": same, "upstream": mqtt})
    assert "would end the other's session" in faults_of(
        {"upstream": cloud, "endpoints": {"site": mqtt}}
    )

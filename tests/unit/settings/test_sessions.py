"""Settings of MQTT endpoints: batches, encryption, and sessions that would end each other."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from edgehub.settings import MqttEndpointSettings, Settings
from edgehub.settings import endpoints as module


def _mqtt(**values: Any) -> dict[str, Any]:
    return {"type": "mqtt", "host": "broker", **values}


def test_batches_are_off_by_default() -> None:
    """One message a payload, unless asked for otherwise."""
    assert not MqttEndpointSettings(**_mqtt()).batches
    endpoint = MqttEndpointSettings(**_mqtt(batch="zstd", batch_linger_ms=200))
    assert endpoint.batches
    assert (endpoint.batch_rows_max, endpoint.batch_bytes_max) == (256, 65_536)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"batch": "gzip"}, "batch"),
        ({"batch_rows_max": 10}, "batch_rows_max without batch"),
        ({"batch": "plain", "batch_bytes_max": 2**21}, "batch_bytes_max"),
        ({"batch": "plain", "batch_rows_max": 5000}, "batch_rows_max"),
        ({"batch": "plain", "client_id": "a/b/c"}, "cannot stand there"),
        ({"batch": "plain", "client_id": "a+"}, "cannot stand there"),
        ({"ca_file": "ca.pem"}, "ca_file without tls = true"),
        ({"tls": True, "key_file": "a.key"}, "certificate_file and key_file belong together"),
        ({"device_key_file": "{device}.key"}, "device_certificate_file and device_key_file belong"),
        (
            {"device_key_file": "{device}.key", "device_certificate_file": "{device}.pem"},
            "device_certificate_file without tls",
        ),
        ({"password_file": "a", "shared_access_key_file": "b"}, "set one way to sign in"),
        (
            {"device_password_file": "a", "device_shared_access_key_file": "b"},
            "device_password_file and device_shared_access_key_file: set one",
        ),
        ({"password_file": "a", "mqtt": "3.1.1"}, "password_file without username"),
        (
            {"device_shared_access_key_file": "{device}", "device_mqtt": "3.1.1"},
            "device_shared_access_key_file without device_username",
        ),
    ],
)
def test_what_does_not_fit_together(values: dict[str, Any], words: str) -> None:
    """Each is named, and says how to mend it."""
    with pytest.raises(ValidationError, match=words):
        MqttEndpointSettings(**_mqtt(**values))


def test_a_topic_frees_batches_of_the_client_id() -> None:
    """Only the dialect's topic holds it; device and module are two levels there."""
    assert MqttEndpointSettings(**_mqtt(batch="plain", client_id="a+", topic="site/x")).batches
    assert MqttEndpointSettings(**_mqtt(batch="plain", client_id="gw/hub")).batches


def test_compression_needs_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Said at the start, not when the first message waits."""
    monkeypatch.setattr(module, "has_zstd", lambda: False)
    with pytest.raises(ValidationError, match='install the extra "zstd"'):
        MqttEndpointSettings(**_mqtt(batch="zstd"))
    assert MqttEndpointSettings(**_mqtt(batch="plain")).batches


@pytest.mark.parametrize(
    ("upstream", "other"),
    [
        ({"client_id": "gw"}, {"client_id": "gw"}),
        ({"client_id": "gw"}, {"client_id": "gw", "host": "BROKER"}),
        ({"client_id": "gw"}, {"username": "gw"}),
        ({"username": "hub.example/gw/?api-version=2021-04-12"}, {"client_id": "gw"}),
    ],
)
def test_one_client_id_for_two_endpoints_of_a_peer(
    upstream: dict[str, Any], other: dict[str, Any]
) -> None:
    """Two sessions would end each other for ever; the places and the way out are named."""
    words = "client id 'gw' is that of .* at the same peer.* give one of them another client_id"
    with pytest.raises(ValidationError, match=words):
        Settings(upstream=_mqtt(**upstream), endpoints={"two": _mqtt(**other)})


@pytest.mark.parametrize(
    ("upstream", "other"),
    [
        ({"client_id": "gw"}, {"client_id": "gw", "host": "another"}),
        ({"client_id": "gw"}, {"client_id": "gw", "port": 1884}),
        ({"client_id": "gw"}, {"client_id": "gw-2"}),
        ({"username": "gw"}, {"username": "gw"}),
        ({}, {}),
    ],
)
def test_client_ids_that_do_not_meet(upstream: dict[str, Any], other: dict[str, Any]) -> None:
    """Other peers, other ids; and those that nobody chose are told apart by the hub."""
    settings = Settings(upstream=_mqtt(**upstream), endpoints={"two": _mqtt(**other)})
    assert "two" in settings.endpoints

"""TLS settings of the listener: whole or not at all."""

import pytest

from edgehub.settings import MqttSettings, WorkloadSettings

WHOLE = {"certificate_file": "a.pem", "key_file": "a.key"}


def test_tls_is_off_without_a_certificate():
    """The port alone turns nothing on, and 8883 is what a certificate turns on."""
    assert MqttSettings().certificate_file is None
    assert MqttSettings(**WHOLE).tls_port == 8883
    assert MqttSettings(**WHOLE, tls_port=0, client_ca_file="ca.pem").tls_port == 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"certificate_file": "a.pem"}, "certificate_file and key_file belong together"),
        ({"key_file": "a.key"}, "certificate_file and key_file belong together"),
        ({"tls_port": 8883}, "tls_port without certificate_file"),
        ({"wss_port": 443}, "wss_port without certificate_file"),
        ({"client_ca_file": "ca.pem"}, "client_ca_file without certificate_file"),
        ({"client_ca_file": "ca.pem", "tls_port": 1}, "client_ca_file, tls_port without"),
    ],
)
def test_half_of_it_is_an_error(settings, words):
    """What does nothing by itself is told, with the keys that are missing."""
    with pytest.raises(ValueError, match=words):
        MqttSettings(**settings)


@pytest.mark.parametrize("name", ["folder", "trust_bundle_file"])
def test_half_of_the_workload_api_is_an_error(name):
    """Modules need both: sockets to ask at, and whom to trust."""
    with pytest.raises(ValueError, match="folder and trust_bundle_file belong together"):
        WorkloadSettings(**{name: "x"})

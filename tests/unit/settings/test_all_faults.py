"""No fault of the settings hides another one."""

import os
from pathlib import Path

import pytest

from edgehub.settings import SettingsError
from edgehub.settings.configuration import (
    ConfigurationError,
    fault_documents,
    read_configuration,
    read_settings,
)
from edgehub.settings.origin import SettingsSource


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch):
    for variable in [name for name in os.environ if name.startswith("EDGEHUB_")]:
        monkeypatch.delenv(variable)


def _faults(folder: Path, text: str) -> list[str]:
    file = folder / "edgehub.toml"
    file.write_text(text, "utf-8")
    with pytest.raises((SettingsError, ConfigurationError)) as caught:
        read_configuration(read_settings(SettingsSource(file)), hub_id="gw")
    return [
        f"{fault['key'].removeprefix(f'{file}: ')}: {fault['reason']}"
        for fault in fault_documents(caught.value)
    ]


CERTIFICATES = 'certificate_file = "no.pem"\nkey_file = "no.key"\n'
REDIS_TWICE = '[affinity]\ncoordinator = "redis"\n[routing_table]\nstorage = "redis"\n'


@pytest.mark.parametrize("redis", ["", REDIS_TWICE])
def test_wrong_values_hide_no_missing_file(tmp_path, redis):
    """Nor does it follow from a wrong URL that there is none."""
    text = f'[mqtt]\nbadkey = 1\n{CERTIFICATES}[redis]\nurl = "http://x"\n{redis}'
    key, url, certificate, private = _faults(tmp_path, text)
    assert (key, url[:9]) == ("mqtt.badkey: unknown key", "redis.url")
    assert certificate.startswith("mqtt.certificate_file: ")
    assert private.startswith("mqtt.key_file: ")


def test_a_rule_on_a_section_hides_nothing_of_it(tmp_path):
    """The keys that it is about are taken out, not the section."""
    text = '[mqtt]\nport = 28080\nclient_ca_file = "ca.pem"\n[http]\nport = 28080\n'
    rule, clash = _faults(tmp_path, text)
    assert "client_ca_file without certificate_file and key_file" in rule
    assert clash == "http.port: 28080 is mqtt.port already"


def test_rules_on_several_sections_are_all_reported(tmp_path):
    """Beside one another, and beside a file that is not there."""
    coordinator_and_table = _faults(tmp_path, f"{REDIS_TWICE}[mqtt]\n{CERTIFICATES}")
    told = "\n".join(coordinator_and_table)
    assert len(coordinator_and_table) == 4
    assert "routing_table.storage is redis, but redis.url is not set" in told
    assert "affinity.coordinator is redis, but redis.url is not set" in told


def test_a_wrong_value_hides_no_rule(tmp_path):
    """Rules come into play once the values are right; nobody should have to wait for that."""
    key, *rules = _faults(tmp_path, f"[mqtt]\nbadkey = 1\n{REDIS_TWICE}")
    assert key == "mqtt.badkey: unknown key"
    assert len(rules) == 2
    section = _faults(tmp_path, '[mqtt]\nbadkey = 1\nclient_ca_file = "ca.pem"\n')
    assert len(section) == 2
    assert "client_ca_file without" in section[1]


def test_what_follows_from_a_wrong_value_is_no_fault(tmp_path):
    """The other half of a pair, and tokens whose file has a wrong name, were given."""
    (half,) = _faults(tmp_path, '[mqtt]\ncertificate_file = 5\nkey_file = "no.key"\n')
    assert half.startswith("mqtt.certificate_file")
    (tokens,) = _faults(tmp_path, '[web]\nport = 1\nhost = "0.0.0.0"\ntoken_file = 5\n')
    assert tokens.startswith("web.token_file")

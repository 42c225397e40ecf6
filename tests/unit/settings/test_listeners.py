"""What a listener would refuse once it is bound is judged before, from settings and files."""

import pytest
from pydantic import ValidationError

from edgehub.settings import Settings
from edgehub.settings.configuration import (
    ConfigurationError,
    fault_documents,
    read_configuration,
)
from edgehub.settings.origin import LoadedSettings


def _faults(*, starts: bool = True, **settings: object) -> list[tuple[str, str]]:
    loaded = LoadedSettings(settings=Settings(**settings), origins={})
    try:
        read_configuration(loaded, hub_id="gw", starts=starts)
    except ConfigurationError as error:
        return [(fault["key"], fault["reason"]) for fault in fault_documents(error)]
    return []


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "fe80::1%eth0"])
def test_an_api_for_the_network_needs_tokens(host):
    """Whether the hub starts or reloads."""
    for starts in (True, False):
        ((key, reason),) = _faults(starts=starts, web={"port": 28090, "host": host})
        assert key == "web.host"
        assert f"any client that reaches {host}:28090 could read the API" in reason


def test_an_api_with_a_tokens_file_may_be_on_the_network(tmp_path):
    """An empty file lets nobody in."""
    tokens = tmp_path / "tokens"
    tokens.write_text("", "utf-8")
    assert _faults(web={"port": 0, "host": "0.0.0.0", "token_file": tokens}) == []


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost", "gw.example.org"])
def test_loopback_needs_nothing_and_names_are_left_to_the_machine(host):
    """Only the machine knows what addresses a name has."""
    web, mqtt = {"port": 0, "host": host}, {"host": host}
    assert _faults(web=web, mqtt=mqtt, http=web) == []


def test_an_api_that_is_off_has_no_faults():
    """A host alone opens nothing."""
    assert _faults(web={"host": "0.0.0.0"}, http={"host": "0.0.0.0"}) == []


def test_stations_are_named_wherever_their_devices_are_kept():
    """A port without stations serves none."""
    station = {"port": 0, "stations": ["b827:ebff:fe12:3456"]}
    upstream = {"type": "mqtt", "host": "localhost", "identity": "device"}
    assert _faults(lora=station) == []
    assert _faults(lora={"stations": []}) == []
    assert [key for key, _ in _faults(lora={"port": 0})] == ["lora.stations"]
    for name in ("listen_only", "no_joins"):
        assert _faults(lora={**station, name: ["b827:ebff:fe12:3456"]}) == []
        with pytest.raises(
            ValidationError, match=f"{name}: B827EBFFFE000009 is not among stations"
        ):
            _faults(lora={**station, name: ["b827:ebff:fe00:9"]})
    twin = {"registry": "twin", "coordinator": "in-process"}
    assert _faults(lora=station, affinity=twin, upstream=upstream) == []


@pytest.mark.parametrize(
    ("members", "fault"),
    [
        ({"stations": ["12:34:56"]}, "want a number of 64 bits"),
        ({"client_ca_file": "ca.pem"}, "client_ca_file without certificate_file"),
        ({"certificate_file": "server.pem"}, "belong together"),
        ({"region": "IN865"}, "Basics Station has no region IN865.*EU868"),
    ],
)
def test_a_station_or_plan_that_does_not_exist_is_refused(members, fault):
    """Ids, files that belong together, and plans that stations know."""
    with pytest.raises(ValueError, match=fault):
        Settings(lora=members)


@pytest.mark.parametrize("section", ["mqtt", "http"])
@pytest.mark.parametrize(
    ("options", "key"), [({"host": "0.0.0.0"}, "host"), ({"anonymous": False}, "anonymous")]
)
def test_a_listener_without_clients_is_refused(section, options, key):
    """At the start only: a hub that runs may lose its last identity, and lets nobody in then."""
    ((named, reason),) = _faults(**{section: {"port": 0, **options}})
    assert named == f"{section}.{key}"
    assert "no client could sign in on" in reason
    assert _faults(starts=False, **{section: {"port": 0, **options}}) == []


@pytest.mark.parametrize("section", ["mqtt", "http", "web"])
def test_each_missing_file_of_tls_is_named(section, tmp_path):
    """All at once, not one a try."""
    files = {"certificate_file": tmp_path / "no.pem", "key_file": tmp_path / "no.key"}
    if section == "mqtt":
        files["client_ca_file"] = tmp_path / "nope.pem"
    found = _faults(**{section: {"port": 0, **files}})
    assert sorted(key for key, _ in found) == sorted(f"{section}.{name}" for name in files)


@pytest.mark.parametrize(
    ("host", "clashes"), [("0.0.0.0", True), ("::", False), ("127.0.0.2", False)]
)
def test_all_addresses_hold_each_one(host, clashes):
    """A port of 0.0.0.0 is taken at 127.0.0.1 too; IPv6 has its own."""
    found = _faults(starts=False, mqtt={"port": 8080}, http={"port": 8080, "host": host})
    assert found == ([("http.port", "8080 is mqtt.port already")] if clashes else [])

"""The whole configuration, checked at once; files are read, nothing else is touched."""

from __future__ import annotations

import json
import os

import pytest

from edgehub.devices.identity_file import Identity, changing
from edgehub.devices.passwords import PasswordHash
from edgehub.hub_id import stored_hub_id
from edgehub.mqtt.shared_access import SharedAccessKey
from edgehub.routes.manifest import DEFAULT_MANIFEST
from edgehub.settings import Settings
from edgehub.settings.configuration import (
    ConfigurationError,
    fault_documents,
    read_configuration,
)
from edgehub.settings.effective import effective_document
from edgehub.settings.origin import LoadedSettings
from tests.support.certificates import Authority
from tests.support.routes import a_manifest


def _loaded(**settings: object) -> LoadedSettings:
    return LoadedSettings(settings=Settings(**settings), origins={})


def _faults(**settings: object) -> list[dict]:
    with pytest.raises(ConfigurationError) as caught:
        read_configuration(_loaded(**settings), hub_id="gw")
    return fault_documents(caught.value)


def test_the_defaults_are_whole():
    """C-07: what ships is consistent, without a warning."""
    configuration = read_configuration(_loaded(), hub_id="gw")
    assert configuration.manifest is DEFAULT_MANIFEST
    assert configuration.manifest.warnings == ()
    assert configuration.identities.entries == {}


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({}, ["site", "tenant"]),
        ({"mqtt": {"local_topics": ["site/#"]}}, ["tenant"]),
        ({"mapper": {"enabled": True, "topic_root": "tenant"}}, ["site"]),
        ({"broker": {"host": "127.0.0.1"}}, []),
    ],
)
def test_topics_that_nothing_can_publish_on_are_warned_of(tmp_path, settings, warned):
    """A route on topics of neither the local topic space nor a broker takes no message."""
    names = ("site", "te", "c8y", "$edge", "tenant")
    routes = {name: f"FROM /mqtt/{name}/+/x INTO $upstream" for name in names}
    routes["any"] = "FROM /mqtt/# INTO $upstream"
    manifest = tmp_path / "m.json"
    manifest.write_text(json.dumps(a_manifest(routes)))
    found = read_configuration(_loaded(manifest=manifest, **settings), hub_id="gw")
    warnings = found.manifest.warnings
    assert [warning.route for warning in warnings] == warned
    assert all("nothing can publish on" in warning.message for warning in warnings)
    assert all("mqtt.local_topics" in warning.hint for warning in warnings)


def test_faults_of_all_parts_are_reported_together(tmp_path):
    """Manifest, identities, topics and named files: one run finds them all."""
    manifest = tmp_path / "m.json"
    manifest.write_text(
        json.dumps(
            {
                "schemaVersion": "1.1",
                "routes": {
                    "a": {"route": "FROM /messages/* INTO $upstream", "priority": 10},
                    "b": "FROM /messages/* WHERE x > INTO $upstream",
                },
                "storeAndForwardConfiguration": {"timeToLiveSecs": 7200},
            }
        ),
        "utf-8",
    )
    identities = tmp_path / "identities"
    identities.write_text("no json\n{}\n", "utf-8")
    faults = _faults(
        manifest=manifest,
        mqtt={"identities_file": identities},
        upstream={"type": "mqtt", "host": "h", "topic": "a/{devise}", "password_file": tmp_path},
        endpoints={"lab": {"type": "mqtt", "host": "h", "tls": True, "ca_file": tmp_path / "no"}},
    )
    places = [fault["key"] for fault in faults]
    assert f"{manifest}: routes.a.priority" in places
    assert next(fault for fault in faults if fault["route"] == "b")["line"] == 1
    assert f"{identities}:1" in places
    assert f"{identities}:2" in places
    assert "upstream.topic" in places
    assert "upstream.password_file" in places
    assert "endpoints.lab.ca_file" in places


def test_a_file_without_rights_is_named(tmp_path):
    """A secret that this user cannot read stops the start, not the first connect."""
    secret = tmp_path / "secret"
    secret.write_text("x", "utf-8")
    secret.chmod(0)
    if os.access(secret, os.R_OK):
        pytest.skip("this user may read everything")
    (fault,) = _faults(upstream={"type": "mqtt", "host": "h", "password_file": secret})
    assert "Permission denied" in fault["reason"]


def test_routes_to_endpoints_that_the_settings_lack_are_faults(tmp_path):
    """The table is compiled against these very settings."""
    manifest = tmp_path / "m.json"
    manifest.write_text(
        json.dumps(
            {
                "schemaVersion": "1.1",
                "routes": {"a": 'FROM /messages/* INTO Endpoint("lab")'},
                "storeAndForwardConfiguration": {"timeToLiveSecs": -1},
            }
        ),
        "utf-8",
    )
    (fault,) = _faults(manifest=manifest)
    assert 'no endpoint "lab"' in fault["reason"]
    lab = {"lab": {"type": "file", "path": tmp_path / "x"}}
    table = read_configuration(_loaded(manifest=manifest, endpoints=lab), hub_id="gw").table
    assert table.endpoints == {"lab"}


def test_a_hub_id_that_was_edited_on_windows(tmp_path):
    """A byte order mark is no part of it."""
    (tmp_path / "hub_id").write_bytes(b"\xef\xbb\xbfgw-7\r\n")
    assert stored_hub_id(tmp_path) == "gw-7"


def test_two_listeners_need_two_ports():
    """Found before one of them is open; any free port, and another address, are no clash."""
    sections = {"mqtt": {"port": 8080}, "http": {"port": 8080}, "web": {"port": 8081}}
    (fault,) = _faults(**sections)
    assert (fault["key"], fault["reason"]) == ("http.port", "8080 is mqtt.port already")
    free = {"mqtt": {"port": 0}, "http": {"port": 0}, "web": {"port": 8883}}
    read_configuration(_loaded(**free), hub_id="gw")
    apart = {"mqtt": {"port": 8080}, "http": {"port": 8080, "host": "127.0.0.2"}}
    read_configuration(_loaded(**apart), hub_id="gw")


def test_a_missing_endpoint_is_reported_with_other_faults(tmp_path):
    """One run finds all of a manifest, whatever the compiler would have come to."""
    manifest = tmp_path / "m.json"
    routes = {
        "a": "FROM /messages/* WHERE x > INTO $upstream",
        "b": 'FROM /messages/* INTO Endpoint("labb")',
    }
    storage = {"timeToLiveSecs": 1}
    document = {"schemaVersion": "1.1", "routes": routes, "storeAndForwardConfiguration": storage}
    manifest.write_text(json.dumps(document), "utf-8")
    lab = {"lab": {"type": "file", "path": tmp_path / "x"}}
    syntax, unknown = _faults(manifest=manifest, endpoints=lab)
    assert (syntax["route"], unknown["route"]) == ("a", "b")
    assert unknown["hint"] == 'did you mean "lab"?'


def test_a_missing_manifest_is_named(tmp_path):
    """Its path stands in the fault."""
    (fault,) = _faults(manifest=tmp_path / "absent.json")
    assert fault["key"].endswith("absent.json")


def test_the_effective_document_says_what_follows():
    """L-06: store path, and where the time to live comes from."""
    document = effective_document(
        _loaded(data_dir="d"), manifest=DEFAULT_MANIFEST, hub_id=None, running=False
    )
    assert document["derived"] == {
        "hub_id": None,
        "database": "d/queue.db",
        "control_socket": "d/control.sock",
        "manifest": "built-in manifest",
        "manifest_is": "built-in",
        "routes": 1,
        "global_ttl_s": 7200,
        "collects_only": True,
    }
    assert document["settings"]["mqtt.port"]["value"] == 1883


def test_tokens_are_read_with_the_rest(tmp_path):
    """A broken line and an absent file are faults of the configuration."""
    file = tmp_path / "tokens"
    file.write_text("nonsense", "utf-8")
    (fault,) = _faults(web={"token_file": file})
    assert fault["key"] == f"{file}:1"
    (fault,) = _faults(web={"token_file": tmp_path / "absent"})
    assert "edgehub token add" in fault["hint"]


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("affinity", "coordinator", "redis"),
        ("affinity", "registry", "redis"),
        ("routing_table", "storage", "redis"),
    ],
)
def test_what_lies_in_redis_needs_its_library(monkeypatch, section, key, value):
    """The check says so, and not a start of the hub."""
    absent = "edgehub.settings.configuration.find_spec"
    monkeypatch.setattr(absent, lambda name: None if name == "redis" else object())
    here = {"redis": {"url": "redis://127.0.0.1"}}
    (fault,) = _faults(**here, **{section: {key: value}})
    assert fault["key"] == f"{section}.{key}"
    assert "-e '.[redis]'" in fault["hint"]


@pytest.mark.parametrize(
    ("filter_", "faults"), [("#", 1), ("+/device/#", 1), ("te/device/#", 0), ("plant/#", 0)]
)
def test_a_group_shares_no_local_topics(tmp_path, filter_, faults):
    """Each hub gets them all, so a route that takes them with others cannot be shared."""
    manifest = tmp_path / "m.json"
    routes = {"a": {"route": f"FROM /mqtt/{filter_} INTO $upstream"}}
    storage = {"timeToLiveSecs": 7200}
    manifest.write_text(
        json.dumps(
            {"schemaVersion": "1.1", "routes": routes, "storeAndForwardConfiguration": storage}
        ),
        "utf-8",
    )
    broker = {"host": "h", "share_group": "hubs", "local_topics": ["te/#"]}
    if faults:
        (fault,) = _faults(manifest=manifest, broker=broker)
        assert fault["key"] == "broker.share_group"
    else:
        read_configuration(_loaded(manifest=manifest, broker=broker), hub_id="gw")


@pytest.mark.parametrize(("trust", "warns"), [("never", True), ("auto", False)])
def test_signatures_without_a_time_of_day(tmp_path, trust, warns):
    """They would hold for ever, which the check of the settings says."""
    identities = tmp_path / "identities"
    with changing(identities) as entries:
        for name in ("a", "b"):
            entries[name] = Identity(id=name, keys=(SharedAccessKey(bytes(32)),))
        entries["c"] = Identity(id="c", password=PasswordHash.of(b"secret"))
    loaded = _loaded(mqtt={"identities_file": identities}, clock={"trust": trust})
    found = list(read_configuration(loaded, hub_id="gw").warnings)
    assert [each for each in found if "of a and 1 more never expire" in each] == found[: int(warns)]
    assert len(found) == warns


def test_certificates_without_tls(tmp_path):
    """An identity that could only sign in with a certificate is named where there is no TLS."""
    certificate = Authority(tmp_path).certificate
    identities = tmp_path / "identities"
    identities.write_text(
        json.dumps({"id": "a", "certificates": [certificate.name]})
        + "\n"
        + json.dumps({"id": "b", "thumbprints": ["0" * 64]})
        + "\n"
        + json.dumps({"id": "c"})
    )
    found = read_configuration(_loaded(mqtt={"identities_file": identities}), hub_id="gw")
    needed = "its certificates need mqtt.certificate_file and key_file"
    assert [warning for warning in found.warnings if "identity" in warning] == [
        f"identity a: {needed}",
        f"identity b: {needed}",
    ]

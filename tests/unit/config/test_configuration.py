"""The whole configuration, checked at once; files are read, nothing else is touched."""

from __future__ import annotations

import json
import os

import pytest

from edgehub.config.configuration import (
    ConfigurationError,
    fault_documents,
    read_configuration,
)
from edgehub.config.effective import effective_document
from edgehub.config.origin import LoadedSettings
from edgehub.routes.manifest import DEFAULT_MANIFEST
from edgehub.settings import Settings


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
    assert "cannot be read" in fault["reason"]


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


def test_a_missing_manifest_is_named(tmp_path):
    """Its path stands in the fault."""
    (fault,) = _faults(manifest=tmp_path / "absent.json")
    assert fault["key"].endswith("absent.json")


def test_the_effective_document_says_what_follows():
    """L-06: store path, and where the time to live comes from."""
    document = effective_document(_loaded(data_dir="d"), manifest=DEFAULT_MANIFEST, running=False)
    assert document["derived"] == {
        "database": "d/queue.db",
        "control_socket": "d/control.sock",
        "manifest": "built-in manifest",
        "manifest_is": "built-in",
        "routes": 1,
        "global_ttl_s": 7200,
        "collects_only": True,
    }
    assert document["settings"]["mqtt.port"]["value"] == 1883

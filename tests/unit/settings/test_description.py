"""The settings described: JSON Schema for editors, and the commented example."""

from __future__ import annotations

import json
import re
import tomllib

import fastjsonschema
import pytest

from edgehub.settings import ENDPOINT_TYPES, Settings, check_settings
from edgehub.settings.example import settings_example
from edgehub.settings.fields import plain_fields, title_of, unit_of
from edgehub.settings.origin import flat_settings
from edgehub.settings.schema import DIALECT, settings_schema
from edgehub.settings.sections import endpoint_kind, section_types

DEFAULTS = re.compile(r"^#(?=[a-z\[])", re.MULTILINE)
EVERYTHING = re.compile(r"^##?(?=[a-z\[])", re.MULTILINE)


def _example(pattern: re.Pattern[str]) -> dict[str, object]:
    return tomllib.loads(pattern.sub("", settings_example()))


def _sections() -> list[tuple[str, type]]:
    found = [("", Settings)]
    for name, info in Settings.model_fields.items():
        found += [
            (f"{name}.", section)
            for section in section_types(info)
            if name not in {"upstream", "endpoints", "tenants"}
        ]
    return found + [("endpoints.x.", endpoint) for endpoint in ENDPOINT_TYPES]


def test_the_example_as_it_stands_changes_nothing():
    """All keys are comments."""
    settings = check_settings(_example(re.compile(r"(?!)")), file=None)
    assert settings.model_dump() == Settings().model_dump()


def test_the_defaults_of_the_example_are_the_defaults():
    """Lines with one # may be uncommented: the settings are as they were."""
    document = _example(DEFAULTS)
    assert check_settings(document, file=None).model_dump() == Settings().model_dump()
    assert document["mqtt"]["port"] == 1883


def test_the_example_is_valid_with_every_line():
    """Lines with two # show values that can be used."""
    settings = check_settings(_example(EVERYTHING), file=None)
    assert settings.upstream is not None
    assert settings.hub_id == "gateway-7"


def test_the_example_is_complete():
    """Every key of every section, and every type of endpoint, is shown."""
    document = _example(EVERYTHING)
    shown = flat_settings(check_settings(document, file=None))
    for prefix, section in _sections():
        place = prefix
        if section in ENDPOINT_TYPES:
            kind = endpoint_kind(section)
            place = "upstream." if kind == document["upstream"]["type"] else f"endpoints.{kind}."
        for field in plain_fields(section, place):
            assert field.key in shown
            if field.instead_of:
                assert f"\n###{field.name} = " in settings_example()
            else:
                assert _has(document, field.key), field.key


def _has(document: dict, key: str) -> bool:
    for part in key.split("."):
        if part not in document:
            return False
        document = document[part]
    return True


@pytest.mark.parametrize(("prefix", "section"), _sections(), ids=str)
def test_every_setting_says_what_it_is_for(prefix, section):
    """Each key has a description, and an example where it has no default."""
    for field in plain_fields(section, prefix):
        assert field.description, f"{field.key} has no description"
        assert field.example is not None, f"{field.key} has neither default nor example"


def test_the_schema_accepts_the_example_and_refuses_mistakes():
    """An editor that uses it finds unknown keys, wrong types and values out of range."""
    check = fastjsonschema.compile(settings_schema())
    check(json.loads(json.dumps(_example(EVERYTHING))))
    check({})
    for wrong in (
        {"mqtt": {"prot": 1}},
        {"mqtt": {"port": 70_000}},
        {"mqtt": {"port": "1883"}},
        {"upstream": {"type": "mqtt"}},
        {"upstream": {"type": "pigeon", "host": "a"}},
        {"endpoints": {"Bad Name": {"type": "file", "path": "x"}}},
        {"hub_id": None},
    ):
        with pytest.raises(fastjsonschema.JsonSchemaException):
            check(wrong)


def test_the_schema_describes_every_property():
    """Titles, descriptions, units and the word on reloading are there for each key."""
    schema = settings_schema()
    assert schema["$schema"] == DIALECT
    objects = [schema, *schema["$defs"].values()]
    properties = [
        (name, prop) for each in objects for name, prop in each.get("properties", {}).items()
    ]
    assert len(properties) > 40
    for name, prop in properties:
        assert prop["title"], name
        assert prop["description"], name
        assert prop.get("x-unit", "") == unit_of(name), name
    assert {"type": "null"} not in _parts(schema)
    mqtt = schema["$defs"]["MqttSettings"]["properties"]
    assert (mqtt["port"]["x-reload"], mqtt["clients_max"]["x-reload"]) == ("restart", "live")


def _parts(value: object) -> list[object]:
    if isinstance(value, dict):
        return [value, *(part for item in value.values() for part in _parts(item))]
    if isinstance(value, list):
        return [part for item in value for part in _parts(item)]
    return []


@pytest.mark.parametrize(
    ("name", "unit", "title"),
    [
        ("ack_timeout_s", "seconds", "Ack timeout (seconds)"),
        ("commit_delay_ms", "milliseconds", "Commit delay (milliseconds)"),
        ("message_bytes_max", "bytes", "Message bytes max"),
        ("ca_file", "", "CA file"),
        ("store_qos0", "", "Store QoS 0"),
        ("tls", "", "TLS"),
        ("max_attempts", "", "Max attempts"),
    ],
)
def test_units_stand_in_the_names(name, unit, title):
    """What the name says in short is written out for people."""
    assert (unit_of(name), title_of(name)) == (unit, title)

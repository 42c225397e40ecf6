"""JSON Schema of the settings file, for editors that check and complete TOML.

Owns nothing; follows from the settings model. TOML has no null, so a key without a default is
simply absent. Source: JSON Schema draft 2020-12.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from edgehub.settings import ENDPOINT_TYPES, Settings, TenantSettings
from edgehub.settings.fields import plain_fields, title_of, unit_of
from edgehub.settings.sections import endpoint_kind, section_description, section_types

if TYPE_CHECKING:
    from pydantic import BaseModel

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def settings_schema() -> dict[str, Any]:
    """Return the schema.

    Returns:
        A schema whose properties all have a title and a description; `x-unit` names the unit,
        `x-reload` says whether a reload takes a change over or a restart is needed.
    """
    generated = Settings.model_json_schema()
    schema: dict[str, Any] = {
        "$schema": DIALECT,
        "title": "edgehub settings",
        "description": "The settings file of an edgehub daemon, edgehub.toml.",
        **{name: part for name, part in generated.items() if name not in {"title", "description"}},
    }
    definitions = schema["$defs"]
    _describe(schema, Settings, "")
    for name, info in Settings.model_fields.items():
        for section in section_types(info):
            schema["properties"][name]["description"] = section_description(info)
            if section not in (*ENDPOINT_TYPES, TenantSettings):
                _describe(definitions[section.__name__], section, f"{name}.")
                definitions[section.__name__]["title"] = f"[{name}]"
    _describe(definitions["TenantSettings"], TenantSettings, "tenants.*.")
    definitions["TenantSettings"]["title"] = "One tenant"
    for endpoint in ENDPOINT_TYPES:
        _describe(definitions[endpoint.__name__], endpoint, "endpoints.*.")
        definitions[endpoint.__name__]["title"] = f"Endpoint of type {endpoint_kind(endpoint)}"
    return schema


def _describe(schema: dict[str, Any], section: type[BaseModel], prefix: str) -> None:
    fields = {field.name: field for field in plain_fields(section, prefix)}
    properties: dict[str, dict[str, Any]] = schema["properties"]
    for name, found in properties.items():
        prop = _without_null(found)
        prop["title"] = title_of(name)
        unit = unit_of(name)
        if unit:
            prop["x-unit"] = unit
        if name in fields:
            prop["x-reload"] = "live" if fields[name].live else "restart"
        else:
            # A section's defaults are those of its keys.
            prop.pop("default", None)
        properties[name] = prop


def _without_null(prop: dict[str, Any]) -> dict[str, Any]:
    prop = dict(prop)
    if prop.get("default", ...) is None:
        del prop["default"]
    if "patternProperties" in prop:
        # The name of an endpoint must fit, not only be described where it fits.
        prop["additionalProperties"] = False
    choices = [choice for choice in prop.get("anyOf", []) if choice != {"type": "null"}]
    if "anyOf" in prop and len(choices) == 1:
        del prop["anyOf"]
        return {**choices[0], **prop}
    if choices:
        prop["anyOf"] = choices
    return prop

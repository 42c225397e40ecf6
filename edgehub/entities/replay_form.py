"""The JSON form of a replay, and its conversion.

Owns names and defaults of a replay's configuration and the reading of its messages; they are those
of the case files. Values are those that settings may have. Every error names its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import orjson
from msgspec import Meta, Struct, convert
from pydantic import ValidationError

from edgehub.entities.capabilities import CLOUD_OPERATIONS
from edgehub.entities.faults import MappingError
from edgehub.entities.options import MapperOptions
from edgehub.entities.topics import read_topic_id
from edgehub.mqtt.topic_filter import filter_fault
from edgehub.routes.hints import near_miss
from edgehub.settings.faults import Origins, faults_of
from edgehub.settings.mapper import EntitySettings, MapperSettings

if TYPE_CHECKING:
    from collections.abc import Collection

    from edgehub.settings.values import Section

S = TypeVar("S", bound="Section")

DEFAULT_OBSERVE: Final = ("c8y/#",)
_RENAMED: Final = {
    "c8y_prefix": "topic_prefix",
    "max_payload_size": "packet_bytes_max",
    "file_transfer_base": "file_transfer_url",
}
"""Settings by keys of the configuration, where those differ."""
_NO_SETTINGS: Final = frozenset(
    {
        "availability",
        "c8y_url",
        "capabilities",
        "device_id",
        "observe",
        "observe_self_only",
        "software_management",
        "startup",
        "topics",
    }
)
_CONFIG_KEYS: Final = frozenset(
    (*_NO_SETTINGS, *_RENAMED, *EntitySettings.model_fields, *MapperSettings.model_fields)
)
_AVAILABILITY_KEYS: Final = frozenset({"enable", "interval_s"})
_SOFTWARE_KEYS: Final = frozenset({"api", "with_types"})
AT_MS_MAX: Final = 366 * 24 * 3600 * 1000


class ReplayFormError(MappingError):
    """A replay cannot be read; the text says why and where."""


class ReplayInput(Struct, forbid_unknown_fields=True):
    """One message of a replay, or one control of it.

    Attributes:
        topic: Topic, or `$ctl/...`.
        payload: Payload bytes; any JSON value while it is read.
        retain: Whether the broker keeps it.
        at_ms: Time since the start of the daemon.
        client: Its sender.
    """

    topic: str
    payload: Any = ""
    retain: bool = False
    at_ms: Annotated[int, Meta(ge=0, le=AT_MS_MAX)] = 0
    client: str = ""


class Replay(Struct, frozen=True, kw_only=True):
    """A whole replay.

    Attributes:
        options: Of the mapper.
        observe: Topic filters of what is shown.
        shows_start: Whether the effects of the start are shown.
        inputs: In the order of time.
    """

    options: MapperOptions
    observe: tuple[str, ...]
    shows_start: bool
    inputs: tuple[ReplayInput, ...]


def read_replay(form: Any) -> Replay:
    """Read a replay.

    Args:
        form: A JSON object with `config` and `input`; other members are ignored.

    Raises:
        ReplayFormError: Something is missing or of the wrong type.
    """
    if not isinstance(form, dict):
        raise ReplayFormError("the line must be a JSON object")
    config = form.get("config", {})
    if not isinstance(config, dict):
        raise ReplayFormError("`config` must be an object")
    _check_keys(config, _CONFIG_KEYS, "config")
    startup = config.get("startup", "drop")
    if startup not in ("drop", "compare"):
        raise ReplayFormError("`config.startup` must be drop or compare")
    return Replay(
        options=_options(config),
        observe=_filters(config, "observe") or DEFAULT_OBSERVE,
        shows_start=startup == "compare",
        inputs=tuple(_inputs(form.get("input"))),
    )


def _options(config: dict[str, Any]) -> MapperOptions:
    given: dict[str, Any] = {"alarm_sync_ms": 0, "telemetry_cache_scope": "global"}
    for key, value in config.items():
        if key not in _NO_SETTINGS and value is not None:
            given[_RENAMED.get(key, key)] = value
    if isinstance(topic_id := given.get("device_topic_id"), str):
        given["device_topic_id"] = read_topic_id(topic_id)
    if tenant := _text(config, "c8y_url", ""):
        given["tenant_host"] = tenant.rpartition("://")[2].partition("/")[0]
    software = _section(config, "software_management")
    _check_keys(software, _SOFTWARE_KEYS, "config.software_management")
    given |= {
        **_availability(config),
        "topics": _filters(config, "topics"),
        "software_lists": software.get("api", "legacy") == "advanced",
        "software_types": bool(software.get("with_types", False)),
        "disabled_operations": _disabled(config),
    }
    return MapperOptions(
        device_id=_text(config, "device_id", "edgehub"),
        entities=_checked(EntitySettings, "entities", given),
        mapper=_checked(MapperSettings, "mapper", given),
    )


def _checked(section: type[S], name: str, given: dict[str, Any]) -> S:
    """Check the settings of a section as those of a file are checked."""
    values = {key: value for key, value in given.items() if key in section.model_fields}
    try:
        return section.model_validate(values, strict=True)
    except ValidationError as error:
        detail = error.errors()[0]
        detail["loc"] = (name, *detail["loc"])
        origins = Origins(file=None, document={}, flags={}, variable=lambda _path: None)
        fault = next(faults_of(origins, detail))
        key = fault.key.partition(".")[2]
        key = next((own for own, setting in _RENAMED.items() if setting == key), key)
        hint = f"; {fault.hint}" if fault.hint else ""
        raise ReplayFormError(f"`config.{key}` {fault.reason}{hint}") from None


def _availability(config: dict[str, Any]) -> dict[str, Any]:
    section = config.get("availability")
    if section is None or section is False or section == "off":
        return {"availability": False}
    if not isinstance(section, dict):
        raise ReplayFormError("`config.availability` must be an object, or off")
    _check_keys(section, _AVAILABILITY_KEYS, "config.availability")
    return {
        "availability": bool(section.get("enable", True)),
        "availability_interval_s": section.get("interval_s", 3600),
    }


def _disabled(config: dict[str, Any]) -> tuple[str, ...]:
    section = _section(config, "capabilities")
    _check_keys(section, CLOUD_OPERATIONS.keys() | {"software_list"}, "config.capabilities")
    return tuple(name for name, is_on in section.items() if not is_on)


def _section(config: dict[str, Any], key: str) -> dict[str, Any]:
    section = config.get(key)
    if section is None or section == "on":
        return {}
    if not isinstance(section, dict):
        raise ReplayFormError(f"`config.{key}` must be an object")
    return section


def _filters(config: dict[str, Any], key: str) -> tuple[str, ...]:
    filters = config.get(key)
    if filters is None or isinstance(filters, str):
        return ()  # "the default subscription"
    if not isinstance(filters, list) or not all(isinstance(text, str) for text in filters):
        raise ReplayFormError(f"`config.{key}` must be a list of topic filters")
    for text in filters:
        if fault := filter_fault(text):
            raise ReplayFormError(f"`config.{key}`: {fault}")
    return tuple(filters)


def _inputs(form: Any) -> list[ReplayInput]:
    try:
        messages = convert(form, list[ReplayInput])
    except ValueError as error:
        raise ReplayFormError(f"`input`: {error}") from None
    at_ms = 0
    for number, message in enumerate(messages):
        at_ms = message.at_ms = max(at_ms, message.at_ms)
        for text in (message.topic, message.client):
            _sent(text, f"input[{number}]")
        message.payload = _sent(message.payload, f"input[{number}].payload")
    return messages


def _check_keys(form: dict[str, Any], known: Collection[str], place: str) -> None:
    for key in form:
        if key not in known:
            close = near_miss(key, known)
            hint = f"did you mean `{close}`?" if close else f"there are {', '.join(sorted(known))}"
            raise ReplayFormError(f"`{place}` has no member `{key[:100]}`: {hint}")


def _text(config: dict[str, Any], key: str, default: str) -> str:
    value = config.get(key, default)
    if not isinstance(value, str):
        raise ReplayFormError(f"`config.{key}` must be a text")
    _sent(value, f"config.{key}")
    return value


def _sent(value: Any, place: str) -> bytes:
    """Return a text as it is, and any other value in JSON."""
    try:
        return value.encode() if isinstance(value, str) else orjson.dumps(value)
    except (UnicodeEncodeError, TypeError) as error:
        raise ReplayFormError(f"`{place}` cannot be sent: {error}") from None

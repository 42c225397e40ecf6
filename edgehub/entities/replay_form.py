"""The JSON form of a replay, and its conversion.

Owns names and defaults of a replay's configuration and the reading of its messages; they are those
of the case files. Every error names its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson
from msgspec import Struct

from edgehub.entities.capabilities import CLOUD_OPERATIONS
from edgehub.entities.faults import MappingError
from edgehub.entities.options import MapperOptions, options_of
from edgehub.entities.topics import read_topic_id
from edgehub.mqtt.topic_filter import filter_fault
from edgehub.routes.hints import near_miss

if TYPE_CHECKING:
    from collections.abc import Collection

DEFAULT_OBSERVE: Final = ("c8y/#",)
_SCOPES: Final = ("entity", "global")
_PLAIN: Final = {
    "topic_root": ("topic_root", str),
    "device_topic_id": ("device_topic_id", str),
    "c8y_prefix": ("topic_prefix", str),
    "auto_register": ("auto_register", bool),
    "clean_start": ("clean_start", bool),
    "telemetry_cache_size": ("telemetry_cache_size", int),
    "service_type": ("service_type", str),
    "use_operation_id": ("use_operation_id", bool),
    "child_device_marker": ("child_device_marker", bool),
    "max_payload_size": ("packet_bytes_max", int),
    "alarm_sync_ms": ("alarm_sync_ms", int),
    "file_transfer_base": ("file_transfer_url", str),
    "proxy_url": ("proxy_url", str),
}
"""Option and type by key of the configuration."""

_CONFIG_KEYS: Final = frozenset(_PLAIN) | {
    "availability",
    "c8y_url",
    "capabilities",
    "device_id",
    "observe",
    "observe_self_only",
    "pending_ttl_s",
    "software_management",
    "startup",
    "telemetry_cache_scope",
    "topics",
}
_AVAILABILITY_KEYS: Final = frozenset({"enable", "interval_s"})
_SOFTWARE_KEYS: Final = frozenset({"api", "with_types"})
_MESSAGE_KEYS: Final = frozenset({"at_ms", "client", "payload", "retain", "topic"})
_DAY_S: Final = 24 * 3600
AT_MS_MAX: Final = 366 * _DAY_S * 1000
_BOUNDS: Final[dict[str, tuple[int, int]]] = {
    "alarm_sync_ms": (0, 600_000),
    "interval_s": (0, 366 * _DAY_S),
    "max_payload_size": (0, 2**28),
    "pending_ttl_s": (1, 366 * _DAY_S),
    "telemetry_cache_size": (0, 1_000_000),
    "at_ms": (0, AT_MS_MAX),
}
"""Least and largest value by key."""

_LEVELS: Final = frozenset({"topic_root", "c8y_prefix"})


class ReplayFormError(MappingError):
    """A replay cannot be read; the text says why and where."""


class ReplayInput(Struct, frozen=True, kw_only=True):
    """One message of a replay, or one control of it.

    Attributes:
        topic: Topic, or `$ctl/...`.
        payload: Payload bytes.
        retain: Whether the broker keeps it.
        at_ms: Time since the start of the daemon.
        client: Its sender.
    """

    topic: str
    payload: bytes
    retain: bool
    at_ms: int
    client: str


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
    inputs = form.get("input")
    if not isinstance(config, dict):
        raise ReplayFormError("`config` must be an object")
    if not isinstance(inputs, list):
        raise ReplayFormError("`input` must be a list of messages")
    _check_keys(config, _CONFIG_KEYS, "config")
    startup = config.get("startup", "drop")
    if startup not in ("drop", "compare"):
        raise ReplayFormError("`config.startup` must be drop or compare")
    return Replay(
        options=_options(config),
        observe=_filters(config, "observe") or DEFAULT_OBSERVE,
        shows_start=startup == "compare",
        inputs=tuple(_inputs(inputs)),
    )


def _options(config: dict[str, Any]) -> MapperOptions:
    place = "config"
    values: dict[str, Any] = {"alarm_sync_ms": 0}
    for key, (option, type_) in _PLAIN.items():
        if config.get(key) is not None:
            values[option] = _member(config, key, type_, None, place)
    if "device_topic_id" in values:
        values["device_topic_id"] = read_topic_id(values["device_topic_id"])
    scope = config.get("telemetry_cache_scope", "global")
    if scope not in _SCOPES:
        raise ReplayFormError(f"`config.telemetry_cache_scope` must be {' or '.join(_SCOPES)}")
    software = _section(config, "software_management")
    _check_keys(software, _SOFTWARE_KEYS, "config.software_management")
    return options_of(
        _member(config, "device_id", str, "edgehub", place),
        **values,
        **_availability(config),
        telemetry_cache_scope=scope,
        pending_ttl_s=_member(config, "pending_ttl_s", int, _DAY_S, place),
        topics=_filters(config, "topics"),
        software_lists=software.get("api", "legacy") == "advanced",
        software_types=bool(software.get("with_types", False)),
        disabled_operations=_disabled(config),
        tenant_host=_host(_member(config, "c8y_url", str, "", place)),
    )


def _host(text: str) -> str:
    return text.partition("://")[2].partition("/")[0] if "://" in text else text.partition("/")[0]


def _availability(config: dict[str, Any]) -> dict[str, Any]:
    section = config.get("availability")
    if section is None or section is False or section == "off":
        return {"availability": False}
    if not isinstance(section, dict):
        raise ReplayFormError("`config.availability` must be an object, or off")
    _check_keys(section, _AVAILABILITY_KEYS, "config.availability")
    return {
        "availability": bool(section.get("enable", True)),
        "availability_interval_s": _member(section, "interval_s", int, 3600, "config.availability"),
    }


def _disabled(config: dict[str, Any]) -> frozenset[str]:
    section = _section(config, "capabilities")
    _check_keys(section, CLOUD_OPERATIONS.keys() | {"software_list"}, "config.capabilities")
    return frozenset(name for name, is_on in section.items() if not is_on)


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


def _inputs(inputs: list[Any]) -> list[ReplayInput]:
    messages: list[ReplayInput] = []
    at_ms = 0
    for number, form in enumerate(inputs):
        if not isinstance(form, dict):
            raise ReplayFormError(f"`input[{number}]` must be an object")
        place = f"input[{number}]"
        _check_keys(form, _MESSAGE_KEYS, place)
        at_ms = max(at_ms, _member(form, "at_ms", int, at_ms, place))
        messages.append(
            ReplayInput(
                topic=_member(form, "topic", str, None, place),
                payload=_payload(form.get("payload", ""), place),
                retain=_member(form, "retain", bool, False, place),
                at_ms=at_ms,
                client=_member(form, "client", str, "", place),
            )
        )
    return messages


def _check_keys(form: dict[str, Any], known: Collection[str], place: str) -> None:
    for key in form:
        if key not in known:
            close = near_miss(key, known)
            hint = f"did you mean `{close}`?" if close else f"there are {', '.join(sorted(known))}"
            raise ReplayFormError(f"`{place}` has no member `{key[:100]}`: {hint}")


def _payload(value: Any, place: str) -> bytes:
    try:
        return value.encode() if isinstance(value, str) else orjson.dumps(value)
    except (UnicodeEncodeError, TypeError) as error:
        raise ReplayFormError(f"`{place}.payload` cannot be sent: {error}") from None


def _member(form: dict[str, Any], key: str, type_: type, default: Any, place: str) -> Any:
    value = form.get(key, default)
    if not isinstance(value, type_) or (type_ is int and isinstance(value, bool)):
        raise ReplayFormError(f"`{place}.{key}` must be {_WORDS[type_]}")
    if isinstance(value, str):
        _check_text(value, key, place)
    elif key in _BOUNDS:
        _check_number(value, key, place)
    return value


def _check_number(value: Any, key: str, place: str) -> None:
    least, largest = _BOUNDS[key]
    if not least <= value <= largest:
        raise ReplayFormError(f"`{place}.{key}` is {value}; it must be {least} to {largest}")


def _check_text(value: str, key: str, place: str) -> None:
    if key in _LEVELS and (not value or any(character in value for character in "/+#")):
        raise ReplayFormError(f"`{place}.{key}` must be one level of a topic, without / + #")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ReplayFormError(f"`{place}.{key}` cannot be sent: {error}") from None


_WORDS: Final = {str: "a text", int: "a whole number", bool: "true or false"}

"""What a reload may change while the hub runs, and what has to wait for a restart.

Owns the list of keys that are taken over live; a key that is not on it needs a restart, so that a
new setting is never ignored in silence. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace
from pydantic import BaseModel

from edgehub.settings.redaction import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edgehub.settings.origin import LoadedSettings

Section = TypeVar("Section", bound=BaseModel)

LIVE_KEYS: Final = frozenset(
    {
        "manifest",
        "drain_timeout_s",
        "store.check_entire_queue_on_cleanup",
        "store.cache_bytes",
        "store.rows_max",
        "store.bytes_max",
        "store.queue_rows_max",
        "store.queue_bytes_max",
        "store.free_bytes_min",
        "store.overflow",
        "mqtt.identities_file",
        "mqtt.clients_max",
        "mqtt.message_bytes_max",
        "mqtt.connect_timeout_s",
        "mqtt.ack_timeout_s",
        "mqtt.store_qos0",
        "web.token_file",
        "device_bound.waiting_max",
        "device_bound.bytes_max",
        "device_bound.ttl_s",
        "device_bound.deliveries_max",
        "lora.decoder_folder",
        "log.level",
    }
)
LIVE_SECTIONS: Final = ("upstream", "endpoints")
"""Endpoints are replaced, or adjusted, one by one."""


_NOTHING: Final = "nothing"


class PendingKey(Struct, frozen=True, kw_only=True):
    """A setting that was changed and needs a restart.

    Attributes:
        key: Dotted key, or the name of a section that came or went.
        in_force: Its value, as it may be shown, `nothing` = there is none.
        wanted: The value in the settings, likewise.
    """

    key: str
    in_force: object
    wanted: object

    def __str__(self) -> str:
        now = (
            "until then there is none"
            if self.in_force == _NOTHING
            else f"{self.in_force} is in force"
        )
        wanted = f"= {self.wanted} takes effect" if self.wanted != _NOTHING else "ends"
        return f"{self.key} {wanted} at the next restart; {now}"


class SettingsChange(Struct, frozen=True, kw_only=True):
    """The way from the settings in force to those wanted.

    Attributes:
        loaded: What is in force after the change: as wanted, but for what needs a restart.
        applied: Keys whose value in force changes; of a section that came, went or is of another
            kind, its name alone.
        needs_restart: Keys that keep their old value until then.
    """

    loaded: LoadedSettings
    applied: tuple[str, ...]
    needs_restart: tuple[PendingKey, ...]


def plan_change(in_force: LoadedSettings, wanted: LoadedSettings) -> SettingsChange:
    """Part what can change now from what cannot."""
    pending: list[PendingKey] = []
    settings = _merged(in_force.settings, wanted.settings, "", pending)
    waiting = tuple(f"{entry.key}." for entry in pending)
    origins = {
        key: origin for key, origin in wanted.origins.items() if not f"{key}.".startswith(waiting)
    }
    origins |= {
        key: origin for key, origin in in_force.origins.items() if f"{key}.".startswith(waiting)
    }
    return SettingsChange(
        loaded=replace(wanted, settings=settings, origins=origins),
        applied=tuple(_different_keys(in_force.settings, settings, "")),
        needs_restart=tuple(pending),
    )


def is_live(key: str) -> bool:
    """Return whether a setting can change while the hub runs; `key` is dotted."""
    return key in LIVE_KEYS or key.split(".", 1)[0] in LIVE_SECTIONS


def _merged(old: Section, new: Section, prefix: str, pending: list[PendingKey]) -> Section:
    kept: dict[str, object] = {}
    for name in type(new).model_fields:
        key = f"{prefix}{name}"
        before, after = getattr(old, name), getattr(new, name)
        if before == after or is_live(key):
            continue
        if isinstance(before, BaseModel) and type(before) is type(after):
            kept[name] = _merged(before, after, f"{key}.", pending)
        else:
            kept[name] = before
            pending.append(
                PendingKey(key=key, in_force=_text(key, before), wanted=_text(key, after))
            )
    return new.model_copy(update=kept)


def _text(key: str, value: object) -> object:
    if isinstance(value, BaseModel):
        return "set"
    return _NOTHING if value is None else shown(key, value)


def _different_keys(old: BaseModel, new: BaseModel, prefix: str) -> Iterator[str]:
    for name in type(new).model_fields:
        yield from _different(getattr(old, name), getattr(new, name), f"{prefix}{name}")


def _different(before: object, after: object, key: str) -> Iterator[str]:
    if before == after:
        return
    if isinstance(before, BaseModel) and isinstance(after, BaseModel):
        if type(before) is type(after):
            yield from _different_keys(before, after, f"{key}.")
            return
    elif _is_of_sections(before) and _is_of_sections(after):
        assert isinstance(before, dict)
        assert isinstance(after, dict)
        for name in dict.fromkeys([*before, *after]):
            yield from _different(before.get(name), after.get(name), f"{key}.{name}")
        return
    yield key


def _is_of_sections(value: object) -> bool:
    # An empty one may be of sections as well.
    return isinstance(value, dict) and all(isinstance(v, BaseModel) for v in value.values())

"""Settings of one hub: `edgehub.toml`, environment variables and flags, validated at once.

Owns the names, units, ranges and defaults of all settings; calls nothing of the hub. Invariant: a
`Settings` object that exists is valid and never changes.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict
from pydantic_settings.sources import InitSettingsSource

from edgehub.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic_core import ErrorDetails

MESSAGE_BYTES_MAX: Final = 262_144
EndpointName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
Order = Literal["strict", "skip"]


class SettingsError(ConfigError):
    """One or more settings are wrong.

    Attributes:
        faults: Every fault found, each with its key, reason and hint.
    """

    def __init__(self, faults: list[ConfigError]) -> None:
        super().__init__(faults[0].key, faults[0].reason, faults[0].hint)
        self.faults = faults

    def __str__(self) -> str:
        return "\n".join(str(fault) for fault in self.faults)


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StoreSettings(_Section):
    """`[store]`: the queues on disk."""

    commit_linger_ms: int = Field(
        default=0,
        ge=0,
        le=1000,
        description="Fixed wait for more rows before a commit; 0 = adaptive, up to 2 ms.",
    )
    check_entire_queue_on_cleanup: bool = Field(
        default=True,
        description="True removes every expired row; false stops at the first live one of a queue.",
    )
    cache_bytes: int = Field(
        default=16 * 2**20, ge=0, le=2**30, description="Rows kept in memory beside the disk."
    )


class MqttSettings(_Section):
    """`[mqtt]`: the listener for devices and modules."""

    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=1883, ge=0, le=65535, description="0 = any free port.")
    anonymous: bool = Field(
        default=True, description="Let clients in without a password; on loopback addresses only."
    )
    identities_file: Path | None = Field(
        default=None, description="Hashed passwords and rights; see `edgehub identity`."
    )
    clients_max: int = Field(default=1000, ge=1, le=100_000)
    message_bytes_max: int = Field(default=MESSAGE_BYTES_MAX, ge=1, le=256 * 2**20)
    connect_timeout_s: float = Field(default=30, gt=0, le=300)
    ack_timeout_s: float = Field(
        default=30, gt=0, le=3600, description="A module's time to confirm an input message."
    )
    store_qos0: bool = Field(
        default=True, description="Store QoS 0 messages too; false drops them while offline."
    )


class EndpointSettings(_Section):
    """What all endpoints share."""

    order: Order = Field(
        default="strict", description="After a refusal: keep a sender's order, or let it pass."
    )
    max_attempts: int = Field(default=0, ge=0, description="0 = unlimited.")
    max_age_s: int = Field(default=0, ge=0, description="Dead letter after this age; 0 = never.")
    head_of_line_ms: int = Field(
        default=500, ge=10, le=60_000, description="What an alarm may wait behind sent bytes."
    )


class MqttEndpointSettings(EndpointSettings):
    """An endpoint that publishes to another hub, Azure IoT Hub or any broker."""

    type: Literal["mqtt"]
    host: str
    port: int = Field(default=1883, ge=1, le=65535)
    client_id: str | None = Field(default=None, description="Absent = the hub's id.")
    username: str | None = None
    password_file: Path | None = Field(default=None, description="File that holds the password.")
    topic: str | None = Field(
        default=None,
        description="Topic template such as `site/{device}/{output}`; absent = IoT Hub dialect.",
    )
    tls: bool = False
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    in_flight_max: int = Field(
        default=1000, ge=1, le=65_535, description="Unconfirmed messages, whatever the link takes."
    )
    keep_alive_s: int = Field(default=60, ge=5, le=65_535)
    ack_timeout_s: float = Field(default=60, gt=0, le=3600)
    row_bytes_max: int | None = Field(
        default=None, ge=128, description="Largest packet that the peer takes."
    )
    device_bound: bool = Field(
        default=True, description="Relay messages to devices that subscribed; dialect only."
    )

    @model_validator(mode="after")
    def _tls_is_whole(self) -> MqttEndpointSettings:
        named = [n for n in ("ca_file", "certificate_file", "key_file") if getattr(self, n)]
        if named and not self.tls:
            msg = f"{', '.join(named)} without tls = true"
            raise ValueError(msg)
        if (self.certificate_file is None) != (self.key_file is None):
            msg = "certificate_file and key_file belong together"
            raise ValueError(msg)
        return self


class FileEndpointSettings(EndpointSettings):
    """An endpoint that appends JSON Lines to a file."""

    type: Literal["file"]
    path: Path
    rotate_bytes: int = Field(
        default=64 * 2**20, ge=0, description="Start a new file beyond it; 0 = never."
    )
    keep_files: int = Field(default=0, ge=0, description="Rotated files to keep; 0 = all of them.")


AnyEndpoint = Annotated[MqttEndpointSettings | FileEndpointSettings, Field(discriminator="type")]


class LogSettings(_Section):
    """`[log]`: what goes to stderr."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "console"] = Field(
        default="auto", description="auto = console on a terminal, JSON otherwise."
    )


class Settings(BaseSettings):
    """All settings of one hub."""

    model_config = SettingsConfigDict(
        extra="forbid", frozen=True, env_prefix="EDGEHUB_", env_nested_delimiter="__"
    )

    hub_id: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$",
        description="Absent = host name and four hex digits, kept from the first start on.",
    )
    data_dir: Path = Field(
        default_factory=lambda: Path(os.environ.get("STATE_DIRECTORY", "edgehub-data")),
        description="Databases and control socket; absent = ./edgehub-data, or systemd's.",
    )
    manifest: Path | None = Field(
        default=None, description="Deployment manifest with the routes; absent = all upstream."
    )
    drain_timeout_s: float = Field(default=20, ge=0, le=600)
    control_socket: Path | None = Field(
        default=None, description="Absent = control.sock in data_dir."
    )
    store: StoreSettings = StoreSettings()
    mqtt: MqttSettings = MqttSettings()
    upstream: AnyEndpoint | None = Field(
        default=None, description="Where $upstream goes; absent = collect only."
    )
    endpoints: dict[EndpointName, AnyEndpoint] = Field(default_factory=dict)
    log: LogSettings = LogSettings()

    @model_validator(mode="after")
    def _names_are_free(self) -> Settings:
        if "upstream" in self.endpoints:
            msg = "endpoints.upstream: the name belongs to $upstream; use the [upstream] section"
            raise ValueError(msg)
        return self

    @property
    def control_path(self) -> Path:
        """Give the path of the control socket."""
        return self.control_socket or self.data_dir / "control.sock"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take only what is passed in; `load_settings` adds the file and the environment."""
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)


def load_settings(file: Path | None, flags: Mapping[str, Any] | None = None) -> Settings:
    """Read the settings: flags before environment before file before defaults.

    Args:
        file: TOML file, None = none.
        flags: Nested values from the command line.

    Raises:
        SettingsError: With every fault, if anything is wrong or unknown.
    """
    document = _read_file(file)

    class Loaded(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            """Add the environment and the file below what is passed in."""
            del dotenv_settings, file_secret_settings
            return (init_settings, env_settings, InitSettingsSource(settings_cls, document))

    try:
        loaded = Loaded(**_with_legacy_environment(dict(flags or {})))
    except ValidationError as invalid:
        raise SettingsError([_fault(file, detail) for detail in invalid.errors()]) from invalid
    unknown = list(_unknown_environment())
    if unknown:
        raise SettingsError(unknown)
    return loaded


def _read_file(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        reason = error.strerror or str(error)
        raise SettingsError([ConfigError(str(file), reason, "check the path")]) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError([ConfigError(str(file), f"not TOML: {error}")]) from error


def _with_legacy_environment(flags: dict[str, Any]) -> dict[str, Any]:
    # Deployments written for IoT Edge set this flag by its own name, in any letter case.
    for name, value in os.environ.items():
        if name.lower() == "checkentirequeueoncleanup":
            store = dict(flags.get("store", {}))
            store.setdefault("check_entire_queue_on_cleanup", value)
            return {**flags, "store": store}
    return flags


def _unknown_environment() -> Iterator[ConfigError]:
    # Others share our prefix: Kubernetes sets EDGEHUB_SERVICE_HOST for a service of our name. So a
    # name is a mistake if it has the form of a nested key, or if it nearly is one of ours.
    known = {name.upper() for name in Settings.model_fields}
    for name in os.environ:
        prefix, _, key = name.upper().partition("_")
        section = key.split("__", 1)[0]
        if prefix != "EDGEHUB" or section in known:
            continue
        near = difflib.get_close_matches(section, sorted(known), n=1, cutoff=0.75)
        if near or "__" in key:
            hint = f"did you mean EDGEHUB_{near[0]}?" if near else _near(section, known)
            yield ConfigError(name, "unknown environment variable", hint)


def _fault(file: Path | None, detail: ErrorDetails) -> ConfigError:
    key = ".".join(_written_path(detail["loc"])) or "settings"
    if file is not None:
        key = f"{file}: {key}"
    if detail["type"] == "extra_forbidden":
        return ConfigError(key, "unknown key", _near_key(detail["loc"]))
    reason = detail["msg"].removeprefix("Value error, ")
    given = detail.get("input")
    if isinstance(given, str | int | float | bool):
        reason = f"{reason}, got {given!r}"
    return ConfigError(key, reason)


def _written_path(location: tuple[int | str, ...]) -> list[str]:
    # pydantic adds the chosen member of a union to the path; the file does not have it.
    path = [str(part) for part in location]
    union_at = {"upstream": 1, "endpoints": 2}.get(path[0], len(path)) if path else 0
    return path[:union_at] + path[union_at + 1 :]


def _near_key(location: tuple[int | str, ...]) -> str:
    names = _names_at(Settings, location[:-1])
    return _near(str(location[-1]), names)


def _names_at(model: type[BaseModel], path: tuple[int | str, ...]) -> set[str]:
    current: Any = model
    for part in path:
        current = _step(current, str(part))
        if current is None:
            return set()
    return set(current.model_fields) if hasattr(current, "model_fields") else set()


def _step(current: Any, part: str) -> Any:
    if isinstance(current, dict):
        return current["value"]
    if isinstance(current, tuple):
        # A discriminated union reports the chosen type as a part of its own.
        chosen = [m for m in current if part in get_args(m.model_fields["type"].annotation)]
        return chosen[0] if chosen else None
    field = current.model_fields.get(part)
    if field is None:
        return None
    annotation = field.annotation
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    members = (MqttEndpointSettings, FileEndpointSettings)
    if part == "endpoints":
        return {"value": members}
    return members if part == "upstream" else None


def _near(name: str, known: set[str]) -> str:
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known here: {', '.join(sorted(known))}" if known else ""

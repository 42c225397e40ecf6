"""The settings of one hub: names, units, ranges and defaults.

Owns what there is to set; reads no file and no environment. Invariant: a `Settings` object that
exists is valid and never changes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

MESSAGE_BYTES_MAX: Final = 262_144
EndpointName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
Order = Literal["strict", "skip"]


def _no_bool(value: Any) -> Any:
    # TOML has true and false beside 1 and 0; a port that is `true` was not meant as port 1.
    if isinstance(value, bool):
        msg = "a number belongs here"
        raise ValueError(msg)  # noqa: TRY004 - pydantic reports ValueError, not TypeError
    return value


def _not_empty(value: Any) -> Any:
    # An empty path would be the working folder, an empty host any address.
    if value == "":
        msg = "is empty"
        raise ValueError(msg)
    return value


Whole = Annotated[int, BeforeValidator(_no_bool)]
Real = Annotated[float, BeforeValidator(_no_bool)]
Text = Annotated[str, BeforeValidator(_not_empty)]
OptionalText = Annotated[str | None, BeforeValidator(_not_empty)]
PathName = Annotated[Path, BeforeValidator(_not_empty)]
OptionalPath = Annotated[Path | None, BeforeValidator(_not_empty)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StoreSettings(_Section):
    """`[store]`: the queues on disk."""

    commit_linger_ms: Whole = Field(
        default=0,
        ge=0,
        le=1000,
        description="Fixed wait for more rows before a commit; 0 = adaptive, up to 2 ms.",
    )
    check_entire_queue_on_cleanup: bool = Field(
        default=True,
        description="True removes every expired row; false stops at the first live one of a queue.",
    )
    cache_bytes: Whole = Field(
        default=16 * 2**20, ge=0, le=2**30, description="Rows kept in memory beside the disk."
    )


class MqttSettings(_Section):
    """`[mqtt]`: the listener for devices and modules."""

    host: Text = Field(default="127.0.0.1", description="Address to listen on.")
    port: Whole = Field(default=1883, ge=0, le=65535, description="0 = any free port.")
    anonymous: bool = Field(
        default=True, description="Let clients in without a password; on loopback addresses only."
    )
    identities_file: OptionalPath = Field(
        default=None, description="Hashed passwords and rights; see `edgehub identity`."
    )
    clients_max: Whole = Field(default=1000, ge=1, le=100_000)
    message_bytes_max: Whole = Field(default=MESSAGE_BYTES_MAX, ge=1, le=256 * 2**20)
    connect_timeout_s: Real = Field(default=30, gt=0, le=300)
    ack_timeout_s: Real = Field(
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
    max_attempts: Whole = Field(default=0, ge=0, description="0 = unlimited.")
    max_age_s: Whole = Field(default=0, ge=0, description="Dead letter after this age; 0 = never.")
    head_of_line_ms: Whole = Field(
        default=500, ge=10, le=60_000, description="What an alarm may wait behind sent bytes."
    )


class MqttEndpointSettings(EndpointSettings):
    """An endpoint that publishes to another hub, Azure IoT Hub or any broker."""

    type: Literal["mqtt"]
    host: Text
    port: Whole = Field(default=1883, ge=1, le=65535)
    client_id: OptionalText = Field(default=None, description="Absent = the hub's id.")
    username: OptionalText = None
    password_file: OptionalPath = Field(default=None, description="File that holds the password.")
    topic: OptionalText = Field(
        default=None,
        description="Topic template such as `site/{device}/{output}`; absent = IoT Hub dialect.",
    )
    tls: bool = False
    ca_file: OptionalPath = None
    certificate_file: OptionalPath = None
    key_file: OptionalPath = None
    in_flight_max: Whole = Field(
        default=1000, ge=1, le=65_535, description="Unconfirmed messages, whatever the link takes."
    )
    keep_alive_s: Whole = Field(default=60, ge=5, le=65_535)
    ack_timeout_s: Real = Field(default=60, gt=0, le=3600)
    row_bytes_max: Whole | None = Field(
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
    path: PathName
    rotate_bytes: Whole = Field(
        default=64 * 2**20, ge=0, description="Start a new file beyond it; 0 = never."
    )
    keep_files: Whole = Field(
        default=0, ge=0, description="Rotated files to keep; 0 = all of them."
    )


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

    hub_id: OptionalText = Field(
        default=None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$",
        description="Absent = host name and four hex digits, kept from the first start on.",
    )
    data_dir: PathName = Field(
        default_factory=lambda: Path(os.environ.get("STATE_DIRECTORY", "edgehub-data")),
        description="Databases and control socket; absent = ./edgehub-data, or systemd's.",
    )
    manifest: OptionalPath = Field(
        default=None, description="Deployment manifest with the routes; absent = all upstream."
    )
    drain_timeout_s: Real = Field(default=20, ge=0, le=600)
    control_socket: OptionalPath = Field(
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

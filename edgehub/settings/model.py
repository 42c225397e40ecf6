"""Settings of one hub: their names, units, ranges and defaults.

Owns the model that file, environment and flags are checked against (see `loading`);
calls nothing of the hub. Invariant: a `Settings` object that exists is valid and never changes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

MESSAGE_BYTES_MAX: Final = 262_144
RESERVED_HEADERS: Final = frozenset(
    {
        "accept",
        "authorization",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "expect",
        "host",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "user-agent",
    }
)
HeaderName = Annotated[str, Field(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")]
HeaderValue = Annotated[str, Field(pattern=r"^[ -~]*$")]
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
        default=16 * 2**20,
        ge=0,
        le=2**30,
        description="Rows kept in memory beside the disk, over all queues.",
    )


class MqttSettings(_Section):
    """`[mqtt]`: the listener for devices and modules."""

    host: Text = Field(default="127.0.0.1", description="Address to listen on.")
    port: Whole = Field(default=1883, ge=0, le=65535, description="0 = any free port.")
    tls_port: Whole = Field(
        default=8883,
        ge=0,
        le=65535,
        description="For MQTT over TLS, beside the plain port, where there is a certificate.",
        json_schema_extra={"x-needs": "certificate_file"},
    )
    certificate_file: OptionalPath = Field(
        default=None,
        description="Certificate in PEM, with its chain; absent = no TLS.",
        examples=["/etc/edgehub/server.pem"],
    )
    key_file: OptionalPath = Field(
        default=None,
        description="Key of certificate_file, not encrypted.",
        examples=["/etc/edgehub/server.key"],
    )
    client_ca_file: OptionalPath = Field(
        default=None,
        description="Authorities whose client certificates sign in; absent = passwords only.",
        examples=["/etc/edgehub/devices-ca.pem"],
    )
    anonymous: bool = Field(
        default=True, description="Let clients in without a password; on loopback addresses only."
    )
    identities_file: OptionalPath = Field(
        default=None,
        description="Hashed passwords and rights; see `edgehub identity`.",
        examples=["/etc/edgehub/identities"],
    )
    clients_max: Whole = Field(default=1000, ge=1, le=100_000, description="Connections at once.")
    message_bytes_max: Whole = Field(
        default=MESSAGE_BYTES_MAX,
        ge=1,
        le=256 * 2**20,
        description="Largest message: body, property names and values.",
    )
    connect_timeout_s: Real = Field(
        default=30, gt=0, le=300, description="A client's time to say who it is."
    )
    ack_timeout_s: Real = Field(
        default=30, gt=0, le=3600, description="A module's time to confirm an input message."
    )
    store_qos0: bool = Field(
        default=True, description="Store QoS 0 messages too; false drops them while offline."
    )

    @model_validator(mode="after")
    def _tls_is_whole(self) -> MqttSettings:
        if (self.certificate_file is None) != (self.key_file is None):
            msg = "certificate_file and key_file belong together"
            raise ValueError(msg)
        if self.certificate_file is None:
            given = {"tls_port", "client_ca_file"} & self.model_fields_set
            without = [name for name in sorted(given) if getattr(self, name) is not None]
            if without:
                msg = f"{', '.join(without)} without certificate_file and key_file"
                raise ValueError(msg)
        return self


class HttpSettings(_Section):
    """`[http]`: messages by POST, in the REST form of Azure IoT Hub."""

    host: Text = Field(default="127.0.0.1", description="Address to listen on.")
    port: Whole | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="Absent = no HTTP; 0 = any free port.",
        examples=[8080],
    )
    anonymous: bool = Field(
        default=True, description="Let clients in without a password; on loopback addresses only."
    )
    certificate_file: OptionalPath = Field(
        default=None,
        description="Certificate chain, for HTTPS; needs key_file.",
        examples=["/etc/edgehub/server.pem"],
    )
    key_file: OptionalPath = Field(
        default=None, description="Key of certificate_file.", examples=["/etc/edgehub/server.key"]
    )
    connections_max: Whole = Field(
        default=1000, ge=1, le=100_000, description="Connections at once."
    )
    message_bytes_max: Whole = Field(
        default=MESSAGE_BYTES_MAX,
        ge=1,
        le=256 * 2**20,
        description="Largest message: body, property names and values.",
    )
    batch_bytes_max: Whole = Field(
        default=2**20, ge=1, le=256 * 2**20, description="Largest body that holds a batch."
    )
    body_timeout_s: Real = Field(
        default=30,
        gt=0,
        le=3600,
        description="A client's time for a body, and a second more for each KiB of it.",
    )

    @model_validator(mode="after")
    def _certificate_is_whole(self) -> HttpSettings:
        if (self.certificate_file is None) != (self.key_file is None):
            msg = "certificate_file and key_file belong together"
            raise ValueError(msg)
        return self


class EndpointSettings(_Section):
    """What all endpoints share."""

    order: Order = Field(
        default="strict", description="After a refusal: keep a sender's order, or let it pass."
    )
    max_attempts: Whole = Field(
        default=0, ge=0, description="Refusals until a dead letter; 0 = unlimited."
    )
    max_age_s: Whole = Field(default=0, ge=0, description="Dead letter after this age; 0 = never.")
    head_of_line_ms: Whole = Field(
        default=500, ge=10, le=60_000, description="What an alarm may wait behind sent bytes."
    )


class MqttEndpointSettings(EndpointSettings):
    """An endpoint that publishes to another hub, Azure IoT Hub or any broker."""

    type: Literal["mqtt"] = Field(description="What kind of endpoint this is.")
    host: Text = Field(description="Broker or parent hub.", examples=["broker.example.com"])
    port: Whole = Field(default=1883, ge=1, le=65535, description="TCP port; TLS has mostly 8883.")
    client_id: OptionalText = Field(
        default=None, description="Absent = the hub's id.", examples=["gateway-7"]
    )
    username: OptionalText = Field(
        default=None, description="User name; absent = none.", examples=["gateway-7"]
    )
    password_file: OptionalPath = Field(
        default=None,
        description="File that holds the password; read at each connect.",
        examples=["/etc/edgehub/upstream-password"],
    )
    topic: OptionalText = Field(
        default=None,
        description="Topic template such as `site/{device}/{output}`; absent = IoT Hub dialect.",
        examples=["site/{device}/{output}"],
    )
    tls: bool = Field(default=False, description="Encrypt the connection.", examples=[True])
    ca_file: OptionalPath = Field(
        default=None,
        description="Certificates that are trusted; absent = the system's.",
        examples=["/etc/edgehub/ca.pem"],
    )
    certificate_file: OptionalPath = Field(
        default=None,
        description="Client certificate, to sign in with it; needs key_file.",
        examples=["/etc/edgehub/client.pem"],
    )
    key_file: OptionalPath = Field(
        default=None, description="Key of certificate_file.", examples=["/etc/edgehub/client.key"]
    )
    in_flight_max: Whole = Field(
        default=1000, ge=1, le=65_535, description="Unconfirmed messages, whatever the link takes."
    )
    keep_alive_s: Whole = Field(
        default=60, ge=5, le=65_535, description="A silent peer is noticed after twice this time."
    )
    ack_timeout_s: Real = Field(
        default=60, gt=0, le=3600, description="No confirmation for so long: connect anew."
    )
    row_bytes_max: Whole | None = Field(
        default=None,
        ge=128,
        description="Largest packet that the peer takes; absent = not known.",
        examples=[262_144],
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

    type: Literal["file"] = Field(description="What kind of endpoint this is.")
    path: PathName = Field(description="The file.", examples=["/var/lib/edgehub/archive.jsonl"])
    rotate_bytes: Whole = Field(
        default=64 * 2**20, ge=0, description="Start a new file beyond it; 0 = never."
    )
    keep_files: Whole = Field(
        default=0, ge=0, description="Rotated files to keep; 0 = all of them."
    )


class HttpEndpointSettings(EndpointSettings):
    """An endpoint that posts JSON arrays to a web server."""

    type: Literal["http"] = Field(description="What kind of endpoint this is.")
    url: Text = Field(
        description="Where to post to, `http://` or `https://`.",
        examples=["https://collect.example.com/v1/messages"],
    )
    headers: dict[HeaderName, HeaderValue] = Field(
        default_factory=dict,
        description="Further request headers; no secrets.",
        examples=[{"X-Site": "north"}],
    )
    token_file: OptionalPath = Field(
        default=None,
        description="File that holds a bearer token; read at each connect.",
        examples=["/etc/edgehub/collect-token"],
    )
    username: OptionalText = Field(
        default=None,
        pattern=r"^[ -9;-~]+$",
        description="User name, for HTTP Basic.",
        examples=["gateway-7"],
        json_schema_extra={"x-instead-of": "token_file"},
    )
    password_file: OptionalPath = Field(
        default=None,
        description="File that holds its password; read at each connect.",
        examples=["/etc/edgehub/collect-password"],
        json_schema_extra={"x-instead-of": "token_file"},
    )
    ca_file: OptionalPath = Field(
        default=None,
        description="Certificates that are trusted; absent = the system's.",
        examples=["/etc/edgehub/ca.pem"],
    )
    certificate_file: OptionalPath = Field(
        default=None,
        description="Client certificate, to sign in with it; needs key_file.",
        examples=["/etc/edgehub/client.pem"],
    )
    key_file: OptionalPath = Field(
        default=None, description="Key of certificate_file.", examples=["/etc/edgehub/client.key"]
    )
    batch_rows_max: Whole = Field(
        default=100, ge=1, le=4096, description="Messages of one request at most."
    )
    batch_bytes_max: Whole = Field(
        default=2**20,
        ge=1024,
        le=64 * 2**20,
        description="Largest body of a request; a larger message goes alone.",
    )
    timeout_s: Real = Field(
        default=30, gt=0, le=3600, description="Silence of the peer until it is given up."
    )
    gzip: bool = Field(default=False, description="Compress requests.")

    @model_validator(mode="after")
    def _fits_together(self) -> HttpEndpointSettings:
        fault = _url_fault(self.url)
        secrets = [n for n in ("username", "password_file") if getattr(self, n) is not None]
        tls = [n for n in ("ca_file", "certificate_file", "key_file") if getattr(self, n)]
        reserved = sorted(name for name in self.headers if name.lower() in RESERVED_HEADERS)
        if fault:
            msg = f"url: {fault}"
        elif len(secrets) == 1:
            msg = "username and password_file belong together"
        elif secrets and self.token_file is not None:
            msg = "token_file beside username: one way to sign in"
        elif tls and not self.url.lower().startswith("https://"):
            msg = f"{', '.join(tls)} with a url that is not https://"
        elif (self.certificate_file is None) != (self.key_file is None):
            msg = "certificate_file and key_file belong together"
        elif reserved:
            msg = f"headers: {', '.join(reserved)} is set by the hub itself"
        else:
            return self
        raise ValueError(msg)


def _url_fault(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        return str(error)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        return "not http://<host>/... or https://<host>/..."
    if parts.username is not None or parts.password is not None:
        return "holds a user name; use username and password_file"
    if parts.fragment or port == 0 or not url.isascii() or not url.isprintable() or " " in url:
        return "holds a fragment, a blank, a port of 0 or a character that must be written as %XX"
    return ""


AnyEndpoint = Annotated[
    MqttEndpointSettings | FileEndpointSettings | HttpEndpointSettings,
    Field(discriminator="type"),
]
ENDPOINT_TYPES: Final[tuple[type[EndpointSettings], ...]] = get_args(get_args(AnyEndpoint)[0])


class LogSettings(_Section):
    """`[log]`: what goes to stderr."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least of what is logged."
    )
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
        examples=["gateway-7"],
    )
    data_dir: PathName = Field(
        default_factory=lambda: Path(os.environ.get("STATE_DIRECTORY", "edgehub-data")),
        description="Databases and control socket; absent = ./edgehub-data, or systemd's.",
    )
    manifest: OptionalPath = Field(
        default=None,
        description="Deployment manifest with the routes; absent = all upstream.",
        examples=["/etc/edgehub/manifest.json"],
    )
    drain_timeout_s: Real = Field(
        default=20, ge=0, le=600, description="Longest wait at a stop for what is in flight."
    )
    control_socket: OptionalPath = Field(
        default=None,
        description="Socket of the command line; absent = control.sock in data_dir.",
        examples=["/run/edgehub/control.sock"],
    )
    store: StoreSettings = Field(default=StoreSettings(), description="The queues on disk.")
    mqtt: MqttSettings = Field(
        default=MqttSettings(), description="The listener for devices and modules."
    )
    http: HttpSettings = Field(
        default=HttpSettings(), description="The HTTP head for devices and modules."
    )
    upstream: AnyEndpoint | None = Field(
        default=None, description="Where $upstream goes; absent = collect only."
    )
    endpoints: dict[EndpointName, AnyEndpoint] = Field(
        default_factory=dict, description="Further endpoints by name, for the sink Endpoint(name)."
    )
    log: LogSettings = Field(default=LogSettings(), description="What goes to stderr.")

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
        """Take only what is passed in; `load_settings` adds file and environment."""
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)

"""`[upstream]` and `[endpoints.<name>]`: the kinds of endpoints and what there is to set for each.

Owns the models; calls nothing of the hub.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, get_args
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from edgehub.settings.link import LinkSettings
from edgehub.settings.values import OptionalFile, OptionalText, PathName, Real, Text, Whole

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


class EndpointSettings(LinkSettings):
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
    aging_s: Whole = Field(
        default=0,
        ge=0,
        le=7 * 86_400,
        description="A queue unserved for so long gets a batch before better ones; 0 = never.",
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
    password_file: OptionalFile = Field(
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
    ca_file: OptionalFile = Field(
        default=None,
        description="Certificates that are trusted; absent = the system's.",
        examples=["/etc/edgehub/ca.pem"],
    )
    certificate_file: OptionalFile = Field(
        default=None,
        description="Client certificate, to sign in with it; needs key_file.",
        examples=["/etc/edgehub/client.pem"],
    )
    key_file: OptionalFile = Field(
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
    token_file: OptionalFile = Field(
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
    password_file: OptionalFile = Field(
        default=None,
        description="File that holds its password; read at each connect.",
        examples=["/etc/edgehub/collect-password"],
        json_schema_extra={"x-instead-of": "token_file"},
    )
    ca_file: OptionalFile = Field(
        default=None,
        description="Certificates that are trusted; absent = the system's.",
        examples=["/etc/edgehub/ca.pem"],
    )
    certificate_file: OptionalFile = Field(
        default=None,
        description="Client certificate, to sign in with it; needs key_file.",
        examples=["/etc/edgehub/client.pem"],
    )
    key_file: OptionalFile = Field(
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
    requests_max: Whole = Field(
        default=8,
        ge=1,
        le=64,
        description="Requests under way at once, each with other senders than the rest.",
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

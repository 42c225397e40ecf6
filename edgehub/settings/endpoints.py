"""`[upstream]` and `[endpoints.<name>]`: the kinds of endpoints and what there is to set for each.

Owns the models; calls nothing of the hub.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Final, Literal, Protocol, get_args
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from edgehub.errors import extra_hint
from edgehub.mqtt.azure import is_azure
from edgehub.mqtt.batch import has_zstd
from edgehub.settings.link import LinkSettings
from edgehub.settings.tls import CaFile, CertificateFile, KeyFile, check_tls
from edgehub.settings.values import (
    NUMBER,
    Host,
    OptionalFile,
    OptionalText,
    PathName,
    Real,
    Text,
    Whole,
    address_fault,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

RESERVED_HEADERS: Final = frozenset(
    {
        "accept",
        "authorization",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "edgehub-path",
        "expect",
        "host",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "user-agent",
    }
)
_HTTP: Final = re.compile(r"https?://[^/?#]", re.IGNORECASE)
_EVENTS: Final = re.compile(r"^/devices/[^/]+(/modules/[^/]+)?/messages/events/?$")
HeaderName = Annotated[str, Field(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")]
HeaderValue = Annotated[str, Field(pattern=r"^[ -~]*$")]
# Patterns have no bounds of their own: the validator unrolls them, to half a megabyte each.
EndpointName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=63)]
TemplateName = Annotated[str, Field(pattern=r"^[^/+#\x00-\x1f]+$", max_length=128)]
ManifestTopic = Annotated[str, Field(pattern=r"^[^+#\x00-\x1f]+$", max_length=1000)]
Order = Literal["strict", "skip"]
Batch = Literal["off", "plain", "zstd"]
MqttVersion = Literal["auto", "5", "3.1.1"]

# The same keys at each kind of endpoint with a session of MQTT, and each in its own place among
# others.
InFlightMax = Annotated[
    int,
    Field(ge=1, le=65_535, description="Messages sent and not confirmed yet, at most."),
    NUMBER,
]
KeepAlive = Annotated[
    int,
    Field(ge=5, le=65_535, description="A silent peer is noticed after twice this time."),
    NUMBER,
]
AckTimeout = Annotated[
    float,
    Field(gt=0, le=3600, description="No confirmation for so long: connect again."),
    NUMBER,
]
_UNFIT_FOR_TOPIC: Final = re.compile(r"[+#\x00-\x1f\x7f]|/.*/|^/|/$")


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
        default=500,
        ge=10,
        le=60_000,
        description="Longest time that a message of the best priority waits behind bytes that were "
        "sent before.",
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
    host: Host = Field(description="Broker or parent hub.", examples=["broker.example.com"])
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
        examples=["credential:upstream-password"],
    )
    shared_access_key_file: OptionalFile = Field(
        default=None,
        description="File that holds a symmetric key in base64; signatures made with it sign in.",
        examples=["credential:gateway-7.key"],
        json_schema_extra={"x-instead-of": "password_file"},
    )
    signature_s: Whole = Field(
        default=3600,
        ge=60,
        le=30 * 86_400,
        description="Lifetime of a signature; the hub connects again after four fifths of it.",
    )
    topic: OptionalText = Field(
        default=None,
        description="Topic template such as `site/{device}/{output}`; absent = IoT Hub dialect.",
        examples=["site/{device}/{output}"],
    )
    mqtt: MqttVersion = Field(
        default="auto",
        description="Version of MQTT; auto = 5, and 3.1.1 at Azure and where 5 is refused.",
    )
    expiry: bool | None = Field(
        default=None,
        description="Send the time to live that is left (MQTT 5); absent = in the dialect alone.",
        examples=[True],
    )
    tls: bool = Field(default=False, description="Encrypt the connection.", examples=[True])
    ca_file: CaFile = None
    certificate_file: CertificateFile = None
    key_file: KeyFile = None
    in_flight_max: InFlightMax = 1000
    keep_alive_s: KeepAlive = 60
    ack_timeout_s: AckTimeout = 60
    row_bytes_max: Whole | None = Field(
        default=None,
        ge=128,
        description="Largest packet that the peer takes; absent = not known.",
        examples=[262_144],
    )
    device_bound: bool = Field(
        default=True, description="Take messages to devices that are subscribed here; dialect only."
    )
    twins: bool = Field(
        default=False,
        description="Keep twins equal to those of the peer, and take calls of methods from it: of "
        "all clients at a parent hub, of the gateway alone at Azure IoT Hub, and of devices "
        "with identity = device; upstream only.",
    )
    manifest_topic: ManifestTopic | None = Field(
        default=None,
        description="Topic of the peer with the hub's manifest, retained; upstream only.",
        examples=["fleet/gateway-7/manifest"],
    )
    identity: Literal["hub", "device"] = Field(
        default="hub",
        description="hub = one session on behalf of all; device = each device has its own there.",
    )
    on_behalf: bool = Field(
        default=False,
        description="The peer takes messages of devices from the hub's session too; they go there "
        "while another hub speaks for the device.",
    )
    device_mqtt: MqttVersion = Field(
        default="auto", description="Version of MQTT in sessions of devices; auto as for mqtt."
    )
    device_username: OptionalText = Field(
        default=None,
        description="User name in sessions of devices, `{device}` is its id; absent = none.",
        examples=["{device}"],
    )
    device_password_file: OptionalText = Field(
        default=None,
        description="File that holds a device's password, `{device}` is its id.",
        examples=["/var/lib/edgehub/devices/{device}"],
    )
    device_shared_access_key_file: OptionalText = Field(
        default=None,
        description="File that holds a device's symmetric key, `{device}` is its id.",
        examples=["/var/lib/edgehub/devices/{device}.key"],
        json_schema_extra={"x-instead-of": "device_password_file"},
    )
    device_certificate_file: OptionalText = Field(
        default=None,
        description="Client certificate of a device, `{device}` is its id; needs device_key_file.",
        examples=["/var/lib/edgehub/devices/{device}.pem"],
    )
    device_key_file: OptionalText = Field(
        default=None,
        description="Key of device_certificate_file.",
        examples=["/var/lib/edgehub/devices/{device}-tls.key"],
    )
    batch: Batch = Field(
        default="off",
        description="Several messages in one payload: `off`, `plain` (JSON Lines) or `zstd`.",
        examples=["zstd"],
    )
    batch_rows_max: Whole = Field(
        default=256,
        ge=1,
        le=4096,
        description="Messages of one payload at most.",
        json_schema_extra={"x-needs": "batch"},
    )
    batch_bytes_max: Whole = Field(
        default=65_536,
        ge=1024,
        le=2**20,
        description="Size of the records in one payload before compression; a larger message is "
        "sent alone.",
        json_schema_extra={"x-needs": "batch"},
    )
    batch_linger_ms: Whole = Field(
        default=0,
        ge=0,
        le=3_600_000,
        description="How long to wait for further messages after a payload that emptied its queue; "
        "priority 0 never waits.",
        json_schema_extra={"x-needs": "batch"},
    )

    @model_validator(mode="after")
    def _fits_together(self) -> MqttEndpointSettings:
        check_tls(self, "without tls = true", encrypted=self.tls)
        self._check_device()
        if self.expiry and self.mqtt == "3.1.1":
            raise ValueError(
                "expiry = true with mqtt = 3.1.1, which has no place for it; write auto or 5"
            )
        if self.twins and self.topic is not None:
            raise ValueError("twins = true with topic; only hubs, and Azure IoT Hub, have twins")
        if self.manifest_topic is not None and (self.twins or is_azure(self.host)):
            cause = "twins = true" if self.twins else "Azure IoT Hub, which has no other topics"
            raise ValueError(
                f"manifest_topic with {cause}; there, it is the twin that has the manifest"
            )
        if self.identity == "device":
            unfit = [name for name in ("topic", "batches") if getattr(self, name)]
            if unfit:
                raise ValueError(f"identity = device with {unfit[0].replace('batches', 'batch')}")
        if self.batches and self.topic is None and _UNFIT_FOR_TOPIC.search(self.client_id or ""):
            raise ValueError(
                "batch goes on a topic with the client_id in it, and this one cannot stand there"
            )
        if self.batch == "zstd" and not has_zstd():
            raise ValueError(
                f"batch: zstd needs the library zstandard; {extra_hint('zstd')}; or write plain"
            )
        return self

    def _check_device(self) -> None:
        if (self.device_certificate_file is None) != (self.device_key_file is None):
            raise ValueError("device_certificate_file and device_key_file belong together")
        if self.device_certificate_file is not None and not self.tls:
            raise ValueError("device_certificate_file without tls = true")
        for prefix in ("", "device_"):
            names = f"{prefix}password_file", f"{prefix}shared_access_key_file"
            if all(getattr(self, name) is not None for name in names):
                raise ValueError(f"{names[0]} and {names[1]}: set one way to sign in")
            given = next((name for name in names if getattr(self, name) is not None), None)
            nameless = getattr(self, f"{prefix}username") is None
            if given and nameless and getattr(self, f"{prefix}mqtt") == "3.1.1":
                raise ValueError(
                    f"{given} without {prefix}username; MQTT 3.1.1 takes no secret without a name"
                )

    @property
    def batches(self) -> bool:
        """Whether several messages may share a payload."""
        return self.batch != "off"


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
        examples=["credential:collect-token"],
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
        examples=["credential:collect-password"],
        json_schema_extra={"x-instead-of": "token_file"},
    )
    ca_file: CaFile = None
    certificate_file: CertificateFile = None
    key_file: KeyFile = None
    batch_rows_max: Whole = Field(
        default=100, ge=1, le=4096, description="Messages of one request at most."
    )
    batch_bytes_max: Whole = Field(
        default=2**20,
        ge=1024,
        le=64 * 2**20,
        description="Largest body of a request; a larger message is sent alone.",
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
        if fault := _url_fault(self.url):
            raise ValueError(f"url: {fault}")
        secrets = [n for n in ("username", "password_file") if getattr(self, n) is not None]
        if len(secrets) == 1:
            raise ValueError("username and password_file belong together")
        if secrets and self.token_file is not None:
            raise ValueError("token_file and username: set one way to sign in")
        encrypted = self.url.lower().startswith("https://")
        check_tls(self, "with a url that is not https://", encrypted=encrypted)
        if reserved := sorted(n for n in self.headers if n.lower() in RESERVED_HEADERS):
            raise ValueError(f"headers: {', '.join(reserved)} is set by the hub itself")
        return self

    @property
    def is_hub(self) -> bool:
        """Whether the peer is a hub, as far as path and sign-in show."""
        return self.username is not None and _EVENTS.search(urlsplit(self.url).path) is not None


class CumulocityEndpointSettings(EndpointSettings):
    """An endpoint that speaks Cumulocity's MQTT: topics below [mapper] topic_prefix, both ways."""

    type: Literal["cumulocity"] = Field(description="What kind of endpoint this is.")
    host: Host = Field(description="The tenant.", examples=["acme.cumulocity.com"])
    port: Whole = Field(default=8883, ge=1, le=65535, description="TCP port; without TLS 1883.")
    client_id: OptionalText = Field(
        default=None,
        pattern=r"^[^:\s][^:]*$",
        max_length=128,
        description="The gateway's external id at the platform; absent = that of [mapper].",
        examples=["gateway-7"],
    )
    username: OptionalText = Field(
        default=None,
        description="Device user as `<tenant>/<user>`; absent = the client certificate signs in.",
        examples=["t0815/device_gateway-7"],
    )
    password_file: OptionalFile = Field(
        default=None,
        description="File that holds the password; read at each connect.",
        examples=["credential:cumulocity-password"],
        json_schema_extra={"x-needs": "username"},
    )
    templates: tuple[TemplateName, ...] = Field(
        default=(),
        description="SmartREST template collections whose answers (`s/dc/<name>`) come down too.",
        examples=[["press"]],
    )
    tls: bool = Field(default=True, description="Encrypt the connection.")
    ca_file: CaFile = None
    certificate_file: CertificateFile = None
    key_file: KeyFile = None
    in_flight_max: InFlightMax = 1000
    keep_alive_s: KeepAlive = 60
    ack_timeout_s: AckTimeout = 60
    row_bytes_max: Whole = Field(
        default=16_184, ge=128, description="Largest packet that the platform takes."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> CumulocityEndpointSettings:
        check_tls(self, "without tls = true", encrypted=self.tls)
        if (self.username is None) != (self.password_file is None):
            raise ValueError("username and password_file belong together")
        return self


def _url_fault(url: str) -> str:
    if _HTTP.match(url) is None:
        return "not http://<host>/... or https://<host>/..."
    fault = address_fault(url)
    if fault:
        return fault
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None:
        return "holds a user name; use username and password_file"
    if parts.fragment or not url.isascii() or not url.isprintable() or " " in url:
        return "holds a fragment, a blank or a character that must be written as %XX"
    return ""


AnyEndpoint = Annotated[
    MqttEndpointSettings | FileEndpointSettings | HttpEndpointSettings | CumulocityEndpointSettings,
    Field(discriminator="type"),
]
ENDPOINT_TYPES: Final[tuple[type[EndpointSettings], ...]] = get_args(get_args(AnyEndpoint)[0])


class SessionKeys(Protocol):
    """Settings of a part that has a session at an MQTT peer."""

    @property
    def host(self) -> str:
        """The peer."""

    @property
    def port(self) -> int:
        """Its TCP port."""

    @property
    def client_id(self) -> str | None:
        """Names the session; None = something of the hub's own."""

    @property
    def username(self) -> str | None:
        """User name."""


def session_faults(
    endpoints: Mapping[str, EndpointSettings], *, broker: SessionKeys | None = None
) -> list[str]:
    """Find parts that would end each other's session: the same client id at the same peer.

    Args:
        endpoints: By the place where they stand, for example `upstream` or `endpoints.archive`.
        broker: The `[broker]` section, None = there is none.
    """
    faults: list[str] = []
    signed_in: dict[str, SessionKeys] = {
        place: endpoint
        for place, endpoint in endpoints.items()
        if isinstance(endpoint, MqttEndpointSettings | CumulocityEndpointSettings)
    }
    if broker is not None:
        signed_in["broker"] = broker
    seen: dict[tuple[str, int, str], str] = {}
    # Those that are named first: a client id that follows from a user name gives way to its like.
    for place, endpoint in sorted(signed_in.items(), key=lambda item: item[1].client_id is None):
        client_id = endpoint.client_id
        if client_id is None and isinstance(endpoint, MqttEndpointSettings) and endpoint.username:
            client_id = identity_of(endpoint.username)
        if not client_id:
            continue
        session = (endpoint.host.lower(), endpoint.port, client_id)
        other = seen.get(session)
        if other is None:
            if endpoint.client_id is not None:
                seen[session] = place
            continue
        faults.append(
            f"{place}: its client id {client_id!r} is that of {other} at the same peer, and each "
            "would end the other's session; give one of them another client_id"
        )
    return faults


def identity_of(username: str) -> str:
    """Return the identity behind a user name: the client id that a parent hub and Azure want."""
    # `<host>/<device>[/<module>]/?api-version=...` is how IoT Hub writes a user name.
    parts = username.split("/")
    ids = parts[1:-1]
    return "/".join(ids) if 1 <= len(ids) <= 2 and "api-version=" in parts[-1] else username  # noqa: PLR2004 - device, module

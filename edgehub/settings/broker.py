"""`[broker]`: an existing MQTT broker that the hub joins as a client.

Owns the model; calls nothing of the hub.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, model_validator

from edgehub.mqtt.topic_filter import filter_fault
from edgehub.settings.tls import CaFile, CertificateFile, KeyFile, check_tls
from edgehub.settings.values import Host, OptionalFile, OptionalText, Section, Whole

DEVICE: Final = "{device}"
MODULE: Final = "{module}"


def _topic_filter(text: str) -> str:
    fault = filter_fault(text)
    if not fault and text.startswith("$"):
        fault = "topics that begin with `$` are the broker's own"
    if fault:
        raise ValueError(fault)
    return text


TopicFilter = Annotated[str, AfterValidator(_topic_filter)]


def sender_pattern_fault(text: str) -> str:
    """Return the fault of a topic filter whose levels may be placeholders, empty = none."""
    levels = text.split("/")
    plain = "/".join("+" if each in (DEVICE, MODULE) else each for each in levels)
    fault = filter_fault(plain)
    if fault:
        return fault
    if "{" in plain or "}" in plain:
        return "a placeholder is a whole level: {device} or {module}"
    if levels.count(DEVICE) != 1 or levels.count(MODULE) > 1:
        return "one level must be {device}, and one more may be {module}"
    return ""


def _sender_pattern(text: str) -> str:
    fault = sender_pattern_fault(text)
    if fault:
        raise ValueError(f"`{text}`: {fault}; for example site/{{device}}/#")
    return text


SenderPatternText = Annotated[str, AfterValidator(_sender_pattern)]


class BrokerSettings(Section):
    """An existing MQTT broker: messages for routes, and topics that hub and broker share."""

    host: Host = Field(description="The broker.", examples=["127.0.0.1"])
    port: Whole = Field(default=1883, ge=1, le=65535, description="TCP port; TLS has mostly 8883.")
    version: Literal["5", "3.1.1"] = Field(
        default="5", description="Version of MQTT; local_topics need 5."
    )
    client_id: OptionalText = Field(
        default=None,
        description="Names the session at the broker; absent = the hub's id and `-broker`.",
        examples=["gateway-7-broker"],
    )
    username: OptionalText = Field(
        default=None, description="User name; absent = none.", examples=["gateway-7"]
    )
    password_file: OptionalFile = Field(
        default=None,
        description="File that holds the password; read at each connect.",
        examples=["credential:broker-password"],
        json_schema_extra={"x-needs": "username"},
    )
    tls: bool = Field(default=False, description="Encrypt the connection.", examples=[True])
    ca_file: CaFile = None
    certificate_file: CertificateFile = None
    key_file: KeyFile = None
    session_expiry_s: Whole = Field(
        default=7 * 86_400,
        ge=0,
        le=0xFFFF_FFFF,
        description="How long the broker keeps messages for a disconnected hub; version 5 only.",
    )
    receive_maximum: Whole = Field(
        default=1000,
        ge=1,
        le=65_535,
        description="Messages of the broker that are not on disk yet, at most; with 3.1.1 the "
        "broker decides.",
    )
    backlog_bytes_max: Whole = Field(
        default=16 * 2**20,
        ge=2**20,
        le=2**30,
        description="Size of messages of the broker that are not on disk yet; further ones stay at "
        "the broker.",
    )
    message_bytes_max: Whole = Field(
        default=262_144,
        ge=1,
        le=256 * 2**20,
        description="Largest message, body and properties; larger ones are dropped.",
    )
    keep_alive_s: Whole = Field(
        default=60, ge=5, le=65_535, description="A silent broker is noticed after twice this time."
    )
    share_group: OptionalText = Field(
        default=None,
        pattern=r"^[^/+#\x00]+$",
        max_length=128,
        description="Name of a group of hubs; of each message that routes take, one hub of the "
        "group gets a copy.",
        examples=["hubs"],
    )
    devices: tuple[SenderPatternText, ...] = Field(
        default=(),
        description="Topics whose level `{device}` names the sender; all others are the hub's.",
        examples=[["site/{device}/#"]],
    )
    local_topics: tuple[TopicFilter, ...] | None = Field(
        default=None,
        description="Topics that broker and local topic space share, both ways; absent = those of "
        "entities if the mapper runs.",
        examples=[["te/#"]],
    )

    @model_validator(mode="after")
    def _fits_together(self) -> BrokerSettings:
        check_tls(self, "without tls = true", encrypted=self.tls)
        if self.local_topics and self.version != "5":
            raise ValueError(
                "local_topics need version 5: only it keeps own messages from coming back"
            )
        if "session_expiry_s" in self.model_fields_set and self.version != "5":
            raise ValueError("session_expiry_s needs version 5")
        return self

"""Settings of the Redis server that several hubs share.

Owns that section of the model; calls nothing of the hub.
"""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import AfterValidator, Field, model_validator

from edgehub.settings.values import OptionalFile, OptionalText, Real, Section, Whole, address_fault

_URL: Final = re.compile(r"(rediss?://[^/\s?#]+(/[0-9]+)?|unix:///[^\s?#]+(\?db=[0-9]+)?)")


def _url(url: str) -> str:
    if "@" in url:
        raise ValueError(
            "a user or password does not belong into the URL; use username and password_file"
        )
    if _URL.fullmatch(url) is None:
        raise ValueError("want redis://host:port/database, rediss://... for TLS, or unix:///path")
    fault = "" if url.startswith("unix:") else address_fault(url)
    if fault:
        raise ValueError(fault)
    return url


RedisUrl = Annotated[str, AfterValidator(_url)]


class RedisSettings(Section):
    """`[redis]`: the server that hubs share; used by what names it, such as `routing_table`."""

    url: RedisUrl | None = Field(
        default=None,
        description="Server, such as redis://10.0.0.5:6379/0, or rediss:// for TLS; absent = none.",
        examples=["rediss://redis.example.org:6379/0"],
    )
    username: OptionalText = Field(
        default=None, description="User name, for a server with access lists.", examples=["edgehub"]
    )
    password_file: OptionalFile = Field(
        default=None,
        description="File with the password, read again for each connection.",
        examples=["credential:redis-password"],
    )
    ca_file: OptionalFile = Field(
        default=None,
        description="Authorities of its certificate; absent = the system's.",
        examples=["/etc/edgehub/redis-ca.pem"],
    )
    certificate_file: OptionalFile = Field(
        default=None,
        description="Client certificate for the server; needs key_file.",
        examples=["/etc/edgehub/redis.pem"],
    )
    key_file: OptionalFile = Field(
        default=None, description="Key of certificate_file.", examples=["credential:redis.key"]
    )
    prefix: str = Field(
        default="edgehub",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        max_length=64,
        description="First part of every key; hubs that share a table or devices need the same.",
    )
    connect_timeout_s: Real = Field(
        default=3, gt=0, le=60, description="Longest wait for a connection."
    )
    timeout_s: Real = Field(default=2, gt=0, le=60, description="Longest wait for an answer.")
    connections_max: Whole = Field(
        default=8, ge=1, le=100, description="Connections for commands at once."
    )

    @model_validator(mode="after")
    def _tls_is_on(self) -> RedisSettings:
        if self.url is not None and not self.url.startswith("rediss:"):
            given = {"ca_file", "certificate_file"} & self.model_fields_set
            if given:
                raise ValueError(
                    f"{', '.join(sorted(given))} without TLS; the URL must begin with rediss://"
                )
        return self

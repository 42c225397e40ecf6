"""Settings of the HTTP API and the live page.

Owns that section of the model; calls nothing of the hub.
"""

from __future__ import annotations

from pydantic import Field

from edgehub.settings.tls import ServerCertificateFile, ServerKeyFile  # noqa: TC001 - pydantic reads it
from edgehub.settings.values import Host, HostName, OptionalFile, Real, Section, Whole


class WebSettings(Section):
    """`[web]`: the HTTP API and the live page, for operators and their programs."""

    host: Host = Field(default="127.0.0.1", description="Address to listen on.")
    port: Whole | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="Absent = no API and no page; 0 = any free port.",
        examples=[8090],
    )
    token_file: OptionalFile = Field(
        default=None,
        description="Hashed tokens, see `edgehub token`; absent = reading from this machine only.",
        examples=["/var/lib/edgehub/tokens"],
    )
    certificate_file: ServerCertificateFile = None
    key_file: ServerKeyFile = None
    host_names: tuple[HostName, ...] = Field(
        default=(),
        description="Further names than loopback ones under which requests without a token may "
        "come in, as through a proxy that asks for a password itself.",
        examples=[["gateway-7.example.org"]],
    )
    connections_max: Whole = Field(default=64, ge=1, le=10_000, description="Connections at once.")
    body_bytes_max: Whole = Field(
        default=2**20, ge=1024, le=64 * 2**20, description="Largest body of a request."
    )
    request_timeout_s: Real = Field(
        default=30,
        gt=0,
        le=600,
        description="Longest time for a client to send a request, and to read its answer.",
    )

"""The HTTP head's limits and times, with their defaults and units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """Settings of the head.

    Attributes:
        host: Address or name to bind; all addresses of a name are bound.
        port: 0 = any free port.
        anonymous: Let clients in without a password; holds on loopback addresses only.
        host_names: Further names than loopback ones under which requests without a password come.
        certificate_file: Certificate chain for HTTPS, None = plain HTTP.
        key_file: Its key.
        connections_max: Open connections.
        message_bytes_max: Body plus property names and values of one message.
        batch_bytes_max: Body of a request that carries a batch.
        batch_messages_max: Messages of a batch.
        header_bytes_max: Request line and headers.
        head_timeout_s: From a request's first byte to the end of its headers, and from the
            connection to the first request.
        body_timeout_s: A body may take so long, plus a second for each `body_rate_min` bytes.
        body_rate_min: Bytes per second; slower clients are cut off.
        idle_timeout_s: Between two requests of a connection.
        commit_timeout_s: From the last byte of a request to its commit; beyond it 503.
        linger_s: So long a refused client may go on sending before the connection is cut.
        waiting_bytes_max: Bytes of requests being read or committed, over all connections.
        backlog: TCP connections that may wait to be accepted.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    anonymous: bool = True
    host_names: tuple[str, ...] = ()
    certificate_file: Path | None = None
    key_file: Path | None = None
    connections_max: int = 1000
    message_bytes_max: int = 262_144
    batch_bytes_max: int = 2**20
    batch_messages_max: int = 1000
    header_bytes_max: int = 16_384
    head_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    body_rate_min: int = 1024
    idle_timeout_s: float = 75.0
    commit_timeout_s: float = 30.0
    linger_s: float = 2.0
    waiting_bytes_max: int = 64 * 2**20
    backlog: int = 256

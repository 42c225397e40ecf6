"""How Redis is reached."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, field

from edgehub.storage.credentials import TlsOptions

if TYPE_CHECKING:
    from pathlib import Path


class RedisOptions(Struct, frozen=True, kw_only=True):
    """How Redis is reached; section `[redis]` of the settings.

    Attributes:
        url: `redis://`, `rediss://` (TLS) or `unix://`, without a password.
        username: User of the access list, None = the default one.
        password_file: File with the password, read again for each connection; None = none.
        tls: For `rediss://`.
        connect_timeout_s: Longest wait for a connection, sign-in included.
        timeout_s: Longest wait for an answer.
        connections_max: Connections for commands at once; more callers wait.
        name: Shown by CLIENT LIST.
    """

    url: str
    username: str | None = None
    password_file: Path | None = None
    tls: TlsOptions = field(default_factory=TlsOptions)
    connect_timeout_s: float = 3.0
    timeout_s: float = 2.0
    connections_max: int = 8
    name: str = "edgehub"

"""How Redis is reached."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from edgehub.setting_files import TlsOptions

if TYPE_CHECKING:
    from pathlib import Path

    from edgehub.settings.redis import RedisSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisOptions:
    """See `edgehub.settings.redis.RedisSettings`.

    Attributes:
        url: `redis://`, `rediss://` (TLS) or `unix://`, without a password.
        username: User of the access list, None = the default one.
        password_file: File with the password, read anew for each connection; None = none.
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

    @classmethod
    def of(cls, settings: RedisSettings, *, name: str) -> Self:
        """Take them from the settings, which must have a URL."""
        assert settings.url is not None
        return cls(
            url=settings.url,
            username=settings.username,
            password_file=settings.password_file,
            tls=TlsOptions.of(settings),
            connect_timeout_s=settings.connect_timeout_s,
            timeout_s=settings.timeout_s,
            connections_max=settings.connections_max,
            name=name,
        )

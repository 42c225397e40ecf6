"""The way to the Redis that hubs share: loaded only where the settings name it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgehub.redis_link.link import RedisLink
from edgehub.redis_link.options import RedisOptions
from edgehub.storage.credentials import TlsOptions

if TYPE_CHECKING:
    from edgehub.settings import RedisSettings


def redis_link(settings: RedisSettings, *, name: str) -> RedisLink:
    """Build the connections; the settings must have a URL.

    Args:
        settings: Section `[redis]`.
        name: Shown by CLIENT LIST.
    """
    assert settings.url is not None
    return RedisLink(
        RedisOptions(
            url=settings.url,
            username=settings.username,
            password_file=settings.password_file,
            tls=TlsOptions.of(settings),
            connect_timeout_s=settings.connect_timeout_s,
            timeout_s=settings.timeout_s,
            connections_max=settings.connections_max,
            name=name,
        )
    )

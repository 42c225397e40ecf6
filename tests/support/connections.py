"""One short connection to a peer, of each kind that a hub opens, with the errors of its part."""

from __future__ import annotations

from edgehub.clock import SystemClock
from edgehub.endpoints.device_session import DeviceSession, SessionOptions
from edgehub.endpoints.http_link import HttpLinkOptions, open_link
from edgehub.endpoints.mqtt_link import LinkOptions, connect
from edgehub.redis_link.link import RedisLink
from edgehub.redis_link.options import RedisOptions
from edgehub.storage.credentials import TlsOptions


def ignore(_what: object) -> None:
    """Take nothing: the connection alone matters."""


async def mqtt(host: str, port: int, tls: TlsOptions | None = None, timeout_s: float = 5) -> None:
    """Sign in and out."""
    options = LinkOptions(
        host=host, port=port, client_id="hub-1", tls=tls, connect_timeout_s=timeout_s
    )
    async with connect(options, clock=SystemClock(), on_confirmed=ignore, on_messages=ignore):
        pass


async def device(host: str, port: int, tls: TlsOptions | None = None, timeout_s: float = 5) -> None:
    """Open and close a device's own session."""
    options = SessionOptions(host=host, port=port, tls=tls, connect_timeout_s=timeout_s)
    session = DeviceSession("d", options, clock=SystemClock(), ended=lambda *_: None)
    await session.open()
    await session.close()


async def http(host: str, port: int, tls: TlsOptions | None = None, timeout_s: float = 5) -> None:
    """Post once."""
    scheme = "http" if tls is None else "https"
    link = await open_link(
        HttpLinkOptions(
            url=f"{scheme}://{host}:{port}/",
            tls=tls or TlsOptions(),
            connect_timeout_s=timeout_s,
        )
    )
    assert (await link.request(b"[]")).status == 204
    link.abort("the end")


async def redis(host: str, port: int, tls: TlsOptions | None = None, timeout_s: float = 5) -> None:
    """Ask by a command and by a blocking reader."""
    scheme = "redis" if tls is None else "rediss"
    link = RedisLink(
        RedisOptions(
            url=f"{scheme}://{host}:{port}/0", tls=tls or TlsOptions(), connect_timeout_s=timeout_s
        )
    )
    try:
        assert await link.call("PING") == b"PONG"
        assert await link.reader().call("BLPOP", "nothing", 0.01, block_s=1) is None
    finally:
        await link.close()

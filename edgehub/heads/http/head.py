"""The HTTP head: binds, accepts, and ends connections that take too long.

Owns the listening sockets, the connections and their one timer. It calls the router (`submit`) and
the identities. Invariant: between `drain` and `close` no message is taken, and every request whose
messages were taken before gets its response.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from edgehub.clock import Timer
from edgehub.heads.binding import ListeningPort
from edgehub.heads.http.connection import HttpConnection
from edgehub.heads.http.limits import BACKLOG
from edgehub.heads.http.statistics import HttpStatistics

if TYPE_CHECKING:
    from edgehub.devices.handshakes import ServerContext
    from edgehub.heads.http.context import HttpContext
    from edgehub.telemetry.losses import Loss

SWEEP_S: Final = 1.0
"""Precision of the timeouts of connections, which share one timer."""

log = structlog.get_logger(__name__)


class HttpHead:
    """The HTTP head; implements `Head`.

    Args:
        context: What its connections share; its settings have a port, and the identities are loaded
            before `open`.
        tls: Certificate, and whose certificates clients may show; None = plain HTTP.
    """

    def __init__(self, context: HttpContext, tls: ServerContext | None = None) -> None:
        self._context = context
        self._connections: dict[HttpConnection, None] = {}
        """All connections, the oldest first."""
        self._port = ListeningPort("http", "HTTP", backlog=BACKLOG)
        self._tls: ServerContext | None = None
        if tls is not None:
            self._use(tls)
        self._timer = Timer(context.clock, self._sweep)

    async def open(self) -> None:
        """Bind and listen; connections wait until `run` accepts them.

        Raises:
            StartupError: If an address cannot be bound, or no client could sign in.
        """
        context = self._context
        settings = context.settings
        assert settings.port is not None, "the head of a hub without HTTP is not built"
        await self._port.open(settings.host, settings.port)
        context.anonymous = settings.anonymous and self._port.is_local
        if not context.anonymous and not len(context.identities):
            error = self._port.no_clients()
            self._port.close()
            raise error
        log.info(
            "http.listening",
            addresses=[f"{host}:{port}" for host, port in self.addresses],
            anonymous=context.anonymous,
            tls=self._tls is not None,
        )

    async def run(self) -> None:
        """Accept and serve until cancelled, then close all connections."""
        async with asyncio.TaskGroup() as tasks:
            self._context.tasks = tasks
            try:
                await self._accept()
                self._sweep()
                await asyncio.Event().wait()
            finally:
                # Before the group waits for its tasks: no connection may ask it for a new one.
                self._port.close()
                self._close_connections()
                self._timer.cancel()

    async def drain(self) -> None:
        """Stop accepting connections and messages, and wait until every message taken is settled.

        The caller sets the time limit.
        """
        self._context.draining = True
        self._port.close()
        for connection in list(self._connections):
            connection.drain()
        await self._context.backlog.until_empty()
        # The responses are written in the turn after that of the last commit.
        await asyncio.sleep(0)

    async def close(self) -> None:
        """Close all connections and give the sockets a turn of the loop to write what is left."""
        self._context.draining = True
        self._port.close()
        self._close_connections()
        await asyncio.sleep(0)

    async def renew_certificate(self, tls: ServerContext) -> None:
        """Use another certificate and other authorities for new connections.

        Connections of clients that have shown a certificate end with the request in progress, as
        it may be trusted no more.
        """
        self._use(tls)
        if self._port.is_accepting:
            await self._accept()
        for connection in list(self._connections):
            connection.distrust()

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each listening socket."""
        return self._port.addresses

    def statistics(self) -> HttpStatistics:
        """Return the counts of this moment."""
        context = self._context
        counters = context.counters
        return HttpStatistics(
            connections=len(self._connections),
            accepted_total=counters.accepted_total,
            handshakes_refused_total=0 if self._tls is None else self._tls.refused_total,
            loops_total=counters.loops_total,
            messages_total=counters.messages_total,
            timed_out_total=counters.timed_out_total,
            answers={str(status): count for status, count in sorted(counters.answers.items())},
            waiting_bytes=context.waiting_bytes,
            bounds=[
                bound.statistics() for bound in (context.clients, context.reading, context.backlog)
            ],
        )

    def losses(self) -> list[Loss]:
        """Return what was refused for good since the start; see `edgehub.telemetry.losses`."""
        return self._context.counters.losses()

    def _use(self, tls: ServerContext) -> None:
        if self._tls is not None:
            tls.refused_total += self._tls.refused_total
        tls.set_alpn_protocols(["http/1.1"])
        self._tls = tls

    async def _accept(self) -> None:
        """Accept connections, with this certificate from now on."""
        await self._port.accept(lambda: HttpConnection(self._context, self._connections), self._tls)

    def _sweep(self) -> None:
        now = self._context.clock.monotonic()
        for connection in list(self._connections):
            connection.check(now)
        self._timer.start(SWEEP_S)

    def _close_connections(self) -> None:
        for connection in list(self._connections):
            connection.close()

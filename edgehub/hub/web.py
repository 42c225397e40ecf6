"""The HTTP API of one hub: its sockets, its routers, built from the settings.

Owns the sockets and when the modules of `web/` are imported: in a thread, once the heads
listen, and not at all without a port. Invariant: the API answers until the hub has
stopped, the drain included.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import structlog

from edgehub.devices.server_tls import RenewableTls
from edgehub.devices.tokens import Tokens
from edgehub.errors import StartupError
from edgehub.heads.binding import ListeningPort
from edgehub.hub.part import Part
from edgehub.lifecycle import Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from edgehub.clock import Clock
    from edgehub.devices.tokens import TokenList
    from edgehub.operations.operation import Operation
    from edgehub.settings import WebSettings
    from edgehub.settings.configuration import Configuration
    from edgehub.sync.routing_table import RoutingTable
    from edgehub.web.gate import Gate
    from edgehub.web.server import WebServer

_BACKLOG = 64

log = structlog.get_logger(__name__)


class WebPart(Part):
    """The HTTP API of one hub: see the module.

    Args:
        settings: Section `[web]`.
        tokens: Those in force at the start.
        clock: For all timers, and the date.
        phase: Where the hub stands between start and end.
        status: Describes all of it.
        table: The routing table.
        operations: What may be asked, complete once the hub runs.
    """

    name = "web"

    def __init__(
        self,
        settings: WebSettings,
        tokens: TokenList,
        clock: Clock,
        *,
        phase: Callable[[], Phase],
        status: Callable[[], dict[str, Any]],
        table: RoutingTable,
        operations: Mapping[str, Operation],
    ) -> None:
        self._settings = settings
        self._token_list = tokens
        self._tokens = Tokens()
        self._tokens.apply(tokens)
        self._clock = clock
        self._phase = phase
        self._status = status
        self._table = table
        self._operations = operations
        self._port = ListeningPort("web", "the API", backlog=_BACKLOG)
        self._tls = RenewableTls("web", settings.certificate_file, settings.key_file)
        self._gate: Gate | None = None
        self._server: WebServer | None = None

    @property
    def is_on(self) -> bool:
        """Return whether the settings ask for it."""
        return self._settings.port is not None

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Return host and port of each listening socket."""
        return self._port.addresses

    async def open(self) -> None:
        """Bind and listen; connections wait until `run` accepts them.

        Raises:
            StartupError: If an address cannot be had, or anybody on the network could read.
            ConfigError: If the certificate cannot be read.
        """
        web = self._settings
        if web.port is None:
            return
        await self._tls.read()
        where = f"{web.host}:{web.port}"
        await self._port.open(web.host, web.port)
        local = self._port.is_local
        if not local and not self._tokens.are_required:
            self._port.close()
            raise StartupError(
                f"any client that reaches {where} could read the API: without tokens it listens on"
                " loopback addresses only (set web.token_file and add one with `edgehub token"
                " add`, or bind web.host to 127.0.0.1)"
            )
        if not local and self._tls.context is None:
            log.warning(
                "web.tokens_in_clear",
                host=web.host,
                hint="set web.certificate_file and web.key_file, or bind web.host to 127.0.0.1",
            )

    async def run(self) -> None:
        """Serve until cancelled."""
        if not self.addresses:
            return
        self._server = await asyncio.to_thread(self._build)
        log.info(
            "web.listening",
            addresses=[f"{host}:{port}" for host, port in self.addresses],
            tls=self._tls.context is not None,
            tokens=self._tokens.are_required,
        )
        await self._server.run(self._port, self._tls.context)

    async def close(self) -> None:
        """Close the sockets, also of a start that failed."""
        self._port.close()

    async def check(self, configuration: Configuration) -> None:
        """Read the certificate again; connections made from now on get it.

        Raises:
            ConfigError: If it cannot be read; the one that was in force stays so.
        """
        del configuration
        if self.is_on:
            await self._tls.read()

    async def reload(self, configuration: Configuration) -> Mapping[str, Any]:
        """Put other tokens in force."""
        before, self._token_list = self._token_list, configuration.tokens
        if configuration.tokens != before:
            self._tokens.apply(configuration.tokens)
        return {}

    def status(self) -> dict[str, Any]:
        """Return figures of connections and answers."""
        server, gate = self._server, self._gate
        document = {
            "enabled": self.is_on,
            "addresses": [f"{host}:{port}" for host, port in self.addresses],
            "tokens": len(self._tokens) if self._tokens.are_required else None,
            "connections": 0 if server is None else len(server.connections),
            "accepted_total": 0 if server is None else server.accepted_total,
            "handshakes_refused_total": self._tls.refused_total,
            "answers": {}
            if gate is None
            else {str(status): count for status, count in sorted(gate.answers.items())},
        }
        return {"web": document}

    def _build(self) -> WebServer:
        """Import the modules and build the routes; takes tenths of a second."""
        from edgehub.web.access import Access  # noqa: PLC0415 - only where configured
        from edgehub.web.app import build_routes  # noqa: PLC0415 - likewise
        from edgehub.web.gate import Gate  # noqa: PLC0415 - likewise
        from edgehub.web.operations import reading_requests  # noqa: PLC0415 - likewise
        from edgehub.web.server import WebServer  # noqa: PLC0415 - likewise

        web, operations = self._settings, list(self._operations.values())
        self._gate = Gate(
            build_routes(operations, status=self._status, unready=self._unready),
            Access(self._tokens, web.host_names, reading_requests(operations)),
            self._clock,
            body_bytes_max=web.body_bytes_max,
            ending=lambda: self._phase() is not Phase.RUNNING,
        )
        return WebServer(self._gate, web, self._clock)

    def _unready(self) -> str:
        phase = self._phase()
        if phase is not Phase.RUNNING:
            return phase.value
        ready, why = self._table.ready
        return "" if ready else why

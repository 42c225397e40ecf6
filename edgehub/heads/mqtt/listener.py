"""The MQTT listener: binds, accepts, and delivers to modules and devices that are connected.

Owns the listening sockets and the context of the connections. It calls the router (`submit`), the
session table and the identities. Invariant: between `drain` and `close` no message is taken, and
every message taken before is acknowledged or will be sent again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import structlog

from edgehub.errors import StartupError
from edgehub.heads.mqtt.deliveries import ClientDelivery
from edgehub.heads.mqtt.local.routes import RouteFeed
from edgehub.heads.mqtt.ports import ports_of
from edgehub.heads.mqtt.statistics import CloseReason, ListenerStatistics
from edgehub.heads.mqtt.topics import ClientTopic, client_prefixes, input_prefixes
from edgehub.message import FailureKind, SendResult
from edgehub.mqtt.property_bag import build_bag, outgoing

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterable

    from edgehub.devices.handshakes import ServerContext
    from edgehub.heads.head import Submit
    from edgehub.heads.mqtt.context import ListenerContext
    from edgehub.heads.mqtt.requests import RequestHandler
    from edgehub.message import Message
    from edgehub.settings import MqttSettings
    from edgehub.telemetry.losses import Loss

_NO_MODULE: Final = SendResult(FailureKind.TRANSIENT, "no module listens to the input")
_NO_CLIENT: Final = SendResult(FailureKind.TRANSIENT, "the client is not listening")

log = structlog.get_logger(__name__)


class MqttListener:
    """The head for devices and modules.

    Args:
        context: What its connections share; the identities are loaded before `open`.
        offer: The router, for local messages that need not match a route.
        tls: Certificate for MQTT over TLS, None = there is none, and no such port.

    Attributes:
        context: See above.
    """

    def __init__(
        self, context: ListenerContext, *, offer: Submit, tls: ServerContext | None = None
    ) -> None:
        self.context = context
        self._tls = tls
        self._feed = RouteFeed(context.space, offer, context.takes_qos0, context.counters)
        self._ports = ports_of(context, has_tls=tls is not None)

    # Life cycle; see `edgehub.heads.head.Head`.

    async def open(self) -> None:
        """Load the stored sessions, bind and listen; connections wait until `run` accepts them.

        Raises:
            StartupError: If an address cannot be had, or no client could ever sign in.
        """
        settings = self.context.settings
        sessions, space = self.context.sessions, self.context.space
        await sessions.load()
        await space.load(sessions.subscriptions())
        try:
            for port in self._ports:
                await port.open(settings.host, getattr(settings, port.key))
        except StartupError:
            self._stop_accepting()
            raise
        local = all(port.is_local for port in self._ports)
        self.context.anonymous = settings.anonymous and local
        if not self.context.anonymous and not len(self.context.identities):
            error = self._ports[0].no_clients()
            self._stop_accepting()
            raise error
        log.info(
            "mqtt.listening",
            addresses={
                key: [f"{host}:{port}" for host, port in addresses]
                for key, addresses in self.addresses.items()
            },
            anonymous=self.context.anonymous,
            stored_sessions=self.context.sessions.stored.used,
        )

    async def run(self) -> None:
        """Accept and serve until cancelled, then close all connections."""
        async with asyncio.TaskGroup() as tasks:
            self.context.tasks = tasks
            try:
                self.context.sessions.start()
                self.context.space.start()
                for port in self._ports:
                    await port.serve(self._tls)
                await asyncio.Event().wait()
            finally:
                # Before the group waits for its tasks: no connection may ask it for a new one.
                self._stop_accepting()
                self._close_connections()

    async def drain(self) -> None:
        """Stop accepting connections and messages, and wait until every message taken is settled.

        The caller sets the time limit. Connections stay open until `close`, so that the last
        PUBACKs leave and modules can confirm deliveries.
        """
        self.context.wills.submit_all()
        self.context.draining = True
        self._stop_accepting()
        for connection in list(self.context.connections):
            connection.drain()
        await self.context.backlog.until_empty()
        await self.context.space.flush()
        for connection in list(self.context.connections):
            connection.flush()

    async def close(self) -> None:
        """Close all connections and give the sockets a turn of the loop to write what is left."""
        self.context.draining = True
        self._stop_accepting()
        self._close_connections()
        await asyncio.sleep(0)

    def reload(self, settings: MqttSettings) -> None:
        """Apply changed limits; existing connections keep theirs."""
        self.context.settings = settings
        self.context.sessions.clients.limit = settings.clients_max

    def follow_routes(self, filters: Iterable[str]) -> None:
        """Submit the local messages that match these filters to the router, and no others."""
        self._feed.follow(filters)

    async def renew_certificate(self, tls: ServerContext) -> None:
        """Use another certificate and other authorities for new connections."""
        if self._tls is not None:
            tls.refused_total += self._tls.refused_total
        self._tls = tls
        for port in self._ports:
            if port.is_encrypted and port.is_accepting:
                await port.serve(tls)

    def identities_changed(self) -> None:
        """Close clients whose identity was removed, disabled or changed; called after a reload."""
        identities = self.context.identities
        for connection in self.context.sessions:
            client = connection.client
            if client is None:
                continue
            entry = identities.get(client.id)
            if entry != client.identity or (entry is not None and entry.disabled):
                connection.close(CloseReason.REVOKED)
        self.context.sessions.recount()
        self.context.space.recount()
        for connection in self.context.sessions.excess():
            connection.close(CloseReason.TOO_MANY)

    # Deliveries; see `edgehub.endpoints.module_input.ModuleSessions`.

    def is_connected(self, module_id: str, input_name: str) -> bool:
        """Return whether a module of this hub is connected and subscribed to the input."""
        return self.context.index.input_listener(module_id, input_name) is not None

    def watch(self, module_id: str, input_name: str, changed: Callable[[bool], None]) -> None:
        """Call `changed` when `is_connected` changes; an input has one watcher, the last one."""
        self.context.index.watch(module_id, input_name, changed)

    def deliver(
        self,
        module_id: str,
        input_name: str,
        message: Message,
        settle: Callable[[SendResult], None],
        *,
        expires_in_ms: int | None = None,
    ) -> None:
        """Send a message to a module's input; `settle` is called once, maybe at once."""
        hub_id = self.context.space.hub_id
        prefixes = input_prefixes(hub_id, module_id, input_name)
        found = self.context.index.find(f"{hub_id}/{module_id}", prefixes)
        if found is None:
            settle(_NO_MODULE)
            return
        connection, options = found
        message = outgoing(message)
        topic = prefixes[0] + build_bag(message)
        connection.deliver(ClientDelivery(topic.encode(), message, options, settle, expires_in_ms))

    def unsent_bytes(self, module_id: str) -> int:
        """Return bytes handed over for a module that have not left this process."""
        connection = self.context.sessions.get(f"{self.context.space.hub_id}/{module_id}")
        return 0 if connection is None else connection.unsent_bytes

    # Deliveries to devices and modules on topics of their own.

    def listens(self, target: str, topic: ClientTopic) -> bool:
        """Return whether a client is connected and subscribed to a topic of its own."""
        return self.context.index.find(target, client_prefixes(target, topic)) is not None

    def follow(self, topic: ClientTopic, changed: Callable[[str, bool], None]) -> None:
        """Call `changed(target, listens)` when `listens` changes, on the loop's thread.

        Subscriptions to a topic of `$iothub/` are granted if a part of the hub follows it.
        """
        self.context.index.follow(topic, changed)

    def send(
        self,
        target: str,
        rest: str,
        message: Message,
        settle: Callable[[SendResult], None],
        *,
        topic: ClientTopic,
        dup: bool = False,
        written: Callable[[], None] | None = None,
    ) -> None:
        """Send to one client; `settle` is called once, maybe at once.

        Delivered is what the client has acknowledged, or what is written if it was granted QoS 0.

        Args:
            target: `<device>` or `<device>/<module>`.
            rest: What follows the prefix of its topic, a property bag for example.
            message: Body, properties of MQTT 5, and how long it may wait (`expiry_ms`).
            settle: Called with the result.
            topic: Which of its topics.
            dup: The client may have got it on an earlier connection.
            written: Called when it leaves this process, None = nothing is.
        """
        prefixes = client_prefixes(target, topic)
        found = self.context.index.find(target, prefixes)
        if found is None:
            settle(_NO_CLIENT)
            return
        connection, options = found
        name = (prefixes[0] + rest).encode()
        connection.deliver(
            ClientDelivery(name, message, options, settle, message.expiry_ms, dup, written)
        )

    def handle(self, pattern: re.Pattern[bytes], handler: RequestHandler) -> None:
        """Register the part of the hub that handles what clients publish on topics of a pattern."""
        self.context.requests.add(pattern, handler)

    # Status.

    @property
    def addresses(self) -> dict[str, list[tuple[str, int]]]:
        """Host and port of each listening socket, by the setting of the port."""
        return {port.key: port.addresses for port in self._ports}

    def session_documents(self, after: str, limit: int) -> list[dict[str, Any]]:
        """Describe up to `limit` sessions after a client id, in the order of their ids."""
        sessions = self.context.sessions
        return [sessions.document(client_id) for client_id in sessions.page(after, limit)]

    async def end_session(self, client_id: str) -> int | None:
        """Close a client and end its session; done once that is durable.

        Returns:
            Messages that waited for the client and are dropped, None = there was no session.

        Raises:
            StoreError: If it could not be written.
        """
        waiting, _ = self.context.space.waiting(client_id)
        return waiting if await self.context.sessions.end(client_id) else None

    def statistics(self) -> ListenerStatistics:
        """Return the counts of this moment."""
        counters = self.context.counters
        sessions = self.context.sessions
        clients = list(sessions)
        bounds = (
            sessions.clients,
            sessions.stored,
            sessions.unreleased,
            self.context.backlog,
            self.context.wills.bound,
            *self.context.space.bounds,
        )
        return ListenerStatistics(
            connections=len(self.context.connections),
            clients=len(clients),
            paused=sum(1 for connection in clients if connection.pauses),
            stored_sessions=sessions.stored.used,
            sessions_evicted_total=counters.sessions_evicted_total,
            bounds=[bound.statistics() for bound in bounds],
            accepted_total=counters.accepted_total,
            handshakes_refused_total=0 if self._tls is None else self._tls.refused_total,
            received_total=counters.received_total,
            acknowledged_total=counters.acknowledged_total,
            delivered_total=counters.delivered_total,
            wills_total=counters.wills_total,
            dropped={reason.value: count for reason, count in counters.dropped.items()},
            closed={reason.value: count for reason, count in counters.closed.items()},
            refused_connects=dict(counters.refused_connects),
            unacknowledged_bytes=self.context.backlog.used,
            local=self.context.space.statistics(),
        )

    def losses(self) -> list[Loss]:
        """Return what was dropped for good since the start; see `edgehub.telemetry.losses`."""
        return self.context.counters.losses()

    # Parts.

    def _stop_accepting(self) -> None:
        for port in self._ports:
            port.close()

    def _close_connections(self) -> None:
        self.context.sessions.close()
        self.context.space.close()
        for connection in list(self.context.connections):
            connection.close(CloseReason.HUB_CLOSED)

"""The listeners of a hub as its parts: MQTT with the local topic space, and HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from edgehub.devices.server_tls import is_replaced
from edgehub.entities.configured import local_topics
from edgehub.heads.mqtt.context import ListenerContext
from edgehub.heads.mqtt.listener import MqttListener
from edgehub.heads.mqtt.local.space import LocalSpace
from edgehub.heads.mqtt.local.tables import LocalTable
from edgehub.heads.mqtt.ports import PORTS
from edgehub.heads.mqtt.session_table import SessionTable
from edgehub.heads.mqtt.topics import ClientTopic
from edgehub.hub.part import Part
from edgehub.hub.status import bound_warnings
from edgehub.hub.store import refusals
from edgehub.mqtt.hub_path import HubPath
from edgehub.operations.sessions import SessionOperations

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from edgehub.clock import Clock
    from edgehub.devices.identities import Identities
    from edgehub.endpoints.relays import Relays
    from edgehub.heads.head import Head, Submit
    from edgehub.heads.http.head import HttpHead
    from edgehub.methods.methods import Methods
    from edgehub.operations.operation import Operation
    from edgehub.router import Router
    from edgehub.settings.configuration import Configuration
    from edgehub.store.store import Store
    from edgehub.telemetry.losses import Loss


class HeadPart(Part):
    """A head, if the settings have one.

    Attributes:
        head: None = they have none.
    """

    head: Head | None

    async def open(self) -> None:
        """Bind and listen."""
        if self.head is not None:
            await self.head.open()

    async def run(self) -> None:
        """Serve until cancelled."""
        if self.head is not None:
            await self.head.run()

    async def drain(self, deadline: float) -> None:
        """Take no more messages, and wait until all others are settled."""
        del deadline
        if self.head is not None:
            await self.head.drain()

    async def close(self) -> None:
        """Close what is left."""
        if self.head is not None:
            await self.head.close()


class MqttPart(HeadPart):
    """The MQTT listener with its identities.

    Args:
        configuration: What the hub starts with.
        hub_id: Device id of the hub itself.
        store: Keeps sessions and the local topic space.
        router: Takes messages.
        submit: Takes messages of devices; the router, or the election before it.
        identities: Clients that may sign in; closed with the listener.
        relays: Notified of the devices that listen.
        clock: For all timers.

    Attributes:
        head: The listener.
    """

    name = "mqtt"
    head: MqttListener

    def __init__(
        self,
        configuration: Configuration,
        *,
        hub_id: str,
        store: Store,
        router: Router,
        submit: Submit,
        identities: Identities,
        relays: Relays,
        clock: Clock,
    ) -> None:
        settings, tls = configuration.settings, configuration.tls
        mqtt = settings.mqtt
        self._configuration = configuration
        self._identities = identities
        space = LocalSpace(
            mqtt,
            LocalTable(store, clock, commit_delay_ms=settings.store.commit_delay_ms),
            clock,
            hub_id=hub_id,
            known=identities,
            topics=local_topics(settings),
        )
        store.limits.count_other_tables(lambda: space.kept_bytes)
        context = ListenerContext(
            mqtt,
            clock=clock,
            submit=submit,
            link_up=relays.upstream_is_up,
            space=space,
            refused=refusals(store),
            identities=identities,
            hub_path=HubPath(store.store_id),
            session_store=SessionTable(store),
        )
        tls_context = None if tls is None else tls.context
        listener = self.head = MqttListener(context, offer=router.offer, tls=tls_context)
        listener.follow(ClientTopic.MESSAGES, relays.set_interest)
        router.follow(lambda table: listener.follow_routes(table.mqtt_filters))

    async def close(self) -> None:
        """Close connections, and stop the threads that check passwords."""
        await super().close()
        self._identities.close()

    async def reload(self, configuration: Configuration) -> Mapping[str, Any]:
        """Apply identities, certificate and bounds."""
        before, self._configuration = self._configuration, configuration
        # No certificate may outlive the identity by which it is trusted.
        if is_replaced(before.tls, configuration.tls):
            assert configuration.tls is not None
            await self.head.renew_certificate(configuration.tls.context)
        if configuration.identities != before.identities:
            self._identities.apply(configuration.identities)
            self.head.identities_changed()
        self.head.reload(configuration.settings.mqtt)
        return {}

    def status(self) -> dict[str, Any]:
        """Return the listener's figures."""
        return {"mqtt": to_builtins(self.head.statistics())}

    def warnings(self) -> list[str]:
        """List the bounds that are nearly used up."""
        return bound_warnings("MQTT", self.head.statistics().bounds)

    def operations(self) -> Sequence[Operation]:
        """Return the operations on sessions."""
        return SessionOperations(self.head).table()

    def losses(self) -> list[Loss]:
        """Return what was dropped for good since the start."""
        return self.head.losses()

    def ports(self) -> dict[str, int | None]:
        """Return the port of each setting, None = it has none."""
        addresses = self.head.addresses
        return {
            f"mqtt_{key}": addresses[key][0][1] if addresses.get(key) else None for key in PORTS
        }


class HttpPart(HeadPart):
    """The HTTP head, loaded only where the settings have a port for it.

    Args:
        configuration: What the hub starts with.
        store: Keeps the journal.
        submit: Takes messages of devices.
        identities: Clients that may sign in.
        methods: Calls those of devices and modules.
        clock: For all timers.
    """

    name = "http"
    head: HttpHead | None

    def __init__(
        self,
        configuration: Configuration,
        *,
        store: Store,
        submit: Submit,
        identities: Identities,
        methods: Methods,
        clock: Clock,
    ) -> None:
        settings, tls = configuration.settings, configuration.http_tls
        self._configuration = configuration
        self.head = None
        if settings.http.port is None:
            return
        # Loaded by hubs that serve HTTP only.
        from edgehub.heads.http.context import HttpContext  # noqa: PLC0415
        from edgehub.heads.http.head import HttpHead  # noqa: PLC0415

        context = HttpContext(
            settings.http,
            clock=clock,
            submit=submit,
            refused=refusals(store),
            identities=identities,
            hub_path=HubPath(store.store_id),
            methods=methods,
        )
        self.head = HttpHead(context, None if tls is None else tls.context)

    async def reload(self, configuration: Configuration) -> Mapping[str, Any]:
        """Apply the certificate; connections made from now on get it."""
        before, self._configuration = self._configuration, configuration
        if self.head is not None and is_replaced(before.http_tls, configuration.http_tls):
            assert configuration.http_tls is not None
            await self.head.renew_certificate(configuration.http_tls.context)
        return {}

    def status(self) -> dict[str, Any]:
        """Return the head's figures."""
        return {"http": None if self.head is None else to_builtins(self.head.statistics())}

    def warnings(self) -> list[str]:
        """List the bounds that are nearly used up."""
        return [] if self.head is None else bound_warnings("HTTP", self.head.statistics().bounds)

    def losses(self) -> list[Loss]:
        """Return what was refused for good since the start."""
        return [] if self.head is None else self.head.losses()

    def ports(self) -> dict[str, int | None]:
        """Return the port, None = there is none."""
        return {"http_port": None if self.head is None else self.head.addresses[0][1]}

"""The broker head as a part of the hub.

Owns the head. Invariant: a hub without `[broker]` has none, and connects to no broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import to_builtins

from edgehub.endpoints.mqtt_link import LinkOptions
from edgehub.hub.heads import HeadPart
from edgehub.hub.status import left_out_text
from edgehub.hub.store import refusals
from edgehub.settings.derived import broker_topics
from edgehub.storage.credentials import TlsOptions

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

    from edgehub.clock import Clock
    from edgehub.heads.broker.head import BrokerHead
    from edgehub.heads.head import Submit
    from edgehub.heads.mqtt.listener import MqttListener
    from edgehub.router import Router
    from edgehub.settings import BrokerSettings, Settings
    from edgehub.settings.configuration import Configuration
    from edgehub.store.store import Store
    from edgehub.telemetry.losses import Loss

MEMORY_NAME: Final = "broker.json"
"""File of the data folder: what the session at the broker is subscribed to."""

_ENVELOPE_BYTES_MAX: Final = 2 * 65_536
"""Topic and properties of a packet, in addition to its body."""

_LEVELS: Final = {"3.1.1": 4, "5": 5}


class BrokerPart(HeadPart):
    """The head that subscribes at another broker; without `[broker]` it is none.

    Args:
        settings: The hub's.
        hub_id: Device id of the hub itself.
        store: Says whether there is room, and keeps the journal.
        router: Its routes say which topics to subscribe to.
        submit: Takes messages.
        listener: Has the local topic space, and knows whether messages of QoS 0 are stored.
        clock: For all timers.
        rng: Randomness for jitter.

    """

    name = "broker"
    head: BrokerHead | None

    def __init__(
        self,
        settings: Settings,
        *,
        hub_id: str,
        store: Store,
        router: Router,
        submit: Submit,
        listener: MqttListener,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self.head = None
        if settings.broker is None:
            return
        # Loaded by hubs with a broker only.
        from edgehub.heads.broker.dispatcher import BrokerDependencies  # noqa: PLC0415
        from edgehub.heads.broker.head import BrokerHead  # noqa: PLC0415

        head = self.head = BrokerHead(
            settings.broker,
            BrokerDependencies(
                submit=submit,
                space=listener.context.space,
                refused=refusals(store),
                has_room=store.appender.has_room,
                takes_qos0=listener.context.takes_qos0,
            ),
            link=_link_options(settings.broker, hub_id=hub_id),
            local_topics=broker_topics(settings, settings.broker),
            memory_file=settings.data_dir / MEMORY_NAME,
            hub_id=hub_id,
            clock=clock,
            rng=rng,
        )
        router.follow(lambda table: head.follow_routes(table.mqtt_filters))

    async def reload(self, configuration: Configuration) -> Mapping[str, Any]:
        """Try the link at once if it is down: an operator does not want to wait for a back-off."""
        del configuration
        if self.head is not None:
            self.head.retry_now()
        return {}

    def status(self) -> dict[str, Any]:
        """Return the head's figures."""
        if self.head is None:
            return {"broker": {"enabled": False}}
        return {"broker": {"enabled": True, **to_builtins(self.head.statistics())}}

    def losses(self) -> list[Loss]:
        """Return what was dropped for good since the start."""
        return [] if self.head is None else self.head.losses()

    def warnings(self) -> list[str]:
        """List what is wrong with the link, and what the broker refuses."""
        if self.head is None:
            return []
        figures = self.head.statistics()
        found = []
        if figures.state in {"down", "parked"}:
            found.append(f"the broker is {figures.state}: {figures.reason}")
        if figures.refused_subscriptions:
            filters = ", ".join(figures.refused_subscriptions)
            found.append(f"the broker refuses subscriptions to {filters}; check its access rules")
        if figures.left_out_subscriptions:
            found.append(left_out_text("the broker", figures.left_out_subscriptions))
        if figures.holding:
            found.append(
                "a limit refuses messages of the broker, so they wait there: "
                f"{figures.waiting} are held here, unacknowledged"
            )
        return found


def _link_options(broker: BrokerSettings, *, hub_id: str) -> LinkOptions:
    return LinkOptions(
        host=broker.host,
        port=broker.port,
        client_id=broker.client_id or f"{hub_id}-broker",
        username=broker.username,
        password_file=broker.password_file,
        tls=TlsOptions.of(broker) if broker.tls else None,
        clean_session=broker.session_expiry_s == 0,
        keep_alive_s=broker.keep_alive_s,
        level=_LEVELS[broker.version],
        session_expiry_s=broker.session_expiry_s,
        receive_maximum=broker.receive_maximum,
        incoming_bytes_max=broker.message_bytes_max + _ENVELOPE_BYTES_MAX,
    )

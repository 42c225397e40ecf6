"""The broker head in one hub: built from the settings, told of routes, shown in the status.

Owns the head. Invariant: a hub without `[broker]` has none, and connects to no broker.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from edgehub.endpoints.mqtt_link import LinkOptions
from edgehub.heads.broker.exchange import Services
from edgehub.heads.broker.head import BrokerHead
from edgehub.heads.broker.options import BrokerOptions
from edgehub.hub.status import left_out_text
from edgehub.settings.derived import broker_topics
from edgehub.storage.credentials import TlsOptions

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping

    from edgehub.clock import Clock
    from edgehub.heads.head import Refused, Submit
    from edgehub.heads.mqtt.local.space import LocalSpace
    from edgehub.operations.operation import Command
    from edgehub.router import Router
    from edgehub.settings import BrokerSettings, Settings
    from edgehub.store.store import Store
    from edgehub.telemetry.losses import Loss

MEMORY_NAME: Final = "broker.json"
"""File of the data folder: what the session at the broker is subscribed to."""

_LEVELS: Final = {"3.1.1": 4, "5": 5}


class Brokering:
    """See the module.

    Args:
        settings: The hub's.
        hub_id: Device id of the hub itself.
        store: Says whether there is room, and keeps the journal.
        submit: Takes messages.
        space: The local topic space, not loaded yet.
        takes_qos0: Whether messages of QoS 0 are to be stored at present.
        clock: For all timers.
        rng: Randomness for jitter.

    Attributes:
        head: None = the settings have no broker.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        hub_id: str,
        store: Store,
        submit: Submit,
        space: LocalSpace,
        takes_qos0: Callable[[], bool],
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self.head: BrokerHead | None = None
        if settings.broker is None:
            return
        self.head = BrokerHead(
            broker_options(settings, settings.broker, hub_id=hub_id),
            Services(
                submit=submit,
                space=space,
                refused=_account(store),
                has_room=store.has_room,
                takes_qos0=takes_qos0,
            ),
            hub_id=hub_id,
            clock=clock,
            rng=rng,
        )

    def follow(self, router: Router) -> None:
        """Listen at the broker to the topic filters of the routes in force."""
        if head := self.head:
            router.follow(lambda table: head.follow_routes(table.mqtt_filters))

    def retry_now(self) -> None:
        """Try the link at once if it is down."""
        if self.head is not None:
            self.head.retry_now()

    # What people see; see `edgehub.hub.parts.Assembly`.

    @property
    def name(self) -> str:
        """Give its key in the status."""
        return "broker"

    def document(self) -> dict[str, Any]:
        """Describe it for the status."""
        if self.head is None:
            return {"enabled": False}
        return {"enabled": True, **asdict(self.head.statistics())}

    def losses(self) -> list[Loss]:
        """Return what was dropped for good since the start; see `edgehub.telemetry.losses`."""
        return [] if self.head is None else self.head.losses()

    def warnings(self) -> list[str]:
        """List what a person should look at."""
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

    def commands(self) -> Mapping[str, Command]:
        """Give its commands of the control socket: none."""
        return {}


def broker_options(settings: Settings, broker: BrokerSettings, *, hub_id: str) -> BrokerOptions:
    """Give the head's options."""
    return BrokerOptions(
        link=LinkOptions(
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
        ),
        memory_file=settings.data_dir / MEMORY_NAME,
        share_group=broker.share_group,
        local_topics=broker_topics(settings, broker),
        devices=broker.devices,
        message_bytes_max=broker.message_bytes_max,
        backlog_bytes_max=broker.backlog_bytes_max,
    )


def _account(store: Store) -> Refused:
    journal = store.journal
    return _untold if journal is None else journal.refused


def _untold(device: str, size: int, reason: str) -> None:
    """Stand in for the journal of a hub that keeps none."""

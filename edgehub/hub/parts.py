"""The parts of a running hub, for those who show and operate it.

Owns nothing; `hub.py` builds it once, when everything exists. An assembly is a part of the hub that
brings its own commands and its own piece of the status: the journal, for one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from edgehub.clock import Clock
    from edgehub.heads.http.head import HttpHead
    from edgehub.heads.mqtt.listener import MqttListener
    from edgehub.hub.endpoints import Egress
    from edgehub.hub.reload import Reloader
    from edgehub.hub.routes import RouteTableAssembly
    from edgehub.notify.reports import Reports
    from edgehub.operations.forecast.forecast import Outlook
    from edgehub.operations.operation import Command
    from edgehub.operations.queues import Operating
    from edgehub.router import Router
    from edgehub.store.store import Store


class Assembly(Protocol):
    """A part with commands and a piece of the status of its own."""

    @property
    def name(self) -> str:
        """Give the key of its document in the status."""

    def document(self) -> dict[str, Any]:
        """Describe it, as JSON can hold it."""

    def warnings(self) -> list[str]:
        """List what a person should look at."""

    def commands(self) -> Mapping[str, Command]:
        """Give its commands of the control socket by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubParts:
    """What exists while a hub serves."""

    hub_id: str
    clock: Clock
    store: Store
    router: Router
    route_table: RouteTableAssembly
    egress: Egress
    listener: MqttListener
    http: HttpHead | None
    outlook: Outlook
    operating: Operating
    reloader: Reloader
    reports: Reports
    assemblies: Sequence[Assembly]

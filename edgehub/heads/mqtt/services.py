"""What every connection of a listener works with, in one value that the listener builds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine

    from edgehub.devices.identities import Identities
    from edgehub.heads.mqtt.connection import Connection
    from edgehub.heads.mqtt.context import ListenerContext
    from edgehub.heads.mqtt.local.space import LocalSpace
    from edgehub.heads.mqtt.sessions import Sessions
    from edgehub.heads.mqtt.subscriptions import SubscriptionIndex
    from edgehub.heads.mqtt.turns import Share
    from edgehub.heads.mqtt.will import PendingWills


@dataclass(slots=True, kw_only=True, eq=False)
class Services:
    """The parts of a listener.

    Attributes:
        anonymous: Whether clients without a password are let in.
        connections: All connections, signed in or not.
        silent: Those that have sent no CONNECT yet, the oldest first.
        spawn: Runs a coroutine in the listener's task group.
    """

    context: ListenerContext
    identities: Identities
    sessions: Sessions[Connection]
    space: LocalSpace
    wills: PendingWills
    share: Share
    index: SubscriptionIndex[Connection]
    anonymous: bool
    connections: set[Connection]
    silent: dict[Connection, None]
    spawn: Callable[[Coroutine[None, None, None], str], asyncio.Task[None]]

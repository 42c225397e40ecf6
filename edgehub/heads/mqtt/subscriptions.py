"""Index of subscriptions: topic prefixes to the connections that subscribed to them.

Owns the index, and notifies watchers when the first subscription of an input or a device begins and
the last one ends. Invariant: a watcher is notified of changes only, of each once, and in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgehub.heads.mqtt.topics import input_prefixes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from edgehub.heads.mqtt.client_connection import ClientConnection
    from edgehub.heads.mqtt.topics import Subscription


@dataclass(slots=True, eq=False)
class _Watch:
    changed: Callable[[bool], None]
    connected: bool


class SubscriptionIndex:
    """Live subscriptions of one listener.

    Args:
        hub_id: Device id of this hub, under which its modules are addressed.
        device_bound_interest: Called when a device begins or ceases to listen.
    """

    def __init__(self, hub_id: str, device_bound_interest: Callable[[str, bool], None]) -> None:
        self._hub_id = hub_id
        self._device_bound_interest = device_bound_interest
        # Prefix to connections in order of subscription, with their options.
        self._by_prefix: dict[str, dict[ClientConnection, int]] = {}
        self._watches: dict[tuple[str, str], _Watch] = {}

    def add(self, connection: ClientConnection, subscription: Subscription, options: int) -> None:
        """Add a subscription, or change its options."""
        listeners = self._by_prefix.setdefault(subscription.prefix, {})
        first = not listeners
        listeners[connection] = options
        if first:
            self._changed(subscription, listened=True)

    def remove(self, connection: ClientConnection, subscriptions: Iterable[Subscription]) -> None:
        """Remove subscriptions of a connection, as far as it has them."""
        for subscription in subscriptions:
            listeners = self._by_prefix.get(subscription.prefix)
            if listeners is None or connection not in listeners:
                continue
            del listeners[connection]
            if not listeners:
                del self._by_prefix[subscription.prefix]
                self._changed(subscription, listened=False)

    def find(self, prefixes: Iterable[str]) -> tuple[ClientConnection, int] | None:
        """Return a connection that listens to one of the prefixes, and its options.

        The first prefix takes precedence, and of several connections the last that subscribed.
        """
        for prefix in prefixes:
            listeners = self._by_prefix.get(prefix)
            if listeners:
                return next(reversed(listeners.items()))
        return None

    def input_listener(
        self, module_id: str, input_name: str
    ) -> tuple[ClientConnection, int] | None:
        """Return the connection that takes an input of a module of this hub."""
        return self.find(input_prefixes(self._hub_id, module_id, input_name))

    def watch(self, module_id: str, input_name: str, changed: Callable[[bool], None]) -> None:
        """Call `changed` on later changes; an input has one watcher, the last one."""
        connected = self.input_listener(module_id, input_name) is not None
        self._watches[module_id, input_name] = _Watch(changed, connected)

    def _changed(self, subscription: Subscription, *, listened: bool) -> None:
        if subscription.module_id is None:
            self._device_bound_interest(subscription.device_id, listened)
            return
        if subscription.device_id != self._hub_id:
            return
        for (module_id, input_name), watch in list(self._watches.items()):
            if module_id != subscription.module_id:
                continue
            connected = self.input_listener(module_id, input_name) is not None
            if connected != watch.connected:
                watch.connected = connected
                watch.changed(connected)

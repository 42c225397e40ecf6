"""Index of subscriptions: topic prefixes to the connections that subscribed to them.

Owns the index, and notifies watchers and followers when the first subscription of an input, or of a
topic of a client, begins and the last one ends. Invariant: they are notified of changes only, of
each once, and in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgehub.heads.mqtt.topics import client_prefixes, input_prefixes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from edgehub.heads.mqtt.client_connection import ClientConnection
    from edgehub.heads.mqtt.topics import ClientTopic, Subscription

    Follower = Callable[[str, bool], None]


class SubscriptionIndex:
    """Live subscriptions of one listener.

    Args:
        hub_id: Device id of this hub, under which its modules are addressed.
    """

    def __init__(self, hub_id: str) -> None:
        self._hub_id = hub_id
        self._followers: dict[ClientTopic, list[Follower]] = {}
        # Target and prefix to connections in order of subscription, with their options.
        self._listeners: dict[tuple[str, str], dict[ClientConnection, int]] = {}
        self._watchers: dict[tuple[str, str], Callable[[bool], None]] = {}

    def add(self, connection: ClientConnection, subscription: Subscription, options: int) -> None:
        """Add a subscription, or change its options."""
        key = subscription.target, subscription.prefix
        listeners = self._listeners.setdefault(key, {})
        first = not listeners
        listeners[connection] = options
        if first:
            self._changed(subscription, listened=True)

    def remove(self, connection: ClientConnection, subscriptions: Iterable[Subscription]) -> None:
        """Remove subscriptions of a connection, as far as it has them."""
        for subscription in subscriptions:
            key = subscription.target, subscription.prefix
            listeners = self._listeners.get(key)
            if listeners is None or connection not in listeners:
                continue
            del listeners[connection]
            if not listeners:
                del self._listeners[key]
                self._changed(subscription, listened=False)

    def find(self, target: str, prefixes: Iterable[str]) -> tuple[ClientConnection, int] | None:
        """Return a connection that gets what is for `target`, and its options.

        The first prefix takes precedence, and of several connections the last that subscribed.
        """
        for prefix in prefixes:
            listeners = self._listeners.get((target, prefix))
            if listeners:
                return next(reversed(listeners.items()))
        return None

    def input_listener(
        self, module_id: str, input_name: str
    ) -> tuple[ClientConnection, int] | None:
        """Return the connection that takes an input of a module of this hub."""
        prefixes = input_prefixes(self._hub_id, module_id, input_name)
        return self.find(f"{self._hub_id}/{module_id}", prefixes)

    def watch(self, module_id: str, input_name: str, changed: Callable[[bool], None]) -> None:
        """Call `changed` on later changes; an input has one watcher, the last one."""
        self._watchers[module_id, input_name] = changed

    def serves(self, subscription: Subscription) -> bool:
        """Return whether the hub has a part that sends what a subscription asks for."""
        return subscription.topic is None or subscription.topic in self._followers

    def follow(self, topic: ClientTopic, changed: Follower) -> None:
        """Call `changed` with a client that begins or ceases to listen to a topic of its own."""
        self._followers.setdefault(topic, []).append(changed)

    def _changed(self, subscription: Subscription, *, listened: bool) -> None:
        target = subscription.target
        for topic, followers in self._followers.items():
            if self._is_only(subscription, client_prefixes(target, topic)):
                for follower in followers:
                    follower(target, listened)
        for (module_id, input_name), watcher in list(self._watchers.items()):
            if target == f"{self._hub_id}/{module_id}" and self._is_only(
                subscription, input_prefixes(self._hub_id, module_id, input_name)
            ):
                watcher(listened)

    def _is_only(self, subscription: Subscription, prefixes: Sequence[str]) -> bool:
        """Return whether of some prefixes nothing but that of a subscription is listened to."""
        others = [prefix for prefix in prefixes if prefix != subscription.prefix]
        return len(others) < len(prefixes) and self.find(subscription.target, others) is None

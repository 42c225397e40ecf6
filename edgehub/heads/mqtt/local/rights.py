"""Rights of a client in the local topic space.

Pure. Invariant: a client without an identity, or without rights in its identity, may publish and
subscribe to all topics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from edgehub.devices.identity_file import OWN_ID
from edgehub.mqtt.topic_filter import covers, matches

if TYPE_CHECKING:
    from collections.abc import Iterable

    from edgehub.devices.identity_file import Identity


class LocalRights(Struct, frozen=True, kw_only=True):
    """Filters of topics, None = all of the space.

    Attributes:
        publish: Topics that it may publish to.
        subscribe: Topics that it may receive.
    """

    publish: tuple[str, ...] | None = None
    subscribe: tuple[str, ...] | None = None

    def may_publish(self, topic: str) -> bool:
        """Return whether a message of the client on this topic is taken."""
        return self.publish is None or any(matches(each, topic) for each in self.publish)

    def may_subscribe(self, topic_filter: str) -> bool:
        """Return whether the client may have all that a filter takes."""
        return self.subscribe is None or any(covers(each, topic_filter) for each in self.subscribe)

    def may_read(self, topic: str) -> bool:
        """Return whether the client may be sent a message on this topic."""
        return self.subscribe is None or any(matches(each, topic) for each in self.subscribe)


def rights_of(client_id: str, identity: Identity | None) -> LocalRights:
    """Return the rights of a signed-in client."""
    if identity is None:
        return LocalRights()
    return LocalRights(
        publish=_filled(identity.publish, client_id),
        subscribe=_filled(identity.subscribe, client_id),
    )


def _filled(filters: Iterable[str] | None, client_id: str) -> tuple[str, ...] | None:
    if filters is None:
        return None
    return tuple(each.replace(OWN_ID, client_id) for each in filters)

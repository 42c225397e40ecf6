"""Whether clients are connected, as retained messages of the hub.

Owns the topics `$edge/clients/<client id>/connected`, with the payload 1 or 0. Invariants: of the
clients that left, those with a stored session and the last `DEPARTED_MAX` others are kept, so that
invented ids fill nothing; while there are identities at most half of them are anonymous.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from edgehub.devices.bounds import Bound
from edgehub.heads.mqtt.local.options import DEPARTED_MAX
from edgehub.local_message import HUB_TOPICS, LocalMessage

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.devices.bounds import KnownIds, Usage
    from edgehub.heads.mqtt.local.retained import RetainedMessages

# All characters of ids but the slash, which would begin a level, and the percent sign.
_SAFE: Final = "-._~!*'(),:=@$?"


class Presence:
    """Publishes whether clients are connected.

    Args:
        retained: Keeps the messages.
        publish: Publishes a message; nothing waits for it.
        hub_id: Publisher of the messages.
        known: The identities in force.
    """

    def __init__(
        self,
        retained: RetainedMessages,
        publish: Callable[[LocalMessage], None],
        *,
        hub_id: str,
        known: KnownIds,
    ) -> None:
        self._retained = retained
        self._publish = publish
        self._hub_id = hub_id
        self._bound = Bound("clients that left", DEPARTED_MAX, known)
        # Clients that left and have no session, the first that left first.
        self._departed: dict[str, Usage] = {}

    def connected(self, client_id: str) -> None:
        """Publish that a client is connected."""
        self._forget(client_id)
        self._publish(self._keep(client_id, b"1"))

    def left(self, client_id: str) -> None:
        """Publish that a client is not connected any more."""
        self._publish(self._keep(client_id, b"0"))

    def restore(self, client_id: str) -> None:
        """Show a client with a stored session as not connected, at the start of the hub."""
        self._keep(client_id, b"0")

    def ended(self, client_id: str) -> None:
        """Record that a client that left has no session any more."""
        self._forget(client_id)
        usage = self._departed[client_id] = self._bound.of(client_id)
        usage.used += 1
        if usage.used > usage.limit:
            oldest = next(each for each, other in self._departed.items() if other is usage)
            self._forget(oldest)
            self._retained.forget_own(presence_topic(oldest))

    def _keep(self, client_id: str, body: bytes) -> LocalMessage:
        topic = presence_topic(client_id)
        message = LocalMessage(topic, body, publisher=self._hub_id, retain=True)
        self._retained.put_own(message)
        return message

    def _forget(self, client_id: str) -> None:
        usage = self._departed.pop(client_id, None)
        if usage is not None:
            usage.used -= 1


def presence_topic(client_id: str) -> str:
    """Return the topic of a client; its id is percent-encoded, so that it is one level."""
    return f"{HUB_TOPICS}clients/{quote(client_id, safe=_SAFE)}/connected"

"""Which clients are connected, as retained messages of the hub.

Owns the topics `$edge/clients/<client id>/connected`, with the payload 1 or 0. Invariants: of the
clients that left, those with a stored session and the last `DEPARTED_MAX` others are remembered, so
that inventing ids fills nothing; while there are identities at most half of them are anonymous.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import quote

from edgehub.devices.bounds import Bound
from edgehub.heads.mqtt.local.options import DEPARTED_MAX
from edgehub.local_message import HUB_TOPICS

if TYPE_CHECKING:
    from edgehub.devices.bounds import KnownIds, Usage

# Everything that ids may hold, but for what would be another level or could be taken for an escape.
_SAFE: Final = "-._~!*'(),:=@$?"


class Space(Protocol):
    """The space as this part sees it."""

    def announce(self, topic: str, body: bytes) -> None:
        """Publish a retained message of the hub."""

    def remember(self, topic: str, body: bytes) -> object:
        """Keep such a message without publishing it."""

    def forget(self, topic: str) -> None:
        """Let such a message go."""


class Presence:
    """Announces who comes and goes."""

    __slots__ = ("_bound", "_departed", "_space")

    def __init__(self, space: Space, known: KnownIds) -> None:
        self._space = space
        self._bound = Bound("clients that left", DEPARTED_MAX, known)
        self._departed: dict[str, Usage] = {}

    def connected(self, client_id: str) -> None:
        """A client is connected."""
        self._forget(client_id)
        self._space.announce(presence_topic(client_id), b"1")

    def left(self, client_id: str) -> None:
        """A client is not connected any more."""
        self._space.announce(presence_topic(client_id), b"0")

    def restore(self, client_id: str) -> None:
        """A client with a stored session is not there at the start of the hub."""
        self._space.remember(presence_topic(client_id), b"0")

    def ended(self, client_id: str) -> None:
        """A client that went has no session any more."""
        self._forget(client_id)
        usage = self._departed[client_id] = self._bound.of(client_id)
        usage.used += 1
        if usage.used > usage.limit:
            oldest = next(each for each, other in self._departed.items() if other is usage)
            self._forget(oldest)
            self._space.forget(presence_topic(oldest))

    def _forget(self, client_id: str) -> None:
        usage = self._departed.pop(client_id, None)
        if usage is not None:
            usage.used -= 1


def presence_topic(client_id: str) -> str:
    """Name the topic of a client; its id is percent-encoded, so that it is one level."""
    return f"{HUB_TOPICS}clients/{quote(client_id, safe=_SAFE)}/connected"

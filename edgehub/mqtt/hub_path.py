"""The path of hubs that a message has passed, which keeps messages from circulating for ever.

Owns the form of the path. Pure. A hub is identified by the id of its database, which is unique; the
ids of its messages begin with that id, so a message with such an id needs no path on its first hop.
Invariant: a path is bounded, and a full one counts as a loop; it is sent to other hubs only.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from edgehub.message import Message
from edgehub.mqtt.property_bag import PATH_PROPERTY, outgoing

if TYPE_CHECKING:
    from edgehub.mqtt.property_bag import Properties

HUBS_MAX: Final = 8
"""Longest path in a tree of hubs."""

PATH_HEADER: Final = "edgehub-path"
"""HTTP: the path of all messages of a request."""

_ID_CHARS: Final = 12
_PATH: Final = re.compile(r"[a-z2-7]{12}(?:\.[a-z2-7]{12})*").fullmatch
_FULL_CHARS: Final = HUBS_MAX * (_ID_CHARS + 1) - 1
_OF_A_HUB: Final = re.compile(r"[a-z2-7]{12}-[0-9a-f]{1,16}").fullmatch


class LoopError(ValueError):
    """A message has returned to a hub that it has passed."""


class HubPath:
    """Paths as one hub reads and writes them.

    Args:
        own: Id of its database.
    """

    def __init__(self, own: str) -> None:
        assert len(own) == _ID_CHARS, own
        self._own = own

    def entered(self, properties: Properties, system: Properties) -> Properties:
        """Return the properties of a message of a client that may be a hub, with a path if needed.

        Raises:
            LoopError: If it has passed this hub before.
        """
        path = properties.get(PATH_PROPERTY)
        message_id = system.get("messageId")
        if path is None:
            if not message_id or _OF_A_HUB(message_id):
                return properties
            # Its id does not show later that it came from another hub.
            return {**properties, PATH_PROPERTY: self._own}
        if message_id and message_id[:_ID_CHARS] == self._own and _OF_A_HUB(message_id):
            raise LoopError
        return {**properties, PATH_PROPERTY: self.extended(path)}

    def extended(self, path: str) -> str:
        """Return a path with this hub at its end.

        Raises:
            LoopError: If this hub is in it, or it is full.
        """
        if len(path) >= _FULL_CHARS or self._own in path.split("."):
            raise LoopError
        return f"{path}.{self._own}" if _PATH(path) else self._own

    def leaving(self, message: Message) -> Message:
        """Return a message as it may leave for another hub; see `outgoing`."""
        leaving = outgoing(message)
        # A message that may leave unchanged has no path.
        path = None if leaving is message else message.properties.get(PATH_PROPERTY)
        if path is None:
            message_id = message.system.get("messageId")
            if not message_id or not _OF_A_HUB(message_id):
                return leaving
            path = self._own
        return Message(
            leaving.device_id,
            leaving.module_id,
            leaving.source,
            {**leaving.properties, PATH_PROPERTY: path},
            leaving.system,
            leaving.body,
            leaving.expiry_ms,
            leaving.message_id,
        )

    def of(self, message: Message) -> str:
        """Return the whole path of a message, this hub at its end."""
        path = message.properties.get(PATH_PROPERTY)
        if path is not None:
            return path
        message_id = message.system.get("messageId")
        if message_id and _OF_A_HUB(message_id):
            return f"{message_id[:_ID_CHARS]}.{self._own}"
        return self._own

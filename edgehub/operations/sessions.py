"""Commands on sessions of MQTT clients, as the control socket carries them.

Owns nothing; asks the listener. Answers come in pages, so no number of sessions makes one long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import structlog

from edgehub.operations.arguments import optional_text, text, whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgehub.heads.mqtt.listener import MqttListener
    from edgehub.operations.operation import Command

    Arguments = Mapping[str, object]

PAGE_MAX: Final = 1000

log = structlog.get_logger(__name__)


class SessionCommands:
    """See the module."""

    __slots__ = ("_listener",)

    def __init__(self, listener: MqttListener) -> None:
        self._listener = listener

    def table(self) -> dict[str, Command]:
        """Return every command by its name."""
        return {"session list": self._list, "session end": self._end}

    async def _list(self, arguments: Arguments) -> dict[str, Any]:
        after = optional_text(arguments, "after") or ""
        limit = whole(arguments, "limit", default=100, maximum=PAGE_MAX)
        page = self._listener.session_documents(after, limit + 1)
        has_more = 0 < limit < len(page)
        return {
            "sessions": page[:limit],
            "next": page[limit - 1]["client_id"] if has_more else None,
        }

    async def _end(self, arguments: Arguments) -> dict[str, Any]:
        client_id = text(arguments, "client_id")
        dropped = await self._listener.end_session(client_id)
        if dropped is not None:
            log.info("mqtt.session_ended", client_id=client_id, dropped=dropped)
        return {"client_id": client_id, "ended": dropped is not None, "dropped": dropped or 0}

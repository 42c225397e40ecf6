"""Commands on sessions of MQTT clients, as the control socket carries them.

Owns nothing; asks the listener. Answers come in pages, so no number of sessions makes one long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog

from edgehub.operations.arguments import paged, text
from edgehub.operations.operation import Operation

if TYPE_CHECKING:
    from edgehub.heads.mqtt.listener import MqttListener


log = structlog.get_logger(__name__)


class SessionOperations:
    """Operations on sessions of MQTT clients."""

    __slots__ = ("_listener",)

    def __init__(self, listener: MqttListener) -> None:
        self._listener = listener

    def table(self) -> list[Operation]:
        """Return every operation."""
        return [
            Operation(
                name="session list",
                about="List sessions of MQTT clients, a page at a time.",
                handler=self._list,
                result="edgehub.operations.results.sessions:SessionsDocument",
                arguments=paged("Client id"),
            ),
            Operation(
                name="session end",
                about="End a session and remove what waits in it.",
                handler=self._end,
                result="edgehub.operations.results.sessions:EndedSession",
                arguments=(text("client_id", "Whose.", required=True),),
                changes=True,
            ),
        ]

    async def _list(self, *, limit: int, after: str | None = None) -> dict[str, Any]:
        page = self._listener.session_documents(after or "", limit + 1)
        has_more = 0 < limit < len(page)
        return {
            "sessions": page[:limit],
            "next": page[limit - 1]["client_id"] if has_more else None,
        }

    async def _end(self, *, client_id: str) -> dict[str, Any]:
        dropped = await self._listener.end_session(client_id)
        if dropped is not None:
            log.info("mqtt.session_ended", client_id=client_id, dropped=dropped)
        return {"client_id": client_id, "ended": dropped is not None, "dropped": dropped or 0}

"""How session and will of a client outlive its connection.

Owns both while the client is connected. Invariant: they are left behind once, when the connection
ends, and not at all when the hub itself leaves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgehub.mqtt.packets5 import expiry_s

if TYPE_CHECKING:
    from edgehub.heads.mqtt.connection import Connection
    from edgehub.heads.mqtt.services import Services
    from edgehub.local_message import LocalMessage
    from edgehub.message import Message
    from edgehub.mqtt.packets import Disconnect


class Lifetime:
    """What one client leaves behind.

    Args:
        session_expiry_s: Seconds that the session outlives the connection, None = for ever.
        will: Its will, None = it has none.
        will_delay_s: Seconds that the will waits for the client's return.

    Attributes:
        session_expiry_s: See above.
    """

    __slots__ = ("_will", "_will_delay_s", "session_expiry_s")

    def __init__(
        self, session_expiry_s: int | None, will: Message | LocalMessage | None, will_delay_s: int
    ) -> None:
        self.session_expiry_s = session_expiry_s
        self._will = will
        self._will_delay_s = will_delay_s

    def disconnect(self, packet: Disconnect) -> str:
        """Take over what a DISCONNECT says; gives what is wrong with it, empty = nothing."""
        if packet.session_expiry is not None:
            if self.session_expiry_s == 0 and packet.session_expiry:
                return "DISCONNECT lengthens a session that was to end with its connection"
            self.session_expiry_s = expiry_s(packet.session_expiry)
        if not packet.code:
            self.void_will()
        return ""

    def void_will(self) -> None:
        """Have no will sent, whatever ends the connection."""
        self._will = None

    def end(
        self, services: Services, client_id: str, connection: Connection, *, hub_leaves: bool
    ) -> None:
        """The connection is gone."""
        if hub_leaves:
            services.sessions.hub_leaves(client_id, connection)
            return
        services.sessions.leave(client_id, connection, expiry_s=self.session_expiry_s)
        if self._will is not None:
            delay_s = self._will_delay_s
            if self.session_expiry_s is not None:
                delay_s = min(delay_s, self.session_expiry_s)
            services.wills.add(client_id, self._will, delay_s)

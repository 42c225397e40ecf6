"""The parts of a connection once its client is signed in.

Owns how a CONNECT becomes these parts, in the client's protocol version, and what the client leaves
behind. Invariant: session and will are left once, when the connection ends; a hub that shuts down
leaves the session as it is and sends no will.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from edgehub.heads.mqtt.deliveries import Deliveries
from edgehub.heads.mqtt.ingress import Ingress
from edgehub.heads.mqtt.ingress5 import Ingress5
from edgehub.heads.mqtt.keep_alive import KeepAlive
from edgehub.heads.mqtt.local.client import LocalClient
from edgehub.heads.mqtt.local.ingress import LocalIngress
from edgehub.heads.mqtt.local.rights import rights_of
from edgehub.heads.mqtt.signature_expiry import SignatureExpiry
from edgehub.heads.mqtt.statistics import CloseReason, DropReason
from edgehub.heads.mqtt.subscriber import Subscriber
from edgehub.heads.mqtt.topics import BRIDGE_STATE
from edgehub.heads.mqtt.will import will_message
from edgehub.mqtt.packets import session_expiry
from edgehub.mqtt.subscription_options import NO_LOCAL, RETAIN_AS_PUBLISHED

if TYPE_CHECKING:
    from edgehub.heads.mqtt.client_connection import ClientConnection
    from edgehub.heads.mqtt.context import ListenerContext
    from edgehub.heads.mqtt.local.rights import LocalRights
    from edgehub.heads.mqtt.received import ReceivedIds
    from edgehub.heads.mqtt.responses import Responses
    from edgehub.heads.mqtt.sign_in import SignedInClient
    from edgehub.local_message import LocalMessage
    from edgehub.message import Message
    from edgehub.mqtt.packets import Connect, Disconnect


class ConnectedClient(Struct, kw_only=True, eq=False):
    """A signed-in client with the parts of its connection.

    Attributes:
        session_present: Whether the client finds its earlier session.
        session_expiry_s: Seconds that the session outlives the connection, None = for ever.
        will: Its will, None = it has none.
        will_delay_s: Seconds that the will waits for the client's return.
    """

    session_present: bool
    session_expiry_s: int | None
    will: Message | LocalMessage | None
    will_delay_s: int
    keep_alive: KeepAlive
    expiry: SignatureExpiry | None
    ingress: Ingress
    deliveries: Deliveries
    subscriber: Subscriber
    local: LocalClient

    def begin(self) -> None:
        """Restore the subscriptions of the session and send what waits in it; follows CONNACK."""
        self.subscriber.restore()
        self.local.attach()

    def disconnect(self, packet: Disconnect) -> str:
        """Apply a DISCONNECT; returns what is wrong with it, empty = nothing."""
        if packet.session_expiry is not None:
            if self.session_expiry_s == 0 and packet.session_expiry:
                return "DISCONNECT lengthens a session that was to end with its connection"
            self.session_expiry_s = session_expiry(packet.session_expiry)
        if not packet.code:
            self.will = None
        return ""

    def leave(
        self, context: ListenerContext, connection: ClientConnection, *, hub_leaves: bool
    ) -> None:
        """Release what the connection holds, and leave session and will behind.

        Args:
            context: Of the listener.
            connection: The connection that ends.
            hub_leaves: Whether the hub shuts down.
        """
        self.keep_alive.close()
        if self.expiry is not None:
            self.expiry.close()
        self.local.detach()
        client_id = self.ingress.client.id
        if hub_leaves:
            context.sessions.hub_leaves(client_id, connection)
        else:
            context.sessions.leave(client_id, connection, expiry_s=self.session_expiry_s)
            if self.will is not None:
                delay_s = self.will_delay_s
                if self.session_expiry_s is not None:
                    delay_s = min(delay_s, self.session_expiry_s)
                context.wills.add(client_id, self.will, delay_s)
        self.subscriber.leave()
        self.deliveries.close()
        self.ingress.leave()


def connect_client(
    connection: ClientConnection,
    context: ListenerContext,
    connect: Connect,
    client: SignedInClient,
    responses: Responses,
) -> ConnectedClient:
    """Build the parts of a connection, resume its session, and close an earlier connection.

    Raises:
        SignInError: If its will can never be sent, or there are too many clients or sessions.
    """
    settings = context.settings
    rights = rights_of(client.id, client.identity)
    will = None
    if connect.will is not None and connect.will.topic.startswith(BRIDGE_STATE):
        context.counters.dropped[DropReason.BRIDGE_STATE] += 1
    elif connect.will is not None:
        will = will_message(
            connect.will,
            client,
            context.space,
            rights,
            message_bytes_max=settings.message_bytes_max,
        )
    clean = connect.clean_session
    if connect.properties is not None:
        session_expiry_s = connect.properties.session_expiry_s
    else:
        session_expiry_s = 0 if clean else None
    durable = session_expiry_s != 0
    admitted = context.sessions.admit(client.id, connection, clean=clean, expiry_s=session_expiry_s)
    session = context.space.begin(client.id, clean=clean, durable=durable)
    deliveries = Deliveries(
        clock=context.clock,
        ack_timeout_s=settings.ack_timeout_s,
        write=connection.write,
        unresponsive=lambda: connection.close(CloseReason.UNRESPONSIVE),
        delivered=context.counters.count_delivered,
        properties=connect.properties,
    )
    local = LocalClient(context.space, session, rights, connection, deliveries)
    return ConnectedClient(
        session_present=admitted.is_present,
        session_expiry_s=session_expiry_s,
        will=will,
        will_delay_s=0 if connect.will is None else connect.will.delay_s,
        keep_alive=KeepAlive(
            connection,
            context.clock,
            keep_alive_s=connect.keep_alive_s,
        ),
        expiry=None
        if client.expires_s is None
        else SignatureExpiry(connection, context.clock, context.identities, client.expires_s),
        ingress=_ingress(connection, context, connect, client, rights, admitted.received),
        deliveries=deliveries,
        local=local,
        subscriber=Subscriber(
            connection,
            responses,
            client,
            context.index,
            local,
            admitted.subscriptions,
            subscriptions_max=context.limits.subscriptions_max,
            added_options=NO_LOCAL | RETAIN_AS_PUBLISHED if connect.bridge else 0,
            save=partial(context.sessions.save, client.id) if durable else None,
            log=context.log,
        ),
    )


def _ingress(
    connection: ClientConnection,
    context: ListenerContext,
    connect: Connect,
    client: SignedInClient,
    rights: LocalRights,
    received: ReceivedIds,
) -> Ingress:
    limit = context.settings.message_bytes_max
    local = LocalIngress(context.space, client.id, rights, message_bytes_max=limit)
    if connect.properties is None:
        return Ingress(context, client, connection, local, received)
    return Ingress5(
        context,
        client,
        connection,
        local,
        received,
        reasons=connect.properties.problem_information,
        answer_bytes_max=connect.properties.packet_bytes_max,
    )

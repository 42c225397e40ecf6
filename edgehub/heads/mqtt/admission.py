"""What a connection gets once its client is signed in.

Owns how a CONNECT becomes the parts of a connection, in the client's protocol version.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from edgehub.heads.mqtt.deliveries import Deliveries, Terms
from edgehub.heads.mqtt.ingress import Ingress
from edgehub.heads.mqtt.ingress5 import Ingress5
from edgehub.heads.mqtt.keep_alive import KeepAlive
from edgehub.heads.mqtt.lifetime import Lifetime
from edgehub.heads.mqtt.local.client import LocalClient
from edgehub.heads.mqtt.local.intake import LocalIntake
from edgehub.heads.mqtt.local.rights import rights_of
from edgehub.heads.mqtt.statistics import ClientInfo, CloseReason, DropReason
from edgehub.heads.mqtt.subscriber import Subscriber
from edgehub.heads.mqtt.topics import BRIDGE_STATE
from edgehub.heads.mqtt.will import will_message
from edgehub.mqtt.packets5 import NO_LOCAL, QOS, RETAIN_AS_PUBLISHED

if TYPE_CHECKING:
    from edgehub.heads.mqtt.answers import Answers
    from edgehub.heads.mqtt.connection import Connection
    from edgehub.heads.mqtt.local.rights import LocalRights
    from edgehub.heads.mqtt.received import ReceivedIds
    from edgehub.heads.mqtt.services import Services
    from edgehub.heads.mqtt.sign_in import Client
    from edgehub.mqtt.packets import Connect


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The parts of a signed-in connection.

    Attributes:
        session_present: Whether the client finds its session of before.
        level: Protocol level.
        since_s: When it was let in, on the monotonic clock.
    """

    session_present: bool
    level: int
    since_s: float
    lifetime: Lifetime
    keep_alive: KeepAlive
    ingress: Ingress
    deliveries: Deliveries
    subscriber: Subscriber[Connection]
    local: LocalClient

    def begin(self) -> None:
        """The client knows that it is in: bring what its session holds to life."""
        self.subscriber.restore()
        self.local.attach()

    def leave(self, services: Services, connection: Connection, *, hub_leaves: bool) -> None:
        """The connection is gone: give back what it held.

        Args:
            services: The listener's parts.
            connection: The connection.
            hub_leaves: Whether the hub itself ends it: no will, and the session waits for both.
        """
        self.keep_alive.close()
        self.local.detach()
        client_id = self.ingress.client.id
        self.lifetime.end(services, client_id, connection, hub_leaves=hub_leaves)
        self.subscriber.leave()
        self.deliveries.close()
        self.ingress.leave()

    def info(self, address: str, *, now_s: float, unsent_bytes: int, paused: bool) -> ClientInfo:
        """Describe the client and what it has."""
        client = self.ingress.client
        expiry_s = self.lifetime.session_expiry_s
        return ClientInfo(
            client_id=client.id,
            address=address,
            protocol_level=self.level,
            authenticated=client.identity is not None,
            clean_session=expiry_s == 0,
            session_expiry_s=expiry_s,
            keep_alive_s=self.keep_alive.seconds,
            connected_s=now_s - self.since_s,
            subscriptions={
                name: options & QOS for name, options in self.subscriber.subscriptions.items()
            },
            received_total=self.ingress.received_total,
            dropped_total=sum(self.ingress.dropped.values()),
            unacknowledged_bytes=self.ingress.bytes,
            in_flight=len(self.deliveries),
            unsent_bytes=unsent_bytes,
            paused=paused,
        )


def admit(
    connection: Connection, services: Services, connect: Connect, client: Client, answers: Answers
) -> Admission:
    """Let a client in: an earlier connection of it is closed, its session taken up.

    Raises:
        SignInError: If its will can never be sent, or there are too many clients or sessions.
    """
    context = services.context
    options = context.options
    rights = rights_of(client.id, client.identity)
    will = None
    if connect.will is not None and connect.will.topic.startswith(BRIDGE_STATE):
        context.counters.dropped[DropReason.BRIDGE_STATE] += 1
    elif connect.will is not None:
        will = will_message(
            connect.will,
            client,
            services.space,
            rights,
            message_bytes_max=options.message_bytes_max,
        )
    expiry_s = _session_expiry_s(connect)
    admitted = services.sessions.admit(
        client.id, connection, clean=connect.clean_session, expiry_s=expiry_s
    )
    session = services.space.begin(client.id, clean=connect.clean_session, durable=expiry_s != 0)
    deliveries = Deliveries(
        clock=context.clock,
        ack_timeout_s=options.ack_timeout_s,
        write=connection.write,
        unresponsive=lambda: connection.close(CloseReason.UNRESPONSIVE),
        delivered=context.counters.count_delivered,
        terms=_terms(connect),
    )
    local = LocalClient(services.space, session, rights, connection, deliveries)
    will_delay_s = 0 if connect.will is None else connect.will.delay_s
    return Admission(
        session_present=admitted.is_present,
        level=connect.level,
        since_s=context.clock.monotonic(),
        lifetime=Lifetime(expiry_s, will, will_delay_s),
        keep_alive=KeepAlive(
            connection,
            context.clock,
            keep_alive_s=connect.keep_alive_s,
            stall_timeout_s=options.stall_timeout_s,
        ),
        ingress=_ingress(connection, services, connect, client, rights, admitted.received),
        deliveries=deliveries,
        local=local,
        subscriber=Subscriber(
            connection,
            answers,
            client,
            services.index,
            local,
            admitted.subscriptions,
            subscriptions_max=options.subscriptions_max,
            added_options=NO_LOCAL | RETAIN_AS_PUBLISHED if connect.bridge else 0,
            save=None if expiry_s == 0 else partial(services.sessions.save, client.id),
            log=context.log,
        ),
    )


def _session_expiry_s(connect: Connect) -> int | None:
    if connect.properties is not None:
        return connect.properties.session_expiry_s
    return 0 if connect.clean_session else None


def _ingress(
    connection: Connection,
    services: Services,
    connect: Connect,
    client: Client,
    rights: LocalRights,
    received: ReceivedIds,
) -> Ingress:
    context = services.context
    limit = context.options.message_bytes_max
    local = LocalIntake(services.space, client.id, rights, message_bytes_max=limit)
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


def _terms(connect: Connect) -> Terms:
    if connect.properties is None:
        return Terms()
    return Terms(
        with_properties=True,
        receive_maximum=connect.properties.receive_maximum,
        packet_bytes_max=connect.properties.packet_bytes_max,
    )

"""The way into one hub: its heads, built from the settings.

Owns nothing; `hub.py` holds what is built here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgehub.entities.configured import local_topics
from edgehub.heads.mqtt.listener import MqttListener
from edgehub.heads.mqtt.local.options import LocalOptions
from edgehub.heads.mqtt.local.space import LocalSpace
from edgehub.heads.mqtt.options import ListenerOptions
from edgehub.store.local_space import LocalTable
from edgehub.store.sessions import SessionTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.clock import Clock
    from edgehub.devices.handshakes import ServerContext
    from edgehub.devices.identities import Identities
    from edgehub.heads.head import Refused, Submit
    from edgehub.heads.http.head import HttpHead
    from edgehub.router import Router
    from edgehub.settings import Settings
    from edgehub.store.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressParts:
    """What heads need from the rest of the hub.

    Attributes:
        hub_id: Device id of the hub itself.
        store: Keeps sessions and the local topic space.
        router: Takes messages.
        submit: Takes messages of devices; the router, or what elects them first.
        identities: Who may sign in.
        clock: For all timers.
    """

    hub_id: str
    store: Store
    router: Router
    submit: Submit
    identities: Identities
    clock: Clock


def build_listener(
    settings: Settings,
    parts: IngressParts,
    *,
    device_bound_interest: Callable[[str, bool], None],
    link_up: Callable[[], bool],
    tls: ServerContext | None,
) -> MqttListener:
    """Build the MQTT listener with the local topic space.

    Args:
        settings: The hub's.
        parts: See `IngressParts`.
        device_bound_interest: Told when a device begins or ceases to listen for messages to it.
        link_up: Whether the uplink is up.
        tls: Certificate for MQTT over TLS, None = there is none.
    """
    mqtt = settings.mqtt
    listener = MqttListener(
        options=ListenerOptions(
            host=mqtt.host,
            port=mqtt.port,
            tls_port=mqtt.tls_port,
            anonymous=mqtt.anonymous,
            clients_max=mqtt.clients_max,
            message_bytes_max=mqtt.message_bytes_max,
            connect_timeout_s=mqtt.connect_timeout_s,
            ack_timeout_s=mqtt.ack_timeout_s,
            store_qos0=mqtt.store_qos0,
        ),
        hub_id=parts.hub_id,
        clock=parts.clock,
        submit=parts.submit,
        offer=parts.router.offer,
        sessions=SessionTable(parts.store),
        space=_build_space(settings, parts),
        identities=parts.identities,
        device_bound_interest=device_bound_interest,
        link_up=link_up,
        refused=_account(parts.store),
        tls=tls,
    )
    parts.router.follow(lambda table: listener.follow_routes(table.mqtt_filters))
    return listener


def build_http(settings: Settings, parts: IngressParts) -> HttpHead | None:
    """Build the HTTP head, None = the settings have none."""
    http = settings.http
    if http.port is None:
        return None
    from edgehub.heads.http.head import HttpHead  # noqa: PLC0415 - loaded by hubs that serve HTTP only
    from edgehub.heads.http.options import HttpOptions  # noqa: PLC0415 - likewise

    return HttpHead(
        HttpOptions(
            host=http.host,
            port=http.port,
            anonymous=http.anonymous,
            host_names=http.host_names,
            certificate_file=http.certificate_file,
            key_file=http.key_file,
            connections_max=http.connections_max,
            message_bytes_max=http.message_bytes_max,
            batch_bytes_max=http.batch_bytes_max,
            body_timeout_s=http.body_timeout_s,
        ),
        clock=parts.clock,
        submit=parts.submit,
        refused=_account(parts.store),
        identities=parts.identities,
    )


def _account(store: Store) -> Refused:
    journal = store.journal
    return _untold if journal is None else journal.refused


def _untold(device: str, size: int, reason: str) -> None:
    """Stand in for the journal of a hub that keeps none."""


def _build_space(settings: Settings, parts: IngressParts) -> LocalSpace:
    mqtt = settings.mqtt
    space = LocalSpace(
        LocalOptions(
            topics=(*mqtt.local_topics, *local_topics(settings)),
            retained_max=mqtt.local_retained_max,
            retained_bytes_max=mqtt.local_retained_bytes_max,
            queue_max=mqtt.local_queue_max,
            queue_bytes_max=mqtt.local_queue_bytes_max,
            queues_bytes_max=mqtt.local_queues_bytes_max,
        ),
        LocalTable(parts.store, parts.clock, linger_ms=settings.store.commit_linger_ms),
        parts.clock,
        hub_id=parts.hub_id,
        known=parts.identities,
    )
    parts.store.count_beside(lambda: space.kept_bytes)
    return space

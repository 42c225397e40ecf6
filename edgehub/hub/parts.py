"""Which parts a hub has, and what each is built with: a new subsystem is one more of them.

Owns nothing. Invariants: a part gets what it works with when it is built, so none can be met half
made; nothing runs yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgehub.devices.identities import Identities
from edgehub.endpoints.client_uplink import ClientUplink
from edgehub.endpoints.manifest_topic import ManifestUplink
from edgehub.endpoints.relays import Relays
from edgehub.entities.tables import load_entities
from edgehub.heads.mqtt.client_routes import ClientRoutes
from edgehub.hub.broker import BrokerPart
from edgehub.hub.control import ControlPart
from edgehub.hub.device_bound import DeviceBoundPart
from edgehub.hub.devices import DevicesPart, load_flags
from edgehub.hub.endpoint_factory import EndpointFactory
from edgehub.hub.endpoints import EndpointsPart
from edgehub.hub.entities import EntitiesPart
from edgehub.hub.heads import HttpPart, MqttPart
from edgehub.hub.lora import LoraPart
from edgehub.hub.losses import LossesPart
from edgehub.hub.methods import MethodsPart
from edgehub.hub.queues import QueuesPart
from edgehub.hub.reload import ReloadPart
from edgehub.hub.routes import RoutesPart, build_router
from edgehub.hub.twins import TwinsPart
from edgehub.hub.upstream_manifest import UpstreamManifestPart
from edgehub.hub.web import WebPart
from edgehub.hub.workload import WorkloadPart

if TYPE_CHECKING:
    import asyncio
    import random
    from collections.abc import Callable, Sequence

    from edgehub.clock import Clock
    from edgehub.hub.journal import JournalPart
    from edgehub.hub.part import Part
    from edgehub.hub.status import HubStatus
    from edgehub.hub.store import StorePart
    from edgehub.hub.supervision import Supervision
    from edgehub.settings.configuration import Configuration
    from edgehub.settings.origin import LoadedSettings
    from edgehub.storage.state_file import StateFile

    Stages = tuple[Sequence[Part], Sequence[Part], tuple[RoutesPart, ReloadPart]]
    """The ways out, the heads, and what changes either: each runs inside of the one before."""


async def build_parts(  # noqa: PLR0913 - what a hub has one of, each by name
    configuration: Configuration,
    *,
    hub_id: str,
    kept: StorePart,
    journal: JournalPart,
    state: StateFile,
    shown: HubStatus,
    supervision: Supervision,
    reread: Callable[[], LoadedSettings],
    reload_wanted: asyncio.Event,
    clock: Clock,
    rng: random.Random,
) -> Stages:
    """Build the parts that come after store and journal.

    Args:
        configuration: What the hub starts with.
        hub_id: Its name.
        kept: The store.
        journal: What became of rows.
        state: The other database of the hub.
        shown: What the hub shows of itself.
        supervision: Of the tasks that parts start.
        reread: Reads the settings again for a reload.
        reload_wanted: Set to ask for a reload.
        clock: For all timers.
        rng: Randomness for jitter.
    """
    settings, store = configuration.settings, kept.store
    identities = Identities(lambda: clock.wall_ms() / 1000 if store.clock_trusted else None)
    identities.apply(configuration.identities)
    router = build_router(configuration, store, identities=identities, clock=clock)
    journal.follow(router)
    relays = Relays()
    flags = await load_flags(settings, store)
    devices = DevicesPart(
        settings,
        flags,
        hub_id=hub_id,
        store=store,
        state=state,
        router=router,
        clock=clock,
        supervision=supervision,
    )
    mqtt = MqttPart(
        configuration,
        hub_id=hub_id,
        store=store,
        router=router,
        submit=devices.take,
        identities=identities,
        relays=relays,
        clock=clock,
    )
    listener = mqtt.head
    device_bound = DeviceBoundPart(
        settings.device_bound,
        hub_id=hub_id,
        store=store,
        router=router,
        devices=devices,
        flags=flags,
        listener=listener,
        clock=clock,
    )
    entities = EntitiesPart(
        settings,
        await store.database.run(load_entities),
        hub_id=hub_id,
        store=store,
        router=router,
        space=listener.context.space,
        clock=clock,
        takes_qos0=listener.context.takes_qos0,
    )
    uplink, manifest = ClientUplink(hub_id), ManifestUplink()
    endpoints = EndpointsPart(
        EndpointFactory(
            settings,
            hub_id=hub_id,
            store=store,
            listener=listener,
            device_bound=device_bound.accept,
            clients=uplink,
            manifest=manifest,
            clock=clock,
            rng=rng,
        ),
        store=store,
        router=router,
        relays=relays,
        devices=devices,
        entities=entities,
        clock=clock,
        supervision=supervision,
    )
    routes = RoutesPart(
        configuration,
        hub_id=hub_id,
        router=router,
        state=state,
        endpoints=endpoints,
        clock=clock,
        rng=rng,
    )
    queues = QueuesPart(
        store=store,
        endpoints=endpoints,
        journal=journal,
        router=router,
        routes=routes,
        entities=entities,
        clock=clock,
        describe=shown.document,
    )
    clients = ClientRoutes(listener)
    twins = TwinsPart(
        settings,
        hub_id=hub_id,
        store=store,
        router=router,
        identities=identities,
        listener=listener,
        clients=clients,
        queues=devices.queues,
        uplink=uplink,
        clock=clock,
        owner=devices.other_owner,
    )
    upstream_manifest = UpstreamManifestPart(
        configuration, hub_id=hub_id, twins=twins.twins, uplink=manifest, routes=routes
    )
    methods = MethodsPart(
        listener=listener,
        clients=clients,
        queues=devices.queues,
        uplink=uplink,
        clock=clock,
        owner=devices.other_owner,
    )
    http = HttpPart(
        configuration,
        store=store,
        submit=devices.take,
        identities=identities,
        methods=methods.methods,
        clock=clock,
    )
    broker = BrokerPart(
        settings,
        hub_id=hub_id,
        store=store,
        router=router,
        submit=devices.take,
        listener=listener,
        clock=clock,
        rng=rng,
    )
    lora = LoraPart(
        configuration,
        devices=devices,
        mailboxes=device_bound.mailboxes,
        clock=clock,
    )
    workload = WorkloadPart(settings.workload, hub_id=hub_id, identities=identities, clock=clock)
    web = WebPart(
        settings.web,
        configuration.tokens,
        clock,
        phase=lambda: shown.phase,
        status=shown.document,
        table=routes.table,
        operations=shown.operations,
    )
    losses = LossesPart((routes, mqtt, http, entities, broker, endpoints, device_bound), clock)
    reload = ReloadPart(
        configuration,
        hub_id=hub_id,
        parts=(
            routes,
            mqtt,
            twins,
            upstream_manifest,
            http,
            lora,
            web,
            kept,
            journal,
            device_bound,
            endpoints,
            broker,
            workload,
        ),
        reread=reread,
        wanted=reload_wanted,
        reports=shown.reports,
    )
    control = ControlPart(
        settings.control_path, shown.operations, lambda: reload.configuration.loaded.digest
    )
    return (
        (
            endpoints,
            devices,
            device_bound,
            entities,
            twins,
            upstream_manifest,
            methods,
            queues,
            losses,
            control,
        ),
        (mqtt, http, broker, lora, workload, web),
        (routes, reload),
    )

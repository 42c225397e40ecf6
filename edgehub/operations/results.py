"""The results of operations, as the control socket, the HTTP API and `--json` have them.

The OpenAPI document is made of these types: the section `Attributes` describes members that their
names do not explain. Results may have further members; what stands here stays.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from edgehub.journal.search import FoundLines
from edgehub.sync.views import Applied, DriftReport, InstanceView, ManifestApplied, RouteStatus

__all__ = ["DriftReport", "FoundLines", "ManifestApplied"]


class Nothing(TypedDict):
    """An empty object."""


# The hub and its queues.


class DrainDocument(TypedDict):
    """When a queue will be empty.

    Attributes:
        state: `empty`, `drains`, `never`, `offline`, `unserved` or `unknown`.
        seconds: Time until then, null where it is not known.
    """

    state: str
    seconds: float | None


class QueueDocument(TypedDict):
    """One queue.

    Attributes:
        id: Such as `upstream_Pri0`.
        priority: 0 is the best; 2000000000 = the default one, behind 9.
        orphaned: No settings or route name its endpoint any more.
        depth: Messages, those in flight included.
        in_flight: Messages that the pump has taken, those kept out included.
        kept_out: Messages that the pump has and does not send: the peer may have closed the
            connection over them.
        oldest_age_s: Age of the oldest message, null = the queue is empty.
    """

    id: str
    endpoint: str
    priority: int
    state: str
    orphaned: bool
    depth: int
    bytes: int
    in_flight: int
    kept_out: int
    oldest_age_s: float | None
    enqueued: int
    sent: int
    expired: int
    dropped: int
    dead_lettered: int
    drain: DrainDocument


class EndpointDocument(TypedDict):
    """One endpoint and its pump.

    Attributes:
        reason: Why it does not send, empty = it does.
        mqtt_version: `3.1.1` or `5`, null = not connected, or another protocol.
        drain_eta_seconds: Time until nothing waits for it, null where it is not known.
    """

    id: str
    state: str
    reason: str
    mqtt_version: str | None
    in_flight_rows: int
    sent_total: int
    drain_eta_seconds: float | None


class StatusDocument(TypedDict):
    """The whole hub.

    Attributes:
        started: UTC of the start; counters count since then.
        phase: `starting`, `running`, `draining` or `stopped`.
        summary: In a few words, whether it delivers.
        degraded: The store is not as it should be.
        warnings: What an operator should look at.
        stalled: Endpoints whose pump does not progress.
        routes: Routes in force.
        unrouted: Messages that no route took.
    """

    hub_id: str
    version: str
    started: str
    phase: str
    summary: str
    degraded: bool
    warnings: list[str]
    stalled: list[str]
    routes: int
    unrouted: int
    store: dict[str, Any]
    endpoints: list[EndpointDocument]
    queues: list[QueueDocument]


class QueuesDocument(TypedDict):
    """All queues, by endpoint and priority.

    Attributes:
        started: UTC of the start; counters count since then.
    """

    started: str
    queues: list[QueueDocument]


# Messages.


class MessageDocument(TypedDict):
    """A message.

    Attributes:
        module: Null = the device itself sent it.
        properties: Names alone, or names and values with `payload`.
        body: The body as text, with `payload`.
        body_base64: The body, with `payload`, where it is no UTF-8.
    """

    id: str
    device: str
    module: str | None
    source: str
    body_bytes: int
    properties: list[str] | dict[str, str]
    system_properties: list[str] | dict[str, Any]
    body: NotRequired[str]
    body_base64: NotRequired[str]


class RowDocument(MessageDocument):
    """A message in a queue.

    Attributes:
        offset: Its place in the queue.
        ttl_s: Time to live, null = unlimited.
        expires_in_s: Likewise.
        closes: How often the peer closed the connection over it.
        routes: The routes that took it, the one that decides first.
    """

    offset: int
    queue: str
    state: str
    enqueued: str
    age_s: float
    ttl_s: float | None
    expires_in_s: float | None
    attempts: int
    closes: int
    routes: list[str]
    bytes: int


class PeekDocument(TypedDict):
    """The oldest messages of a queue, or of all queues of an endpoint.

    Attributes:
        depth: Messages in all.
    """

    queue: str
    depth: int
    rows: list[RowDocument]


class TakenOutDocument(TypedDict):
    """A step of a purge or move.

    Attributes:
        to: The other queue, null = a purge.
        in_flight: Messages that stay, since they are in flight or kept out.
        exceeds: Limits of the other queue that are exceeded.
        through: Offset of the last message.
        next_offset: `from_offset` of the next step, null = done.
        other_queues: With `dry_run`: messages by further queue of the endpoint.
    """

    queue: str
    to: str | None
    rows: int
    bytes: int
    in_flight: int
    exceeds: list[str]
    through: int
    next_offset: int | None
    other_queues: NotRequired[dict[str, int]]


class DeadLetterDocument(MessageDocument):
    """A dead letter.

    Attributes:
        dead_letter: Its number.
        kind: Kind of the refusal.
        dead: UTC at which it was given up.
    """

    dead_letter: int
    queue: str
    endpoint: str
    priority: int
    kind: str
    reason: str
    dead: str
    enqueued: str
    attempts: int
    routes: list[str]
    bytes: int


class DeadLettersDocument(TypedDict):
    """A page of dead letters.

    Attributes:
        total: Of all queues.
        next: `after` of the next page, null = this is the last.
    """

    total: int
    next: int | None
    dead_letters: list[DeadLetterDocument]


class RowsDocument(TypedDict):
    """How many dead letters were requeued or removed."""

    rows: int
    bytes: int


class TraceDocument(TypedDict):
    """What the journal has of a message.

    Attributes:
        complete: Earlier events, too.
    """

    complete: bool
    events: list[dict[str, Any]]


class WhyDocument(TypedDict):
    """Where a message is, and why.

    Attributes:
        asked: The id that was searched for.
        message: The hub's id, null = not known.
        by: Whose id was searched for, `hub` or `sender`.
        complete: All messages were searched.
        copies: One for each queue that holds it, with what it waits for.
        journal: Null = the hub keeps no journal, or the message is not known.
    """

    asked: str
    message: str | None
    by: str
    looked_at_rows: int
    complete: bool
    state: str
    copies_total: int
    copies: list[dict[str, Any]]
    dead_letters: list[DeadLetterDocument]
    journal: TraceDocument | None


# The journal.


class JournalClock(TypedDict):
    """Whether the wall clock is trusted, and why not."""

    trusted: bool
    reason: str


class JournalDocument(TypedDict):
    """The journal's figures, with `enabled`, and its targets."""

    enabled: bool
    folder: str
    targets: list[str]
    clock: JournalClock


class ExportPlan(TypedDict):
    """What is to be exported.

    Attributes:
        segments: Paths in the folder.
        complete: All events have their lines.
        growing: A segment is still written.
        held_segments: Segments held until the clock is trusted.
    """

    folder: str
    hub_id: str
    segments: list[str]
    complete: bool
    growing: bool
    held_segments: int
    clock: JournalClock


# Routes.


class RouteDocument(TypedDict):
    """One route of the table, with the members of a manifest's entry.

    Attributes:
        route: Its text; absent = it cannot be read.
        hash: SHA-256 of its canonical content.
        revision: Of its latest change; 0 = a manifest's file has it.
        origin: `api` or `manifest`.
        file: The manifest that it belongs to.
        state: On this hub: `running`, `failed`, `disabled` or `pending`.
        reason: Why it does not run.
        live_hash: Hash of what runs under the id.
        shared_with: Other ids with the same content.
    """

    id: str
    tenant: NotRequired[str]
    route: NotRequired[str]
    priority: NotRequired[int]
    timeToLiveSecs: NotRequired[int]
    enabled: bool
    hash: str
    revision: int
    origin: str
    file: str | None
    created: str | None
    modified: str | None
    state: str
    reason: str | None
    live_hash: str | None
    shared_with: list[str]


class ShownRoute(RouteDocument):
    """One route, and its state on every hub that shares the table.

    Attributes:
        instances: Empty while the table's storage is unreachable.
    """

    instances: list[RouteStatus]


class RoutesDocument(TypedDict):
    """A page of routes, by id.

    Attributes:
        next: `after` of the next page, null = this is the last.
        revision: Of the table.
    """

    routes: list[RouteDocument]
    next: str | None
    revision: int


class WrittenDocument(TypedDict):
    """The outcome of a change.

    Attributes:
        route: As it is now, null = removed.
        created: It is new.
        changed: False: the content was the same, nothing was stored.
        revision: Of the table after it.
        applied: With `wait` only, else null.
        warnings: What is accepted but probably a mistake.
    """

    route: RouteDocument | None
    created: bool
    changed: bool
    revision: int
    applied: Applied | None
    warnings: list[str]


class InstancesDocument(TypedDict):
    """The hubs that share the table."""

    instances: list[InstanceView]


class ExplanationDocument(TypedDict):
    """Which routes take a message.

    Attributes:
        of: `hub`: by the routes of the running hub.
        routes: With `outcome` and `reason` of each.
    """

    of: str
    manifest: str
    routes: list[dict[str, Any]]


class ManifestDocument(TypedDict):
    """The routes in force.

    Attributes:
        global_ttl_s: Time to live of routes without one of their own, null = unlimited.
    """

    file: str
    schema_version: str
    global_ttl_s: int | None
    routes: list[dict[str, Any]]
    warnings: list[str]


class ManifestDifferenceDocument(TypedDict):
    """What another manifest would change; `faults` alone if it is refused."""

    faults: list[dict[str, Any]]
    same: NotRequired[bool]
    routes: NotRequired[dict[str, Any]]
    class_changes: NotRequired[list[dict[str, Any]]]
    snapshots: NotRequired[list[dict[str, Any]]]
    queues: NotRequired[list[dict[str, Any]]]
    disk: NotRequired[dict[str, Any]]
    warnings: NotRequired[list[str]]


# Entities.

EntityDocument = TypedDict(
    "EntityDocument",
    {
        "@topic-id": str,
        "@type": str,
        "@id": str,
        "@parent": str | None,
        "@health": str | None,
        "name": str,
        "auto_registered": bool,
        "announced": bool,
    },
)
EntityDocument.__doc__ = """One entity.

Attributes:
    @topic-id: Four segments.
    @type: `device`, `child-device` or `service`.
    @id: Its id at the cloud.
    @parent: Null for the gateway.
    announced: False: the cloud has refused to create it.
"""


class EntitiesDocument(TypedDict):
    """Registered entities, the gateway first."""

    entities: list[EntityDocument]


class ShownEntity(EntityDocument):
    """One entity with its twin values.

    Attributes:
        children: Topic ids of those right below it.
    """

    twin: dict[str, Any]
    children: list[str]


class RegistrationDocument(TypedDict):
    """The outcome of a registration.

    Attributes:
        entity: Absent while it is pending.
        waits_for: Topic id of the parent that is missing, while it is pending.
        warning: Why automatic registration should be off; else absent.
    """

    outcome: Literal["registered", "updated", "unchanged", "pending"]
    entity: NotRequired[ShownEntity]
    waits_for: NotRequired[str | None]
    warning: NotRequired[str]


class RemovedEntities(TypedDict):
    """Topic ids of the removed entities."""

    removed: list[str]


class PendingRegistrations(TypedDict):
    """Messages of entities that are not registered.

    Attributes:
        messages: Held in all.
        entities: Those with most bytes first.
    """

    messages: int
    bytes: int
    evicted_total: int
    expired_total: int
    entities_total: int
    entities: list[dict[str, Any]]


# Devices and sessions.


class DeviceDocument(TypedDict):
    """A device that several hubs hear.

    Attributes:
        ownership: What this hub is for it.
        epoch: Number of the election.
        waiting: Messages that wait for an election.
        silent_s: Since it was last heard, null = not since the start.
    """

    device_id: str
    ownership: str
    epoch: int
    in_memory: bool
    session_open: bool
    waiting: int
    silent_s: float | None


class DevicesDocument(TypedDict):
    """A page of devices.

    Attributes:
        coordinator: What elects; `off` = nothing, and devices are not recorded.
        next: `after` of the next page, null = this is the last.
    """

    hub_id: str
    coordinator: str
    devices: list[DeviceDocument]
    next: str | None


class ElectionDocument(TypedDict):
    """A change of owner.

    Attributes:
        steal: This hub took the device from another.
        other: The other hub, null = none.
    """

    device_id: str
    time: str
    time_ms: int
    ownership: str
    former: str
    cause: str
    other: str | None
    epoch: int
    steal: bool


class ShownDevice(DeviceDocument):
    """One device, with its profile, session and newest changes of owner."""

    profile: dict[str, Any]
    session: dict[str, Any]
    queue: NotRequired[dict[str, Any]]
    connection: NotRequired[dict[str, Any]]
    ledger: list[ElectionDocument]


class LedgerDocument(TypedDict):
    """Changes of owner, and their number in the last hour and day."""

    hub_id: str
    entries: list[ElectionDocument]
    last_hour: dict[str, int]
    last_day: dict[str, int]


class ProfileDocument(TypedDict):
    """How a device is treated."""

    device_id: str
    deduplication: str
    gateway_id: str | None
    keep_alive_s: int


class ForgottenDocument(TypedDict):
    """Whether the registry had the device."""

    forgotten: bool


# LoRaWAN.


class LorawanDeviceDocument(TypedDict):
    """A LoRaWAN device.

    Attributes:
        activation: `otaa` = it joins, `abp` = it has one session for good.
        join_eui: Of its joins, null = any.
        dev_addr: Address of its session, null = it has none yet.
        joins: How often it has joined.
        f_cnt_up: Last frame counter that was heard.
        f_cnt_down: Downlink counters below this one may have been used.
        keys: Its keys, where they were asked for.
    """

    dev_eui: str
    name: str
    mac_version: str
    device_class: str
    activation: str
    join_eui: str | None
    dev_addr: str | None
    joins: int
    f_cnt_up: int
    f_cnt_down: int
    keys: NotRequired[dict[str, str]]


class LorawanDevicesDocument(TypedDict):
    """A page of LoRaWAN devices.

    Attributes:
        next: `after` of the next page, null = this is the last.
    """

    devices: list[LorawanDeviceDocument]
    next: str | None


class RemovedLorawanDevice(TypedDict):
    """Whether the device was registered."""

    dev_eui: str
    removed: bool


class ForgottenNonces(TypedDict):
    """How many DevNonces were forgotten."""

    dev_eui: str
    forgotten: int


class ImportedLorawanDevices(TypedDict):
    """What became of a list of devices.

    Attributes:
        added: Devices that were not registered.
        changed: Registered ones that were replaced.
        skipped: Registered ones that stayed.
    """

    added: int
    changed: int
    skipped: int


class LorawanStationDocument(TypedDict):
    """A LoRaWAN station.

    Attributes:
        for_s: Seconds since it connected, or since the connection ended.
        address: Host and port of the peer, null = not connected.
        version: Of its program, as it says; null = it has not connected since the start.
        model: Likewise.
        connects: Times it has connected since the start.
        frames: Frames of devices that it has sent.
        refused: Messages of it that were none.
        loops: Copies left alone, because it repeated the same bytes without end.
        downlinks: Answers that were handed to it.
    """

    station: str
    connected: bool
    for_s: float
    address: str | None
    version: str | None
    model: str | None
    connects: int
    frames: int
    refused: int
    loops: int
    downlinks: int


class LorawanStationsDocument(TypedDict):
    """The LoRaWAN stations that may connect."""

    stations: list[LorawanStationDocument]


# Sessions of MQTT clients.


class SessionsDocument(TypedDict):
    """A page of MQTT sessions.

    Attributes:
        next: `after` of the next page, null = this is the last.
    """

    sessions: list[dict[str, Any]]
    next: str | None


class EndedSession(TypedDict):
    """Whether there was a session, and how many of its messages were dropped."""

    client_id: str
    ended: bool
    dropped: int


# The configuration.


class ConfigurationDocument(TypedDict):
    """The settings in force.

    Attributes:
        running: True: a hub runs with them.
        settings: `value`, `origin` and `place` of each, by dotted key.
        derived: What follows from them.
    """

    running: bool
    settings: dict[str, dict[str, Any]]
    derived: dict[str, Any]


class ReloadDocument(TypedDict):
    """The outcome of a reload.

    Attributes:
        faults: Why it was refused.
        applied: Keys of settings that changed.
        needs_restart: Settings that change at the next start, with `key` and `wanted`.
        endpoints: What became of them, by `added`, `replaced`, `adjusted` and `removed`.
    """

    outcome: Literal["refused", "applied", "unchanged"]
    faults: list[dict[str, Any]]
    applied: list[str]
    needs_restart: list[dict[str, Any]]
    manifest_changed: bool
    identities_changed: bool
    tokens_changed: bool
    certificate_changed: bool
    files_changed: list[str]
    routes: int
    endpoints: dict[str, list[str]]
    warnings: list[str]

"""Which figures of the status are metrics, under which names.

Owns the names: a row here is all that a new figure needs. They are part of what the hub promises;
`docs/reference/http-api.md` lists them. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Labels = Mapping[str, object]
    Sample = tuple[Labels, float]
    Document = Mapping[str, Any]


class Figure(Struct, frozen=True):
    """One number of the status.

    Attributes:
        name: Of the metric, without the prefix; counters end in `_total`.
        about: Its meaning.
        path: Where it stands, dotted; a part that is absent or null gives no sample, a mapping at
            the end one for each member.
        label: For such a mapping, what its members are called.
        labels: Those that every sample has.
    """

    name: str
    about: str
    path: str
    label: str = ""
    labels: tuple[tuple[str, str], ...] = ()

    def samples(self, status: Document) -> Iterator[Sample]:
        """Return what the document has."""
        value: Any = status
        for part in self.path.split("."):
            value = None if value is None else value.get(part)
        labels = dict(self.labels)
        if isinstance(value, (int, float)):
            yield labels, value
        elif self.label and value is not None:
            for member, number in value.items():
                yield {**labels, self.label: member}, number


_MQTT: Final = (("head", "mqtt"),)
_HTTP: Final = (("head", "http"),)
_BROKER: Final = (("head", "broker"),)
_LORA: Final = (("head", "lora"),)

FIGURES: Final = (
    Figure("degraded", "1 while the store is not as it should be.", "degraded"),
    Figure("routes", "Routes in force.", "routes"),
    Figure("messages_unrouted_total", "Messages that no route took.", "unrouted"),
    Figure("head_connections", "Open connections.", "mqtt.connections", labels=_MQTT),
    Figure("head_connections", "", "http.connections", labels=_HTTP),
    Figure("head_clients", "Clients that have signed in.", "mqtt.clients", labels=_MQTT),
    Figure("head_clients", "", "lora.connected", labels=_LORA),
    Figure("lora_frames_total", "Frames that LoRaWAN stations have sent.", "lora.frames"),
    Figure(
        "lora_downlinks_total",
        "Answers to LoRaWAN devices by the window they were handed over for; missed = none was "
        "left, sent = the station reports that it sends.",
        "lora.downlinks",
        "window",
    ),
    Figure(
        "lora_payloads_total",
        "Payloads of devices with a decoder, by what became of them.",
        "lora.payloads",
        "result",
    ),
    Figure("messages_received_total", "Messages taken.", "mqtt.received_total", labels=_MQTT),
    Figure("messages_received_total", "", "http.messages_total", labels=_HTTP),
    Figure("messages_received_total", "", "broker.received_total", labels=_BROKER),
    Figure(
        "messages_dropped_total",
        "Messages that a head dropped, by reason.",
        "mqtt.dropped",
        "reason",
        _MQTT,
    ),
    Figure("messages_dropped_total", "", "broker.dropped", "reason", _BROKER),
    Figure(
        "head_connections_closed_total",
        "Connections that ended, by reason.",
        "mqtt.closed",
        "reason",
        _MQTT,
    ),
    Figure("head_answers_total", "Answers, by status.", "http.answers", "status", _HTTP),
    Figure("local_retained", "Retained messages of local topics.", "mqtt.local.retained"),
    Figure("local_queued", "Messages that wait for local clients.", "mqtt.local.queued"),
    Figure(
        "local_dropped_total",
        "Local messages that a client did not get, by reason.",
        "mqtt.local.dropped",
        "reason",
    ),
    Figure("twins", "Devices and modules that have a twin.", "twins.count"),
    Figure("twins_bytes", "Bytes of all twins.", "twins.bytes"),
    Figure(
        "twins_unsent",
        "Twins of which the peer upstream does not have all reports.",
        "twins.unsent",
    ),
    Figure("twins_local", "Twins that no peer upstream has.", "twins.local"),
    Figure("twin_requests_total", "Requests of clients about twins.", "twins.requests_total"),
    Figure("twin_requests_refused_total", "Of them refused.", "twins.refused_total"),
    Figure("methods_open", "Calls of methods without an answer yet.", "methods.open"),
    Figure("method_calls_total", "Calls of methods.", "methods.calls_total"),
    Figure("method_calls_failed_total", "Of them without an answer.", "methods.failed_total"),
    Figure(
        "device_messages_waiting",
        "Messages to devices that are not acknowledged.",
        "device_bound.waiting",
    ),
    Figure("device_messages_bytes", "Their bytes.", "device_bound.bytes"),
    Figure("device_messages_dead", "Dead letters to devices.", "device_bound.dead"),
    Figure(
        "device_messages_accepted_total",
        "Messages to devices that were stored.",
        "device_bound.accepted_total",
    ),
    Figure(
        "device_messages_ended_total",
        "Messages to devices, by what became of them.",
        "device_bound.ended_total",
        "outcome",
    ),
    Figure("entities", "Registered entities.", "entities.entities"),
    Figure("entities_held", "Messages held for unregistered entities.", "entities.held"),
    Figure("entities_held_bytes", "Their bytes.", "entities.held_bytes"),
    Figure(
        "entities_evicted_total",
        "Held messages given up for want of room.",
        "entities.evicted_total",
    ),
    Figure(
        "entities_expired_total", "Held messages that waited too long.", "entities.expired_total"
    ),
    Figure("entities_errors_total", "Messages that could not be used.", "entities.errors_total"),
    Figure(
        "entities_not_created", "Creations that the cloud refused.", "entities.creations_refused"
    ),
    Figure("store_rows", "Rows in all queues.", "store.rows"),
    Figure("store_bytes", "Their bytes.", "store.bytes"),
    Figure("store_failing_seconds", "So long nothing can be stored.", "store.failing_for_s"),
    Figure("store_commits_total", "Commits.", "store.commits_total"),
    Figure("store_commit_failures_total", "Commits that failed.", "store.commit_failures_total"),
    Figure("store_refused_total", "Messages that cannot be stored.", "store.refused_total"),
    Figure(
        "store_checkpoints_repaired_total",
        "Checkpoints that contradicted the rows at the start.",
        "store.checkpoint_repaired_total",
    ),
    Figure(
        "store_zones_repaired_total",
        "Queues whose zones contradicted the rows at the start.",
        "store.zone_repaired_total",
    ),
    Figure(
        "disk_written_bytes_total",
        "Bytes that the kernel has written to disk for the hub.",
        "written.bytes",
    ),
    Figure(
        "store_write_amplification",
        "The same for each byte of the rows that came in.",
        "written.per_row_byte",
    ),
    Figure("dead_letters", "Rows among the dead letters.", "store.dead_letter_rows"),
    Figure("dead_letter_bytes", "Their bytes.", "store.dead_letter_bytes"),
    Figure(
        "expiry_lag_seconds",
        "So long at most have expired rows waited for clean-up.",
        "store.expiry_lag_seconds",
    ),
    Figure("clock_trusted", "1 while the time of day is believed.", "store.clock.trusted"),
    Figure(
        "journal_lag_seconds",
        "Age of the oldest event without a line.",
        "journal.journal_lag_seconds",
    ),
    Figure("journal_bytes", "Space of the journal's files.", "journal.segment_bytes"),
    Figure(
        "journal_segments_not_exported", "Closed files not yet exported.", "journal.not_exported"
    ),
    Figure(
        "routing_table_revision",
        "Revision of the shared table that is in force.",
        "routing_table.applied_revision",
    ),
    Figure("routing_table_routes", "Routes of the table by their ids.", "routing_table.routes"),
    Figure("routing_table_live_routes", "Different routes that run.", "routing_table.live_routes"),
    Figure("routing_table_failed_routes", "Routes that cannot be built.", "routing_table.failed"),
    Figure(
        "routing_table_stale",
        "1 while the storage of the table is unreachable.",
        "routing_table.stale",
    ),
    Figure("sync_compared_total", "Comparisons with the storage.", "routing_table.compared_total"),
    Figure(
        "sync_drift_found_total",
        "Routes that differed from the storage.",
        "routing_table.drift_found_total",
    ),
    Figure(
        "sync_drift_repaired_total",
        "Such routes that were put right.",
        "routing_table.drift_repaired_total",
    ),
    Figure("sync_gaps_total", "Missed notices that were noticed.", "routing_table.gaps_total"),
    Figure("sync_reloads_total", "Times the table was read whole.", "routing_table.reloads_total"),
    Figure(
        "sync_restored_total",
        "Times this hub put back a table that its storage had lost.",
        "routing_table.restored_total",
    ),
    Figure("web_connections", "Open connections of this API.", "web.connections"),
    Figure("web_answers_total", "Answers of this API, by status.", "web.answers", "status"),
)

LIMITS: Final = (
    ("store_limit_reached_seconds", "So long a limit of the store is reached now.", "for_s"),
    ("store_limit_dropped", "Rows that have given way or were not stored since then.", "dropped"),
    ("store_limit_refused", "Messages refused to their senders since then.", "refused"),
)
"""While a limit is reached, and for a minute after; labels are the limit and its queue."""

QUEUES: Final = (
    ("queue_length", "Rows of a queue on disk, those in flight included.", "depth"),
    ("queue_bytes", "Bytes of a queue.", "bytes"),
    ("queue_in_flight", "Rows handed over and not confirmed, on disk or not yet.", "in_flight"),
    ("queue_oldest_age_seconds", "Age of the oldest row.", "oldest_age_s"),
    ("queue_oldest_expires_seconds", "Until the oldest row expires.", "oldest_expires_in_s"),
    (
        "queue_unserved_seconds",
        "Since the pump last took from it while it held rows.",
        "unserved_s",
    ),
    ("queue_orphaned", "1 while no settings or route name its endpoint.", "orphaned"),
    ("messages_enqueued_total", "Rows that came in.", "enqueued"),
    ("messages_sent_total", "Rows that were confirmed.", "sent"),
    ("messages_expired_total", "Rows that outlived their time.", "expired"),
    ("messages_displaced_total", "Rows that a limit of the store dropped.", "dropped"),
    ("messages_dead_lettered_total", "Rows that were refused for good.", "dead_lettered"),
    ("messages_moved_total", "Rows that changed to another queue.", "moved"),
    ("messages_purged_total", "Rows that an operator removed.", "purged"),
    ("messages_requeued_total", "Dead letters that an operator requeued.", "requeued"),
)

ENDPOINTS: Final = (
    ("endpoint_in_flight_rows", "Rows handed over and not settled.", "in_flight_rows"),
    ("endpoint_in_flight_bytes", "Their bytes on the link.", "in_flight_bytes"),
    ("endpoint_window_bytes", "Bound on unconfirmed bytes.", "window_bytes"),
    ("endpoint_rate_bytes_per_second", "Delivery rate.", "rate_bytes_s"),
    ("endpoint_round_trip_seconds", "Lowest round trip of the last minute.", "min_rtt_s"),
    ("endpoint_backoff_seconds", "Until the next try.", "backoff_remaining_s"),
    ("endpoint_drain_seconds", "Until nothing waits for it.", "drain_eta_seconds"),
    ("endpoint_sent_bytes_total", "Bytes on the link of what was confirmed.", "sent_bytes_total"),
)

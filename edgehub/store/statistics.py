"""Frozen snapshots of the store, for CLI, metrics and HTTP API."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from edgehub.message import EndpointId, Priority, QueueId
    from edgehub.store.boots import ClockStatistics
    from edgehub.store.salvage.damage import Damage, Missing


class QueueState(StrEnum):
    """The state of a queue."""

    IDLE = "idle"  # no rows
    WAITING = "waiting"  # rows wait, none is in flight
    SENDING = "sending"  # rows are in flight
    CHECKPOINTING = "checkpointing"  # results are in, their commit is not
    DELAYED = "delayed"  # rows wait, all that were read are held back
    CLOSED = "closed"  # the store is closed


class RowState(StrEnum):
    """The state of a row that is in the file, or is being stored."""

    BEING_STORED = "being stored"  # it waits for its commit, and for its turn
    WAITING = "waiting"  # its turn has not come
    IN_FLIGHT = "in_flight"  # handed to the endpoint, not confirmed
    KEPT_OUT = "kept_out"  # read and not sent: the peer may have closed the connection over it
    LEAVING = "leaving"  # it has a result whose commit is under way
    HELD = "held"  # held back after a refusal, its own or of an older row of its sender
    EXPIRED = "expired"  # its time to live has ended; clean-up deletes it


class QueueTotals(Struct):
    """What became of the rows of one queue since the start.

    Attributes:
        enqueued_total: Rows stored; the other totals alike.
        enqueued_bytes_total: Sum of the sizes of those rows.
        dropped_total: Rows evicted or dropped at a limit.
        moved_total: Rows moved to another queue: they became stale, or were moved by command.
        purged_total: Rows that an operator removed.
        requeued_total: Rows that came back from the dead letters.
    """

    enqueued_total: int = 0
    enqueued_bytes_total: int = 0
    sent_total: int = 0
    expired_total: int = 0
    dead_lettered_total: int = 0
    dropped_total: int = 0
    moved_total: int = 0
    purged_total: int = 0
    requeued_total: int = 0


class QueueStatistics(QueueTotals, frozen=True, kw_only=True):  # type: ignore[misc]  # a copy
    """One queue. Depth and bytes are those of the rows in the file, at any moment.

    Attributes:
        depth: Rows in the file, those in flight included.
        bytes: Sum of their sizes.
        oldest_enqueued_ms: Hub time of the lowest row, None = no rows.
        in_flight: Rows handed to the pump and not settled.
        checkpoint: All rows up to it have left.
    """

    id: QueueId
    endpoint_id: EndpointId
    priority: Priority
    state: QueueState
    depth: int
    bytes: int
    oldest_enqueued_ms: int | None
    in_flight: int
    checkpoint: int


class LimitStatistics(Struct, frozen=True, kw_only=True):
    """A cap that is reached.

    Attributes:
        cap: Which, for example `queue rows`.
        queue: Whose, None = the hub's.
        for_s: Seconds since it was reached.
        overflow: What happens to new messages.
        refused: Messages refused to their senders since then.
        dropped: Rows that were evicted or not stored since then.
    """

    cap: str
    queue: QueueId | None
    for_s: float
    overflow: str
    refused: int
    dropped: int


class StoreStatistics(Struct, frozen=True, kw_only=True):
    """The whole store.

    Attributes:
        durable: An acknowledged message is on disk.
        failing: Text of the error that keeps commits from succeeding, None = they succeed.
        failing_for_s: How long that has been so.
        rows: Rows over all queues.
        bytes: Sum of their sizes.
        pending_rows: Rows handed in and not committed.
        pending_bytes: Sum of their sizes.
        cache_bytes: Memory of rows held for the pump.
        next_offset: Offset of the next row.
        commits_total: Committed groups.
        committed_rows_total: Rows in them.
        early_rows_total: Rows confirmed before their commit and never written.
        commit_failures_total: Commits that failed and were tried again.
        refused_total: Messages not taken.
        checkpoint_repaired_total: Checkpoints found wrong at start.
        zone_repaired_total: Queues whose zone rows were rebuilt at start.
        dead_letter_rows: Dead letters kept.
        dead_letter_bytes: Sum of their sizes.
        dead_letters: How many are kept of each queue that has any.
        wal_bytes_total: Bytes written to the WAL, up to its last checkpoint.
        wal_bytes: Size of the WAL after its last checkpoint.
        wal_held_for_s: Seconds for which another process that reads the file has kept the WAL from
            being emptied, None = none does.
        row_bytes_total: Sum of the sizes of committed rows.
        damage: Losses by damage of the file, None = none, or an operator has removed the file.
        missing: `file` or `log`: it was missing at the start, though a hub had left it.
        damaged_logs: Names of damaged logs of the file that were set aside and still existed at the
            start.
        expiry_lag_seconds: Longest time that an expired row may have waited for clean-up.
        clock: State of the wall clock.
        limits: The caps that are reached.
    """

    durable: bool
    failing: str | None
    failing_for_s: float
    rows: int
    bytes: int
    pending_rows: int
    pending_bytes: int
    cache_bytes: int
    next_offset: int
    commits_total: int
    committed_rows_total: int
    early_rows_total: int
    commit_failures_total: int
    refused_total: int
    checkpoint_repaired_total: int
    zone_repaired_total: int
    dead_letter_rows: int
    dead_letter_bytes: int
    dead_letters: Mapping[QueueId, int]
    wal_bytes_total: int
    wal_bytes: int
    wal_held_for_s: float | None
    row_bytes_total: int
    damage: Damage | None
    missing: Missing | None
    damaged_logs: Sequence[str]
    expiry_lag_seconds: float
    clock: ClockStatistics
    limits: list[LimitStatistics]

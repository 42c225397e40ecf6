"""Options of the store: limits, commit delay, clean-up; every buffer has its bound here."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct, field

from edgehub.store.caps import Caps

MIB = 1024 * 1024
DAY_S = 86_400
COMMIT_DELAY_MS_MAX = 1000


class ClockTrust(StrEnum):
    """When the wall clock is trusted."""

    AUTO = "auto"  # once the kernel reports that it is synchronised
    ALWAYS = "always"  # unless it shows an impossible time
    NEVER = "never"


class TtlWhileOff(StrEnum):
    """Whether times to live run while the machine is off."""

    COUNT = "count"
    PAUSE = "pause"


class StoreOptions(Struct, frozen=True, kw_only=True):
    """Settings of one store.

    Attributes:
        durable: Messages are kept on disk; False = in memory, as long as the process lives.
        commit_delay_ms: 0 = adaptive (up to 2 ms while traffic is steady); 1 to 1000 = each
            row waits for its commit this long, confirmations too, to spare flash.
        check_entire_queue_on_cleanup: Clean-up checks all rows; False = it stops at the first row
            that has not expired.
        cache_bytes_max: Memory for rows just committed or read ahead, over all queues.
        pending_bytes_max: Memory for rows that wait for their commit; above it they are refused.
        wal_bytes_max: Written bytes after which the WAL goes into the database file.
        dead_letter_rows_max: Dead letters kept.
        dead_letter_bytes_max: Bytes of dead letters kept.
        dead_letter_age_s_max: Age at which a dead letter goes.
        journal: Events of rows are written for the journal.
        journal_bytes_max: Events that wait for the journal one by one; beyond it only sums are
            kept.
        clock_trust: How the wall clock is judged.
        ttl_while_off: Whether times to live run while the machine is off; `pause` stops them while
            the hub is off, too.
        caps: Limits of rows, bytes and disk, and what happens at them.
    """

    durable: bool = True
    commit_delay_ms: int = 0
    check_entire_queue_on_cleanup: bool = True
    cache_bytes_max: int = 16 * MIB
    pending_bytes_max: int = 128 * MIB
    wal_bytes_max: int = 16 * MIB
    dead_letter_rows_max: int = 10_000
    dead_letter_bytes_max: int = 64 * MIB
    dead_letter_age_s_max: int = 30 * DAY_S
    journal: bool = False
    journal_bytes_max: int = 64 * MIB
    clock_trust: ClockTrust = ClockTrust.AUTO
    ttl_while_off: TtlWhileOff = TtlWhileOff.COUNT
    caps: Caps = field(default_factory=Caps)

    def __post_init__(self) -> None:
        assert 0 <= self.commit_delay_ms <= COMMIT_DELAY_MS_MAX, self.commit_delay_ms

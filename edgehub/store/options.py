"""What can be set about the store: limits, linger, clean-up.

Owns the defaults. Every buffer of the store has its bound here.
"""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024
DAY_S = 86_400
COMMIT_LINGER_MS_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Settings of one store.

    Attributes:
        commit_linger_ms: 0 = adaptive (up to 2 ms while traffic is steady); 1 to 1000 = each
            group waits so long for more, confirmations too, to spare flash.
        check_entire_queue_on_cleanup: Clean-up looks at all rows; False = stops at the first row
            that has not expired.
        cache_bytes_max: Memory for rows just committed or read ahead, over all queues.
        pending_bytes_max: Memory for rows that wait for their commit; above it they are refused.
        wal_bytes_max: Written bytes after which the WAL goes into the database file.
        dead_letter_rows_max: Dead letters kept.
        dead_letter_bytes_max: Bytes of dead letters kept.
        dead_letter_age_s_max: Age at which a dead letter goes.
    """

    commit_linger_ms: int = 0
    check_entire_queue_on_cleanup: bool = True
    cache_bytes_max: int = 16 * MIB
    pending_bytes_max: int = 128 * MIB
    wal_bytes_max: int = 16 * MIB
    dead_letter_rows_max: int = 10_000
    dead_letter_bytes_max: int = 64 * MIB
    dead_letter_age_s_max: int = 30 * DAY_S

    def __post_init__(self) -> None:
        assert 0 <= self.commit_linger_ms <= COMMIT_LINGER_MS_MAX, self.commit_linger_ms

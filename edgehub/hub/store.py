"""What the settings mean for the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgehub.store import Caps, Overflow
from edgehub.store.options import ClockTrust, StoreOptions, TtlWhileOff

if TYPE_CHECKING:
    from edgehub.settings import Settings, StoreSettings


def store_options(settings: Settings) -> StoreOptions:
    """Give the options to open the store with."""
    store = settings.store
    return StoreOptions(
        durable=store.durable,
        commit_linger_ms=store.commit_linger_ms,
        check_entire_queue_on_cleanup=store.check_entire_queue_on_cleanup,
        cache_bytes_max=store.cache_bytes,
        clock_trust=ClockTrust(settings.clock.trust),
        ttl_while_off=TtlWhileOff(settings.clock.ttl_while_off),
        journal=settings.journal.enabled,
        caps=store_caps(store),
    )


def store_caps(settings: StoreSettings) -> Caps:
    """Give the limits of the queues as the store wants them."""
    size, share = _size_and_share(settings.bytes_max)
    free, free_share = _size_and_share(settings.free_bytes_min)
    return Caps(
        rows=settings.rows_max,
        bytes=size,
        bytes_percent=share,
        queue_rows=settings.queue_rows_max,
        queue_bytes=settings.queue_bytes_max,
        free_bytes_min=free,
        free_percent=free_share,
        overflow=Overflow(settings.overflow),
    )


def _size_and_share(value: int | str) -> tuple[int, int]:
    return (value, 0) if isinstance(value, int) else (0, int(value.removesuffix("%")))

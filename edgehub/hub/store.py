"""The store as a part of the hub, and what the settings mean for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import structlog
from msgspec import to_builtins

from edgehub.clock import utc_text
from edgehub.errors import StoreError
from edgehub.hub import status
from edgehub.hub.part import Part
from edgehub.store import Caps, Overflow
from edgehub.store.options import ClockTrust, StoreOptions, TtlWhileOff

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgehub.heads.head import Refused
    from edgehub.settings import Settings, StoreSettings
    from edgehub.settings.configuration import Configuration
    from edgehub.store.store import Store

FLUSH_TIMEOUT_S: Final = 5.0
"""Time to commit what was taken, after the drain; beyond it the process ends regardless."""

log = structlog.get_logger(__name__)


class StorePart(Part):
    """What is kept of a hub: its name, its start, its queues.

    Args:
        hub_id: The hub's name.
        store: Open.

    Attributes:
        store: The same.
    """

    name = "store"

    def __init__(self, hub_id: str, store: Store) -> None:
        self._hub_id = hub_id
        self.store = store
        self._started_ms = store.hub_time.now_ms()

    async def run(self) -> None:
        """Commit groups until cancelled."""
        await self.store.run()

    async def drain(self, deadline: float) -> None:
        """Commit what was taken, for `FLUSH_TIMEOUT_S` at most."""
        del deadline
        try:
            async with asyncio.timeout(FLUSH_TIMEOUT_S):
                await self.store.writer.flush()
        except (TimeoutError, StoreError) as error:
            failing = self.store.statistics().failing or str(error) or None
            log.warning("hub.flush_cut_short", failing=failing)

    async def reload(self, configuration: Configuration) -> Mapping[str, Any]:
        """Adjust limits and cache."""
        store = configuration.settings.store
        self.store.adjust(
            check_entire_queue_on_cleanup=store.check_entire_queue_on_cleanup,
            cache_bytes_max=store.cache_bytes,
            caps=store_caps(store),
        )
        return {}

    def status(self) -> dict[str, Any]:
        """Return the hub's name and start, the store's figures and what was written to disk."""
        figures = self.store.statistics()
        return {
            "hub_id": self._hub_id,
            "started": utc_text(self.store.utc_ms(self._started_ms)),
            "degraded": bool(status.store_warnings(figures)),
            "store": to_builtins(figures),
            "written": status.written_document(self.store.queues.all()),
        }

    def warnings(self) -> list[str]:
        """List faults of disk and database, limits that are reached, and dead letters."""
        figures = self.store.statistics()
        return [
            *status.store_warnings(figures),
            *status.dead_letter_warnings(figures.dead_letters),
        ]


def store_options(settings: Settings) -> StoreOptions:
    """Return the options to open the store with."""
    store = settings.store
    return StoreOptions(
        durable=store.durable,
        commit_delay_ms=store.commit_delay_ms,
        check_entire_queue_on_cleanup=store.check_entire_queue_on_cleanup,
        cache_bytes_max=store.cache_bytes,
        clock_trust=ClockTrust(settings.clock.trust),
        ttl_while_off=TtlWhileOff(settings.clock.ttl_while_off),
        journal=settings.journal.enabled,
        caps=store_caps(store),
    )


def store_caps(settings: StoreSettings) -> Caps:
    """Return the limits of the queues as the store wants them."""
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


def refusals(store: Store) -> Refused:
    """Return what records messages that are not taken; without a journal they are only counted."""
    return _unrecorded if store.journal is None else store.journal.refused


def _unrecorded(device: str, size: int, reason: str) -> None:
    """Stand in for the journal of a hub that keeps none."""


def _size_and_share(value: int | str) -> tuple[int, int]:
    return (value, 0) if isinstance(value, int) else (0, int(value.removesuffix("%")))

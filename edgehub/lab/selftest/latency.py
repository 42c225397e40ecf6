"""How long the disk takes to make something durable: bare syncs, and commits of the hub's store.

Owns the probe files. Invariant: each measurement ends after a number of steps or a time, whichever
comes first, so a slow disk costs seconds, not minutes.
"""

from __future__ import annotations

import asyncio
import math
import os
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from edgehub.errors import StartupError
from edgehub.lab.selftest.scratch import SelfTestError
from edgehub.message import DEFAULT_PRIORITY, UPSTREAM, Message, RouteResult
from edgehub.store import Store, StoreOptions
from edgehub.store.group import GROUP_ROWS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from edgehub.clock import Clock
    from edgehub.message import Refusal

WRITE_BYTES: Final = 4096
WRITES: Final = 200
COMMITS: Final = 50
GROUP_ROWS: Final = GROUP_ROWS_MAX
GROUPS: Final = 8
BODY_BYTES: Final = 200
STEP_S_MAX: Final = 3.0
STORE_TIMEOUT_S: Final = 60.0

_RESULTS: Final = (
    RouteResult(endpoint_id=UPSTREAM, priority=DEFAULT_PRIORITY, ttl_ms=None, routes=("selftest",)),
)


class Latency(Struct, frozen=True, kw_only=True):
    """Times of one kind of step.

    Attributes:
        count: How many were measured.
        median_ms: Half took no longer.
        p99_ms: 99 of 100 took no longer.
        max_ms: The longest.
    """

    count: int
    median_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of(cls, times_s: Sequence[float]) -> Latency:
        """Sum up times in seconds, one at least."""
        ordered = [time_s * 1000 for time_s in sorted(times_s)]
        return cls(
            count=len(ordered),
            median_ms=round(ordered[math.ceil(0.5 * len(ordered)) - 1], 3),
            p99_ms=round(ordered[math.ceil(0.99 * len(ordered)) - 1], 3),
            max_ms=round(ordered[-1], 3),
        )


class DiskLatency(Struct, frozen=True, kw_only=True):
    """What was measured.

    Attributes:
        fsync: A write of 4 KiB and its fsync.
        fdatasync: A write of 4 KiB and its fdatasync, which is what SQLite calls.
        commit: One message handed to the store, until it is durable.
        group_commit: `GROUP_ROWS` messages handed over together, until all are.
    """

    fsync: Latency
    fdatasync: Latency
    commit: Latency
    group_commit: Latency

    @property
    def rate_single_per_s(self) -> float:
        """Durable messages per second if each waits for the one before."""
        return _per_second(1, self.commit)

    @property
    def rate_group_per_s(self) -> float:
        """Durable messages per second in full groups: more this store does not commit here."""
        return _per_second(GROUP_ROWS, self.group_commit)


async def measure_disk(folder: Path, clock: Clock) -> DiskLatency:
    """Measure in an existing folder; its files stay.

    Raises:
        OSError: The disk refuses.
        SelfTestError: The store does not open, or cannot commit.
    """
    fsync = await asyncio.to_thread(_measure_sync, folder / "fsync", os.fsync, clock)
    fdatasync = await asyncio.to_thread(_measure_sync, folder / "fdatasync", os.fdatasync, clock)
    try:
        async with asyncio.timeout(STORE_TIMEOUT_S):
            commit, group_commit = await _measure_store(folder / "queue.db", clock)
    except StartupError as error:
        raise SelfTestError(f"the hub's store does not start here: {error}") from error
    except TimeoutError as error:
        raise SelfTestError(
            f"a few commits took more than {STORE_TIMEOUT_S:.0f} s in {folder}"
            " (is the disk full or failing?)"
        ) from error
    return DiskLatency(fsync=fsync, fdatasync=fdatasync, commit=commit, group_commit=group_commit)


def _measure_sync(path: Path, sync: Callable[[int], None], clock: Clock) -> Latency:
    # One thread from open to close: a cancelled task leaves it no descriptor that was reused.
    block = bytes(WRITE_BYTES)
    times_s: list[float] = []
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        end_s = clock.monotonic() + STEP_S_MAX
        while len(times_s) < WRITES and (not times_s or clock.monotonic() < end_s):
            began_s = clock.monotonic()
            os.write(descriptor, block)
            sync(descriptor)
            times_s.append(clock.monotonic() - began_s)
    finally:
        os.close(descriptor)
    return Latency.of(times_s)


async def _measure_store(path: Path, clock: Clock) -> tuple[Latency, Latency]:
    store = await Store.open(path, clock=clock, options=StoreOptions())
    try:
        async with asyncio.TaskGroup() as group:
            writer = group.create_task(store.run(), name="probe store")
            commit = await _measure_commits(store, 1, COMMITS, clock)
            group_commit = await _measure_commits(store, GROUP_ROWS, GROUPS, clock)
            writer.cancel()
    finally:
        await store.close()
    return commit, group_commit


async def _measure_commits(store: Store, rows: int, count: int, clock: Clock) -> Latency:
    times_s: list[float] = []
    end_s = clock.monotonic() + STEP_S_MAX
    while len(times_s) < count and (not times_s or clock.monotonic() < end_s):
        began_s = clock.monotonic()
        for token in range(rows):
            message = Message("probe", None, "/messages/", {}, {}, bytes(BODY_BYTES))
            store.appender.append(message, _RESULTS, _expect_stored, token)
        await store.writer.flush()
        times_s.append(clock.monotonic() - began_s)
    return Latency.of(times_s)


def _expect_stored(_token: int, refusal: Refusal | None) -> None:
    assert refusal is None, refusal


def _per_second(rows: int, latency: Latency) -> float:
    return round(rows * 1000 / max(latency.median_ms, 0.001), 1)

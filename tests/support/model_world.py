"""A store, its router and two pumps on a stepped disk and clock, watched by a list model."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from edgehub.message import (
    DEFAULT_PRIORITY,
    DELIVERED,
    NEVER_MS,
    UPSTREAM,
    EndpointId,
    FailureKind,
    Order,
    Priority,
    SendResult,
)
from edgehub.pump.refused_senders import HOLD_S
from edgehub.routes.manifest import parse_manifest
from edgehub.routes.table import RouteTable
from edgehub.store import Caps, Overflow, StoreOptions
from tests.support.model import Ledger, token_of
from tests.support.model_hub import Life
from tests.support.stepped_disk import SteppedClock
from tests.support.stores import LAB, FaultPlan, a_message, crash_copy

if TYPE_CHECKING:
    from pathlib import Path

    from edgehub.message import Message, Refusal
    from tests.support.model import Rows
    from tests.support.model_rows import Key

KINDS = ("alarm", "bulk", "brief")
Target = tuple[EndpointId, int, int, int, int]
"""Endpoint, priority, time to live in seconds (0 = never ends), seconds of freshness (0 = none) and
the priority after them."""

MANIFESTS: tuple[dict[str, list[Target]], ...] = (
    {
        "alarm": [(UPSTREAM, 0, 0, 10, 3)],
        "bulk": [(UPSTREAM, 7, 0, 0, 0), (LAB, 2, 60, 20, 7)],
        "brief": [(UPSTREAM, 3, 20, 0, 0)],
    },
    {
        "alarm": [(UPSTREAM, 0, 0, 0, 0), (LAB, 2, 0, 5, DEFAULT_PRIORITY)],
        "bulk": [(UPSTREAM, 7, 30, 0, 0)],
        "brief": [],
    },
    {
        "alarm": [(UPSTREAM, 3, 0, 30, 7)],
        "bulk": [(UPSTREAM, 3, 0, 0, 0)],
        "brief": [(LAB, DEFAULT_PRIORITY, 7, 0, 0)],
    },
)
"""Each leaves queues behind that others fill, so that they only drain."""

REFUSALS = (
    SendResult(FailureKind.TRANSIENT, "later"),
    SendResult(FailureKind.TRANSIENT, "later"),
    SendResult(FailureKind.THROTTLED, "slowly"),
    SendResult(FailureKind.THROTTLED, "slowly", 40.0),
    SendResult(FailureKind.NOT_AUTHORIZED, "not yours"),
    SendResult(FailureKind.NOT_AUTHORIZED, "not yours"),
    SendResult(FailureKind.TIMEOUT, "no answer"),
    SendResult(FailureKind.REJECTED, "never"),
    SendResult(FailureKind.TOO_LARGE, "too much"),
    SendResult(FailureKind.UNAUTHORIZED, "who?"),
)
DENIED = SendResult(FailureKind.NOT_AUTHORIZED, "not yours")
FAULTS = (
    ("BEGIN IMMEDIATE", "SQLITE_BUSY"),
    ("COMMIT", "SQLITE_FULL"),
    ("INSERT INTO q_", "SQLITE_FULL"),
    ("INSERT INTO q_", "SQLITE_TOOBIG"),
    ("DELETE FROM q_", "SQLITE_IOERR"),
    ("UPDATE q_", "SQLITE_FULL"),
    ("SELECT q.offset", "SQLITE_IOERR"),
    ("PRAGMA wal_checkpoint", "SQLITE_BUSY"),
)
COMMIT_PAUSE_S = 5.0
"""A commit that failed is tried again after so long at most; clean-up waits behind it."""
ROWS_MAX = 25
"""Of the hub, where there is a limit."""
CLEAN_UP_S = 13.0
"""Two rounds of the clean-up, for times to live of up to 60 s."""
SETTLED_SHARE = 0.8
IDLE_TURNS = 12
TURNS_MAX = 20_000


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What stays the same in one history."""

    linger_ms: int = 0
    cache_bytes: int = 1 << 20
    entire_clean_up: bool = True
    orders: tuple[Order, Order] = (Order.STRICT, Order.STRICT)
    max_attempts: int = 0
    overflow: Overflow | None = None
    seed: int = 0

    def options(self) -> StoreOptions:
        """Return the options of the store; its log is short, so that it is emptied often."""
        return StoreOptions(
            commit_delay_ms=self.linger_ms,
            cache_bytes_max=self.cache_bytes,
            check_entire_queue_on_cleanup=self.entire_clean_up,
            wal_bytes_max=200_000,
            caps=Caps() if self.overflow is None else Caps(rows=ROWS_MAX, overflow=self.overflow),
        )


class World:
    """One history. Every method but the checks is something that happens."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.plan = plan
        self.rng = random.Random(plan.seed)
        self.orders = dict(zip((UPSTREAM, LAB), plan.orders, strict=True))
        self.clock = SteppedClock()
        self.faults = FaultPlan()
        strict = {endpoint: order is Order.STRICT for endpoint, order in self.orders.items()}
        self.ledger = Ledger(strict, plan.max_attempts, plan.overflow)
        self.delivers = {UPSTREAM: False, LAB: False}
        self._folder = folder
        self._path = folder / "0" / "queue.db"
        self._lives = 0
        self._messages: list[Message] = []
        self._manifest = 0
        self._sound_since_s = 0.0
        self._raised = 0
        self._depth_before = 0
        """Rows found at the start: what lies above a limit stays."""
        self._life: Life

    @property
    def now(self) -> tuple[float, int]:
        """Time of the clock in seconds, and hub time."""
        return self.clock.monotonic(), self._life.store.hub_time.now_ms()

    @property
    def is_failing(self) -> bool:
        """Return whether the disk may fail."""
        return self.faults.is_armed

    async def start(self) -> None:
        """Open the file, compare it with the model, and start."""
        self.faults.heal()
        self._life = life = Life(self)
        await life.open(self._path)
        found = life.disk.look(self._rows)
        self.ledger.started(found)
        self.ledger.notice_all_moves(found, self.now[1])
        # Of a queue all of whose messages were dropped the file does not know.
        for key in [*found, *(self.ledger.lines.keys() - found.keys())]:
            self.ledger.check_rows(key, found.get(key, {}), self.now[1], stored=True)
        self._check_dead(life.disk.look(_dead))
        self._depth_before = sum(len(rows) for rows in found.values())
        await life.begin()
        await self.settle()

    async def append(self, kind: str, device: str, count: int, size: int) -> None:
        """Hand in some messages."""
        targets = MANIFESTS[self._manifest][kind]
        for _ in range(count):
            token = len(self._messages)
            now_ms = self.now[1]
            expiries = [
                (
                    (endpoint, Priority(p)),
                    now_ms + ttl_s * 1000 if ttl_s else NEVER_MS,
                    ((endpoint, Priority(later)), now_ms + fresh_s * 1000) if fresh_s else None,
                )
                for endpoint, p, ttl_s, fresh_s, later in targets
            ]
            self.ledger.append(token, device, now_ms, expiries)
            body = f"{token}|".ljust(size, "x").encode()
            message = a_message(device, body, properties={"kind": kind})
            self._messages.append(message)
            self._life.router.submit(message, partial(self._settled, self._life), token)

    async def answer(self, endpoint_id: EndpointId, count: int) -> None:
        """Let the oldest rows in flight be delivered."""
        endpoint = self._life.endpoints[endpoint_id]
        for offset in list(endpoint.pending)[:count]:
            endpoint.settle(offset)

    async def refuse(self, endpoint_id: EndpointId, place: int, result: SendResult) -> None:
        """Let a row in flight be refused."""
        endpoint = self._life.endpoints[endpoint_id]
        if endpoint.pending:
            offsets = list(endpoint.pending)
            endpoint.settle(offsets[place % len(offsets)], result)

    async def insist(self, endpoint_id: EndpointId, times: int) -> None:
        """Let the oldest row in flight be refused for now, again and again."""
        for _ in range(times):
            await self.refuse(endpoint_id, 0, REFUSALS[0])
            await self.advance(2.5)

    async def deny(self, endpoint_id: EndpointId, device: str, times: int) -> None:
        """Refuse, at an endpoint, all of a sender, and take what is in flight of others."""
        for _ in range(times):
            endpoint = self._life.endpoints[endpoint_id]
            for offset, (row, _) in list(endpoint.pending.items()):
                is_its = row.message.device_id == device
                endpoint.settle(offset, DENIED if is_its else DELIVERED)
            await self.advance(HOLD_S * 2)

    async def wait_for_expiry(self) -> None:
        """Let time pass until the very millisecond at which the next copy expires."""
        now_ms = self.now[1]
        expiries = [
            copy.expires_ms
            for line in self.ledger.lines.values()
            for copy in line.live.values()
            if now_ms < copy.expires_ms < NEVER_MS
        ]
        if expiries:
            await self.advance((min(expiries) - now_ms) / 1000)

    async def change_link(self, endpoint_id: EndpointId) -> None:
        """Cut a link that is up, or let it be up again."""
        endpoint = self._life.endpoints[endpoint_id]
        if endpoint.link_is_up:
            endpoint.cut()
        else:
            endpoint.revive()

    async def advance(self, seconds: float) -> None:
        """Let time pass; mostly all that a timer woke ends before the next one is due."""
        end = self.clock.monotonic() + seconds
        while await self.clock.advance_to_timer(end):
            if self.rng.random() < SETTLED_SHARE:
                await self.settle()
                await self.check()

    def fail(self, statement: str, code: str, times: int) -> None:
        """Let the disk fail for the next statements of a kind."""
        self.faults.fail(statement, code, times)

    async def heal(self) -> None:
        """Let the disk work again, and wait out the back-off."""
        self.faults.heal()
        await self.advance(6)

    def choose_manifest(self, number: int) -> None:
        """Reload: rows that are stored keep what they were stored with."""
        self._manifest = number
        self._life.router.replace(self.table())

    async def turn(self, turns: int) -> None:
        """Let some turns of the loop pass, but no time."""
        for _ in range(turns):
            await asyncio.sleep(0)
        self._life.check()

    async def crash(self) -> None:
        """Go on with what is in the files at this moment."""
        old, self._lives = self._life, self._lives + 1
        old.is_over = True
        copy = crash_copy(self._path, self._folder / str(self._lives))
        now_ms = self.now[1]
        # From here on the old life is only tidied away: nothing that it does counts.
        self.faults.heal()
        await old.end()
        self._path = copy
        found = self._look_into(copy)
        self.ledger.crashed(found, now_ms)
        await self.start()

    async def restart(self) -> None:
        """Stop in order and start again; a disk that fails still does so."""
        for pump in self._life.pumps:
            await pump.drain(self.clock.monotonic())
        is_failing = self.is_failing
        await self._life.end()
        self._life.is_over = True
        assert not self.ledger.open, f"{list(self.ledger.open)[:3]} have no answer"
        if is_failing:
            # What could not be stored in the end is as after a crash.
            self.ledger.crashed(self._look_into(self._path), self.now[1])
        await self.start()

    async def rest(self) -> None:
        """Let everything be stored, and compare the file with the model."""
        if self.is_failing:
            return
        await self.settle()
        await self._flush()
        await self.settle()
        await self._flush()
        self._check(stored=True)
        for endpoint in self._life.endpoints.values():
            if endpoint.link_is_up:
                self.ledger.check_idle(endpoint.id, *self.now)

    async def drain(self) -> None:
        """Let everything be delivered: whatever still may be, must be."""
        await self.heal()
        for endpoint in self._life.endpoints.values():
            self.delivers[endpoint.id] = True
            await self.answer(endpoint.id, 1 << 30)
            if not endpoint.link_is_up:
                endpoint.revive()
        for _ in range(60):
            await self.rest()
            if not any(queue.statistics().depth for queue in self._life.store.queues.all()):
                return
            await self.advance(5)
        left = {queue.id: queue.statistics() for queue in self._life.store.queues.all()}
        msg = f"rows stay for ever: {left}"
        raise AssertionError(msg)

    async def close(self) -> None:
        """End it."""
        self._life.is_over = True
        self.faults.heal()
        await self._life.end()

    async def abandon(self) -> None:
        """Let go of everything after a failure."""
        await self._life.abandon()

    async def settle(self) -> None:
        """Wait until nothing moves any more at this moment of the clock."""
        quiet = 0
        for _ in range(TURNS_MAX):
            before = self.ledger.events
            await asyncio.sleep(0)
            moved = self.ledger.events != before or not self._life.disk.is_idle
            quiet = 0 if moved else quiet + 1
            if quiet == IDLE_TURNS:
                self._life.check()
                return
        msg = "it does not come to rest"
        raise AssertionError(msg)

    async def check(self) -> None:
        """Compare file, gauges and model as they are at this moment."""
        self._life.check()
        if not self._life.disk.is_ahead:
            self._check(stored=False)

    def table(self) -> RouteTable:
        """Make the route table of the manifest in force."""
        return RouteTable.compile(_manifest(MANIFESTS[self._manifest]), endpoints=[LAB])

    def _check(self, *, stored: bool) -> None:
        now_s, now_ms = self.now
        if self.faults.raised > self._raised:
            self._raised = self.faults.raised
            self._sound_since_s = now_s + COMMIT_PAUSE_S
        ledger, store = self.ledger, self._life.store
        found = self._life.disk.look(self._rows)
        ledger.notice_all_moves(found, now_ms)
        self._check_balance(found)
        for queue in store.queues.all():
            key = (queue.endpoint_id, queue.priority)
            rows = found.get(key, {})
            ledger.check_rows(key, rows, now_ms, stored=stored)
            line, figures = ledger.lines[key], queue.statistics()
            assert figures.depth == len(rows), f"{queue.id} says {figures}, holds {len(rows)}"
            assert figures.enqueued_total == line.enqueued, (figures, line.enqueued)
            lowest = min([offset for offset, _ in rows.values()], default=1 << 62)
            assert figures.checkpoint < lowest, f"{queue.id}: {figures.checkpoint} of {lowest}"
            if stored:
                assert (figures.sent_total, figures.dead_lettered_total) == (line.sent, line.dead)
                if self.plan.overflow is None:
                    assert not figures.dropped_total, figures
                gone = line.gone_offset if not rows or line.gone_offset < lowest else 0
                assert gone <= figures.checkpoint, f"{queue.id}: {figures.checkpoint} of {gone}"
        self._life.disk.look(self._check_sums)
        if stored and self.plan.overflow is not None and not ledger.out_total:
            depth = sum(len(rows) for rows in found.values())
            assert depth <= max(ROWS_MAX, self._depth_before), f"{depth} rows are too many"
        if stored:
            self._check_dead(self._life.disk.look(_dead))
            if now_s - max(self._sound_since_s, self._life.started_s) > CLEAN_UP_S:
                self._check_clean_up(now_s, now_ms)

    def _check_balance(self, found: dict[Key, Rows]) -> None:
        """What came in and has not left waits, in whichever queue of its endpoint."""
        for endpoint in self.delivers:
            balance = depth = 0
            for queue in self._life.store.queues.of(endpoint):
                key = (endpoint, queue.priority)
                line, figures = self.ledger.line(key), queue.statistics()
                left = figures.sent_total + figures.expired_total + figures.dead_lettered_total
                left += figures.dropped_total
                balance += line.depth_at_start + line.enqueued - left
                depth += len(found.get(key, ()))
            assert balance == depth, f"{endpoint} holds {depth}, should {balance}"

    def _check_sums(self, connection: sqlite3.Connection) -> None:
        """Bytes of each queue, and the references of shared bodies, all from the file itself."""
        shared = 0
        for queue in self._life.store.queues.all():
            if queue.registered:
                sql = f"SELECT coalesce(sum(size), 0), count(body_id) FROM q_{queue.number}"
                size, references = connection.execute(sql).fetchone()
                assert size == queue.statistics().bytes, f"{queue.id} holds {size} bytes"
                shared += references
        sql = "SELECT coalesce(sum(refs), 0) FROM body"
        assert connection.execute(sql).fetchone() == (shared,), f"{shared} references"

    def _check_clean_up(self, now_s: float, now_ms: int) -> None:
        done_s, done_ms = now_s - CLEAN_UP_S, now_ms - round(CLEAN_UP_S * 1000)
        for line in self.ledger.lines.values():
            for copy in line.live.values():
                # In flight it could not be touched.
                if copy.out or copy.back_s > done_s:
                    continue
                assert copy.left or not copy.is_stale(done_ms), f"{copy} is too old and stays"
                late = self.plan.entire_clean_up and copy.expires_ms < done_ms
                assert not late, f"{copy} has expired and stays"

    def _check_dead(self, found: dict[Key, dict[int, str]]) -> None:
        known = {key: letters for key, letters in self.ledger.dead.items() if letters}
        assert found == known, f"dead letters: {found}, not {known}"

    async def _flush(self) -> None:
        # A group that failed before the disk was mended waits for the end of its back-off.
        task = asyncio.get_running_loop().create_task(self._life.store.writer.flush())
        for _ in range(60):
            await self.settle()
            if task.done():
                break
            await self.advance(1)
        assert task.done(), "what was handed in is not stored"
        await task

    def _look_into(self, path: Path) -> dict[Key, Rows]:
        # A copy: to close the file would empty its log, which is the hub's to recover.
        connection = sqlite3.connect(crash_copy(path, path.parent / "look"))
        try:
            return self._rows(connection)
        finally:
            connection.close()

    def _rows(self, connection: sqlite3.Connection) -> dict[Key, Rows]:
        found: dict[Key, Rows] = {}
        queues = connection.execute("SELECT number, endpoint_id, priority FROM queue").fetchall()
        for number, endpoint, priority in queues:
            rows = connection.execute(
                "SELECT substr(coalesce(q.body, b.body), 1, 12), q.offset, q.attempts"
                f" FROM q_{number} q LEFT JOIN body b ON b.id = q.body_id ORDER BY q.offset"
            ).fetchall()
            tokens = {token_of(body): (offset, attempts) for body, offset, attempts in rows}
            assert len(tokens) == len(rows), f"{endpoint}, {priority}: rows are doubled"
            found[EndpointId(endpoint), Priority(priority)] = tokens
        return found

    def _settled(self, life: Life, token: int, refusal: Refusal | None) -> None:
        if life.is_over:
            return
        if refusal is None:
            message_id = self._messages[token].message_id
            offset = life.store.inspection.offset_of(message_id)
            copies = self.ledger.open[token]
            early = False
            if offset is not None and len(copies) == 1 and copies[0].left in {"sent", "expired"}:
                early = life.store.queues.get(*copies[0].key).checkpointer.proposed < offset
            self.ledger.accept(token, message_id, early=early)
        else:
            self.ledger.refuse(token)


def _dead(connection: sqlite3.Connection) -> dict[Key, dict[int, str]]:
    dead: dict[Key, dict[int, str]] = {}
    for endpoint, priority, kind, body in connection.execute(
        "SELECT endpoint_id, priority, kind, substr(body, 1, 12) FROM dead_letter"
    ):
        dead.setdefault((endpoint, priority), {})[token_of(body)] = kind
    return dead


def _manifest(kinds: dict[str, list[Target]]) -> Any:
    routes: dict[str, Any] = {}
    for kind, targets in kinds.items():
        for endpoint, priority, ttl_s, fresh_s, later in targets:
            sink = "$upstream" if endpoint == UPSTREAM else f'Endpoint("{endpoint}")'
            route: dict[str, Any] = {
                "route": f"FROM /messages/* WHERE kind = '{kind}' INTO {sink}",
                "timeToLiveSecs": ttl_s,
            }
            if priority != DEFAULT_PRIORITY:
                route["priority"] = priority
            if fresh_s:
                route["Recency"] = {"Seconds": fresh_s}
                if later != DEFAULT_PRIORITY:
                    route["Recency"]["FallbackPriority"] = later
            routes[f"{kind}-{endpoint}"] = route
    document = {
        "schemaVersion": "1.3",
        "routes": routes,
        "storeAndForwardConfiguration": {"timeToLiveSecs": -1},
    }
    return parse_manifest(json.dumps(document), file="model")

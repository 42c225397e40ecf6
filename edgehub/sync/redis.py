"""The table that several hubs share, in Redis.

Owns the keys below one prefix and their meaning: `rows` (key -> row), `contents` (hash -> canonical
text), `references` (hash -> rows that have it), `counts` (tenant -> rows), `meta` (epoch, revision
and what the table was begun with), `log` (a stream with ids `epoch-revision`), `reports` and
`deadlines` (what hubs say of themselves). All lie in one slot of a cluster. Only scripts write, so
that no reader sees half a change, and times come from the server, so that no decision compares
clocks of two machines.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec
import orjson
from msgspec.structs import replace

from edgehub.clock import between_slices
from edgehub.redis_link.faults import RedisRefusedError, RedisUnavailableError
from edgehub.redis_link.script import Script
from edgehub.routes.tenant import RouteKey
from edgehub.sync.faults import (
    PreconditionError,
    QuotaError,
    RouteNotFoundError,
    StorageUnavailableError,
    TableError,
    TableLostError,
)
from edgehub.sync.plan import table_moved
from edgehub.sync.sqlite import parse_row
from edgehub.sync.storage import (
    IMPORT,
    RESTORE,
    Begun,
    Digest,
    LogEntry,
    Position,
    Report,
    Row,
    Stored,
    StoredRow,
    WriteResult,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Sequence
    from typing import TypeVar

    from edgehub.redis_link.link import RedisLink
    from edgehub.sync.storage import Change

    T = TypeVar("T")

PAGE: Final = 100
"""Rows of one answer, half a millisecond of work here; messages go on in between."""

SUMMED: Final = 500
"""Rows that the server adds up at once, likewise."""

ENTRIES: Final = 1_000
"""Of the log in one answer."""

_WRITE: Final = Script.of("edgehub.sync", "table.lua", "write.lua")
_READ: Final = Script.of("edgehub.sync", "read.lua")
_DIGEST: Final = Script.of("edgehub.sync", "digest.lua")
_RESTORE: Final = Script.of("edgehub.sync", "table.lua", "restore.lua")
_REPORT: Final = Script.of("edgehub.sync", "report.lua")
_REPORTS: Final = Script.of("edgehub.sync", "reports.lua")
_RUN_ID: Final = re.compile(rb"^run_id:(\w+)", re.MULTILINE)
_NUMBER: Final = re.compile(rb"[0-9]{1,15}")
"""As many digits as a number of Lua holds exactly."""

_BEGUN: Final = re.compile(rb"([0-9]{1,15}) ([0-9]{1,15}) ([0-9]{1,15}) ([0-9]{1,15})")
_ENTRY_ID: Final = re.compile(rb"(\d+)-(\d+)")


class RedisStorage:
    """The access of one hub to a table in Redis.

    Args:
        link: The server.
        prefix: Begins every key; hubs that share a table have the same one.
        instance: Names this hub in the log.
        log_entries: Changes that the log keeps, roughly.
    """

    kind: Final = "redis"

    def __init__(
        self, link: RedisLink, *, prefix: str, instance: str, log_entries: int = 10_000
    ) -> None:
        self._link = link
        self._reader = link.reader()
        self._instance = instance
        self._log_entries = log_entries
        base = f"{{{prefix}:routes}}"
        self._rows, self._contents = f"{base}:rows", f"{base}:contents"
        self._meta, self._log = f"{base}:meta", f"{base}:log"
        self._written = [
            self._rows,
            self._contents,
            f"{base}:references",
            f"{base}:counts",
            self._meta,
            self._log,
        ]
        self._reports = [f"{base}:reports", f"{base}:deadlines"]
        self._epoch_seen = 0

    async def position(self) -> Position:
        """Return the position of the table."""
        answers = await _asked(
            self._link.calls(
                [
                    ("INFO", "server"),
                    ("HMGET", self._meta, "epoch", "revision", "begun"),
                    ("HLEN", self._rows),
                ]
            )
        )
        info, (epoch, revision, begun), rows = answers
        run_id = _RUN_ID.search(info)
        position = Position(
            epoch=_number(epoch),
            server="" if run_id is None else run_id[1].decode(),
            revision=_number(revision),
            rows=rows,
            begun=_begun(begun),
        )
        self.knows(position.epoch)
        return position

    async def read(self, keys: Sequence[RouteKey]) -> list[Row | None]:
        """Read rows with their contents, each as it is now; None = there is none."""
        rows: list[Row | None] = []
        for start in range(0, len(keys), PAGE):
            page = [str(key) for key in keys[start : start + PAGE]]
            answer = await _asked(self._link.run(_READ, [self._rows, self._contents], page))
            for index, key in enumerate(page):
                raw, text = answer[2 * index], answer[2 * index + 1]
                rows.append(None if raw is None else _row(key, raw, text))
        return rows

    async def scan(self) -> AsyncIterator[list[Row]]:
        """Read all rows without contents, page by page; a row may come twice."""
        cursor: bytes = b"0"
        while True:
            answer = await _asked(self._link.call("HSCAN", self._rows, cursor, "COUNT", PAGE))
            cursor, fields = answer
            yield [_row(_text(fields[at]), fields[at + 1], None) for at in range(0, len(fields), 2)]
            if cursor == b"0":
                return

    async def digest(self) -> Digest:
        """Return the sum over all rows, computed where they are."""
        cursor: bytes = b"0"
        count = high = low = 0
        while True:
            answer = await _asked(self._link.run(_DIGEST, [self._rows], [cursor, SUMMED]))
            cursor = answer[0]
            count += answer[1]
            high += int(answer[2])
            low += int(answer[3])
            if cursor == b"0":
                return Digest(count, high, low)

    async def write(
        self, changes: Sequence[Change], *, session: str, expected: int | None = None
    ) -> WriteResult:
        """Apply all changes or none."""
        wanted = "" if expected is None else expected
        arguments: list[str | int] = [
            *(self._instance, session, self._log_entries, wanted, self._epoch_seen)
        ]
        for change in changes:
            kind = "delete" if change.delete else "put" if change.hash else "keep"
            arguments += [
                *(str(change.key), str(change.key.tenant), kind),
                "" if change.expected is None else change.expected,
                *(change.hash, change.text),
                "" if change.enabled is None else int(change.enabled),
                *(change.origin, change.quota),
            ]
        answer = await _asked(self._link.run(_WRITE, self._written, arguments))
        word, *rest = answer
        if word != b"OK":
            raise _refusal(word, rest, changes, expected)
        epoch, revision, *fields = rest
        self.knows(int(epoch))
        return WriteResult(
            epoch=int(epoch),
            revision=int(revision),
            stored=tuple(
                _stored(change, *fields[3 * index : 3 * index + 3])
                for index, change in enumerate(changes)
            ),
        )

    async def restore(
        self,
        rows: Sequence[StoredRow],
        deleted: Sequence[RouteKey],
        *,
        at: Position,
        version: Position,
    ) -> bool:
        """Put back what the table has lost, in one step and above all revisions that there were."""
        document: list[tuple[str | int, ...]] = [
            (str(key), str(key.tenant), "", "", "", "", "") for key in deleted
        ]
        for count, row in enumerate(rows, 1):
            assert row.text is not None
            named = (str(row.key), str(row.key.tenant), row.hash, row.text)
            document.append((*named, str(int(row.enabled)), row.origin, str(row.created_ms)))
            if count % PAGE == 0:
                await between_slices()
        # One argument: thousands of them would be packed one by one while messages wait.
        packed = await asyncio.to_thread(orjson.dumps, document)
        arguments: list[str | bytes | int] = [
            *(self._instance, RESTORE, at.epoch, at.revision, version.epoch, version.revision),
            *(version.root, packed),
        ]
        return bool(await _asked(self._link.run(_RESTORE, self._written, arguments)))

    async def asked_since(self, begun: Position) -> set[RouteKey] | None:
        """Return the keys that operators changed, from the log; None = it was cut."""
        keys: set[RouteKey] = set()
        assert begun.begun is not None
        revision = begun.begun.first
        while True:
            answer = await _asked(
                self._link.call(
                    *("XRANGE", self._log, f"{begun.epoch}-{revision}", "+", "COUNT", ENTRIES),
                )
            )
            entries = [log_entry(entry_id, fields) for entry_id, fields in answer]
            if revision == begun.begun.first and (not entries or entries[0].revision != revision):
                return None
            for entry in entries:
                if entry.key is not None and entry.session not in {IMPORT, RESTORE}:
                    keys.add(entry.key)
            if len(entries) < ENTRIES:
                return keys
            revision = entries[-1].revision + 1

    def knows(self, epoch: int) -> None:
        """Record a table that this hub knows, so that no write creates another one unnoticed."""
        self._epoch_seen = max(self._epoch_seen, epoch)

    async def follow(self, after: Position, wait_s: float) -> list[LogEntry]:
        """Wait for entries of the log behind a position, at most `wait_s`."""
        answer = await _asked(
            self._reader.call(
                *("XREAD", "COUNT", ENTRIES, "BLOCK", max(1, round(wait_s * 1000))),
                *("STREAMS", self._log, f"{after.epoch}-{after.revision}"),
                block_s=wait_s,
            )
        )
        if not answer:
            return []
        ((_, entries),) = answer
        return [log_entry(entry_id, fields) for entry_id, fields in entries]

    async def report(self, report: Report, *, expires_s: float) -> str:
        """Store this hub's report in place of its last one; it expires."""
        text = msgspec.json.encode(report)
        expires_ms = round(expires_s * 1000)
        arguments: list[str | bytes | int] = [report.hub_id, expires_ms, text]
        said = await _asked(self._link.run(_REPORT, self._reports, arguments))
        before = None if said is None else _report(said, 0)
        return "" if before is None else before.instance

    async def reports(self) -> list[Report]:
        """Read the reports that have not expired."""
        now, *texts = await _asked(self._link.run(_REPORTS, self._reports, []))
        found = (_report(text, int(now)) for text in texts)
        return [report for report in found if report is not None]

    async def leave(self, hub_id: str) -> None:
        """Delete this hub's report: it stops."""
        await _asked(self._link.run(_REPORT, self._reports, [hub_id, "", ""]))

    async def close(self) -> None:
        """Close connections; the link belongs to the hub."""
        await self._reader.close()


def log_entry(entry_id: bytes, fields: Sequence[bytes] | None) -> LogEntry:
    """Read one entry of the log; one that makes no sense has no key.

    Args:
        entry_id: As Redis returns it, `epoch-revision`.
        fields: Names and values in turn.
    """
    place = _ENTRY_ID.fullmatch(entry_id)
    epoch, revision = (int(place[1]), int(place[2])) if place else (0, 0)
    nothing = LogEntry(epoch=epoch, revision=revision, key=None)
    if not fields or len(fields) % 2:
        return nothing
    try:
        names = [field.decode() for field in fields]
        values = dict(zip(names[::2], names[1::2], strict=True))
        return LogEntry(
            epoch=epoch,
            revision=revision,
            key=RouteKey.parse(values["key"]),
            instance=values.get("instance", ""),
            session=values.get("session", ""),
        )
    except (ValueError, KeyError):
        return nothing


async def _asked(work: Awaitable[Any]) -> Any:
    try:
        return await work
    except RedisUnavailableError as exc:
        raise StorageUnavailableError(exc.reason, outcome_unknown=exc.outcome_unknown) from exc
    except RedisRefusedError as exc:
        # READONLY after a fail-over, OOM, a wrong password: nothing that the caller could fix.
        raise StorageUnavailableError(exc.reason) from exc


def _refusal(
    word: bytes, rest: Sequence[int], changes: Sequence[Change], expected: int | None
) -> TableError:
    """Return why the script refused a write."""
    if word == b"LOST":
        return TableLostError()
    if word == b"CONFLICT":
        assert expected is not None
        return table_moved(expected, rest[0])
    change = changes[rest[0]]
    if word == b"PRECONDITION":
        return PreconditionError(change.key.id, revision=rest[1], wanted=change.expected or 0)
    if word == b"MISSING":
        return RouteNotFoundError(change.key.id)
    assert word == b"QUOTA", word
    return QuotaError(str(change.key.tenant), change.quota)


def _row(key: str, raw: bytes, text: bytes | None) -> Row:
    return parse_row(key, _text(raw), None if text is None else _text(text))


def _stored(change: Change, raw: bytes, changed: int, created: int) -> Stored:
    if change.delete:
        return Stored(row=None, created=False, changed=bool(changed))
    row = StoredRow.parse(change.key, _text(raw), change.text or None)
    return Stored(row=row, created=bool(created), changed=bool(changed))


def _report(text: bytes, now_ms: int) -> Report | None:
    at_ms, _, document = text.partition(b" ")
    try:
        report = msgspec.json.decode(document, type=Report)
    except msgspec.DecodeError:
        return None
    return replace(report, age_ms=max(0, now_ms - _number(at_ms)))


def _begun(value: bytes | None) -> Begun | None:
    found = None if value is None else _BEGUN.fullmatch(value)
    if found is None:
        return None
    epoch, revision, first, root = (int(each) for each in found.groups())
    return Begun(epoch=epoch, revision=revision, first=first, root=root)


def _number(value: bytes | None) -> int:
    return int(value) if value is not None and _NUMBER.fullmatch(value) else 0


def _text(value: bytes) -> str:
    # What cannot be decoded cannot be parsed either, and becomes a broken row.
    return value.decode("utf-8", "replace")

"""What is left after the last stop: the delivered file, and the rows in the hub's database.

Owns nothing; reads what the hub under test wrote, once no hub runs on it any more. Invariant: it is
read by the hub's own store, as the next start would.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import orjson

from edgehub.errors import StartupError, StoreError
from edgehub.lab.selftest.device import parse_body
from edgehub.lab.selftest.judge import Copy
from edgehub.lab.selftest.scratch import DATA, DELIVERED, SelfTestError
from edgehub.settings.effective import DATABASE_NAME
from edgehub.store import Store, StoreOptions

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

    from edgehub.clock import Clock
    from edgehub.lab.selftest.judge import Judge
    from edgehub.store import Queue

_ROWS: Final = 512
_BYTES: Final = 2**20
_COMPLAINTS_MAX: Final = 10


async def present(folder: Path, judge: Judge, clock: Clock) -> tuple[str, ...]:
    """Show the judge every copy, first the delivered ones.

    Args:
        folder: The scratch folder.
        judge: Who is shown.
        clock: For the store.

    Returns:
        What `PRAGMA integrity_check` finds wrong with the database, empty = nothing.

    Raises:
        SelfTestError: The delivered file holds something else than records, or the database cannot
            be read.
    """
    await asyncio.to_thread(_present_delivered, folder / DELIVERED, judge)
    try:
        return await _present_stored(folder / DATA / DATABASE_NAME, judge, clock)
    except (StartupError, StoreError) as error:
        raise SelfTestError(f"the hub's database cannot be read any more: {error}") from error


def _present_delivered(path: Path, judge: Judge) -> None:
    if not path.exists():
        return
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                record = orjson.loads(line)
                copy = Copy(record["device"], parse_body(record["body"].encode()), record["id"])
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise SelfTestError(
                    f"line {number} of the delivered messages is not a record of the hub"
                    f": {line[:80]!r}"
                ) from error
            judge.deliver(copy)


async def _present_stored(path: Path, judge: Judge, clock: Clock) -> tuple[str, ...]:
    store = await Store.open(path, clock=clock, options=StoreOptions())
    try:
        if store.damage is not None:
            raise SelfTestError(
                f"the hub's database cannot be read any more: {path}: {store.damage.reason}"
            )
        complaints = await store.database.run(_check)
        for queue in store.queues.all():
            await _present_waiting(queue, judge)
    finally:
        await store.close()
    return complaints


async def _present_waiting(queue: Queue, judge: Judge) -> None:
    while rows := await queue.read_batch(_ROWS, _BYTES):
        for row in rows:
            message = row.message
            judge.keep(Copy(message.device_id, parse_body(message.body), message.message_id))


def _check(connection: sqlite3.Connection) -> tuple[str, ...]:
    found = connection.execute(f"PRAGMA integrity_check({_COMPLAINTS_MAX})").fetchall()
    texts = tuple(str(row[0]) for row in found)
    return () if texts == ("ok",) else texts

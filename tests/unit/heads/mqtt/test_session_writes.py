"""Writes of stored sessions: newest state, one at a time per client, everybody is told."""

import asyncio

from edgehub.errors import StoreError
from edgehub.heads.mqtt.session_writes import SessionWrites


class Table:
    """Notes what is written; each write waits for a permit."""

    def __init__(self, stored):
        self.stored = stored
        self.log = []
        self.permits = asyncio.Semaphore(0)
        self.error = None

    async def write(self, client_id):
        """Write what a client's session is now, None = it has ended."""
        self.log.append((client_id, self.stored.get(client_id)))
        await self.permits.acquire()
        if self.error is not None:
            raise self.error


async def test_later_changes_share_the_next_write():
    """While one write is under way all further changes of that client make one more."""
    stored, told = {"c": {"a": 1}}, []
    table = Table(stored)
    async with asyncio.TaskGroup() as tasks:
        writes = SessionWrites(table.write, tasks.create_task)
        writes.changed("c", told.append)
        await asyncio.sleep(0)
        for qos in range(50):
            stored["c"] = {"a": qos}
            writes.changed("c", told.append)
        await asyncio.sleep(0)
        assert table.log == [("c", {"a": 1})]
        assert not told
        table.permits.release()
        table.permits.release()
    assert table.log == [("c", {"a": 1}), ("c", {"a": 49})]
    assert told == [None] * 51


async def test_clients_do_not_wait_for_each_other():
    """Each client has a write of its own; a session that ended is deleted."""
    table = Table({"c": {}})
    async with asyncio.TaskGroup() as tasks:
        writes = SessionWrites(table.write, tasks.create_task)
        writes.changed("c", lambda _: None)
        writes.changed("d", lambda _: None)
        await asyncio.sleep(0)
        assert table.log == [("c", {}), ("d", None)]
        for _ in range(2):
            table.permits.release()


async def test_a_failure_is_reported_and_the_next_change_is_written():
    """Those whose state was in the failed write hear of it, later ones have their own outcome."""
    table, told = Table({"c": {}}), []
    failure = table.error = StoreError("disk full")
    heard = asyncio.Event()

    def hear(error):
        told.append(error)
        heard.set()

    async with asyncio.TaskGroup() as tasks:
        writes = SessionWrites(table.write, tasks.create_task)
        writes.changed("c", hear)
        table.permits.release()
        await heard.wait()
        table.error = None
        writes.changed("c", hear)
        table.permits.release()
    assert told == [failure, None]

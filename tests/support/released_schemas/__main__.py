"""Writes the file of the present schema."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from edgehub.device_bound.message import DeviceMessage, Origin
from edgehub.device_bound.table import DeviceMessageTable
from edgehub.devices.affinity.stored_frames import StoredFrame, StoredFrames, frame_key
from edgehub.heads.mqtt.local.tables import LocalEntry, LocalTable
from edgehub.heads.mqtt.session_table import SessionTable
from edgehub.local_message import LocalMessage
from edgehub.message import FailureKind, Message, Priority, Recency, Refusal
from edgehub.store.migrations import SCRIPTS
from tests.support.released_schemas import dump, path_of
from tests.support.stores import LAB, P0, P2, P7, a_message, a_result, running

if TYPE_CHECKING:
    from collections.abc import Callable


async def fill(path: Path) -> None:
    """Store one row of each kind that the queues, sessions and dead letters know."""
    async with running(path) as hub:
        await hub.stored(3)
        hub.send(
            a_message(body=b"body-3", properties={"kind": "a", "none": None}),
            a_result(P0, ttl_s=600, recency=Recency(seconds=60, fallback_priority=P7)),
        )
        hub.send(a_message(body=b"body-4"), a_result(P2), a_result(P7, endpoint_id=LAB))
        hub.send(a_message(body=b"body-5"), a_result(P2, creation=True))
        hub.send(a_message(body=b"body-6"), a_result(P2, predecessor=7))
        await hub.store.writer.flush()
        queue = hub.queue()
        (row,) = await queue.read_batch(1, 1 << 20)
        queue.dead_letter(row, FailureKind.REJECTED, "no")
        (row,) = await queue.read_batch(1, 1 << 20)
        queue.give_back([row], attempted=True)
        sessions = SessionTable(hub.store)
        await sessions.save("client", {"a/#": 1}, number=3, expiry_s=3600, is_away=True)
        await sessions.receive(3, 7)
        local = LocalTable(hub.store, hub.clock)
        message = LocalMessage("a/b", b"waits", publisher="other", qos=2)
        entry = LocalEntry(message, 2, packet_id=9, is_sent=True, waits=True)
        local.enqueue("client", entry, _nobody)
        await local.flush()
        frame = StoredFrame(
            device_id="d", session="s", generation=1, f_cnt=9, saved_f_cnt=0, key=frame_key("9")
        )
        StoredFrames(hub.store, _take).append(a_message(), frame)
        await DeviceMessageTable(hub.store).add(
            DeviceMessage(
                target="d/m",
                message_id="m-1",
                properties={"a": None},
                system={"cid": "c"},
                body=b"down",
                priority=Priority(2),
                origin=Origin.API,
                enqueued_ms=1,
                expires_ms=2,
                number=7,
                deliveries=3,
            )
        )


def _take(_message: Message, settle: Callable[[int, None], None], token: int) -> None:
    """Stand in for a router without a route."""
    settle(token, None)


def _nobody(_token: int, _refusal: Refusal | None) -> None:
    """Stand in for a publisher."""


with tempfile.TemporaryDirectory() as folder:
    database = Path(folder) / "queue.db"
    asyncio.run(fill(database))
    path_of(len(SCRIPTS)).write_text(dump(database), "utf-8")

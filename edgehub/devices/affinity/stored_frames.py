"""The newest stored frame of each device, so that its repetition is known after a restart.

Owns the table `stored_frame`. Invariant: a frame is written in the transaction of its
message, and only with it; it stays when the rows of the message leave.
"""

from __future__ import annotations

import asyncio
import hashlib
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from edgehub.devices.affinity.coordinator import ElectedFrame
from edgehub.devices.faults import DeviceSourceError, MessageRefusedError
from edgehub.errors import StoreError
from edgehub.message import Refusal

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

    from edgehub.message import Message
    from edgehub.store.store import Store

    Commit = asyncio.Future[Refusal | None]
    """Done once a message that was appended to the open group is durable, or can never be."""
    Submit = Callable[[Message, Callable[[int, Refusal | None], None], int], None]

REPEATED_MS: Final = 600_000
"""A device repeats what was stored within this time; later the same bytes are another frame of a
device that has started again."""
KEY_BYTES: Final = 16
NEWEST_MAX: Final = 1_000

log = structlog.get_logger(__name__)


class StoredFrame(NamedTuple):
    """A frame whose message was stored.

    Attributes:
        device_id: Id of the device.
        session: Names its keys.
        generation: Number of the session.
        f_cnt: Its counter.
        saved_f_cnt: Counter that the device's source had when it was stored: while it still has it,
            no other hub has counted on.
        key: Digest of what all copies of it have in common.
    """

    device_id: str
    session: str
    generation: int
    f_cnt: int
    saved_f_cnt: int
    key: str


_COLUMNS: Final = ", ".join(StoredFrame._fields)


class _Open(NamedTuple):
    """The frames that join the transaction of their messages."""

    transaction: object
    frames: dict[str, StoredFrame]
    committed: asyncio.Future[None]


def frame_key(text: str) -> str:
    """Return the digest of what all copies of a frame have in common."""
    return hashlib.blake2b(text.encode(), digest_size=KEY_BYTES).hexdigest()


class StoredFrames:
    """Stores messages with the frames that carried them.

    Args:
        store: Where both are.
        submit: Routes and stores messages.
    """

    def __init__(self, store: Store, submit: Submit) -> None:
        self._store = store
        self._submit = submit
        self._open: _Open | None = None

    async def load(self, device_id: str) -> StoredFrame | None:
        """Read the newest frame of a device, None = it has none that it might repeat.

        Raises:
            DeviceSourceError: The store cannot be read now.
        """
        since_ms = self._store.hub_time.now_ms() - REPEATED_MS

        def read(connection: sqlite3.Connection) -> StoredFrame | None:
            row = connection.execute(
                f"SELECT {_COLUMNS} FROM stored_frame WHERE device_id = ? AND at_ms >= ?",  # noqa: S608 - constant
                (device_id, since_ms),
            ).fetchone()
            return None if row is None else StoredFrame(*row)

        try:
            return await self._store.database.run(read)
        except StoreError as exc:
            raise DeviceSourceError(device_id, str(exc)) from exc

    async def newest(self) -> list[ElectedFrame]:
        """Read the newest frames of all devices, the oldest first."""

        def read(connection: sqlite3.Connection) -> list[tuple[str, int, int]]:
            return connection.execute(
                "SELECT device_id, generation, f_cnt FROM stored_frame"
                " ORDER BY number DESC LIMIT ?",
                (NEWEST_MAX,),
            ).fetchall()

        rows = await self._store.database.run(read)
        return [ElectedFrame(*row) for row in reversed(rows)]

    async def forget(self, device_id: str) -> None:
        """Remove the frame of a device: its counter begins again.

        Raises:
            DeviceSourceError: The store cannot be written now.
        """

        def delete(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM stored_frame WHERE device_id = ?", (device_id,))

        try:
            await self._store.writer.transact(delete)
        except StoreError as exc:
            raise DeviceSourceError(device_id, str(exc)) from exc

    def append(self, message: Message, frame: StoredFrame) -> Commit | None:
        """Append an elected message and its frame to the open group.

        Returns:
            Their commit, None = it is over.

        Raises:
            MessageRefusedError: It is refused at once, as by a limit.
        """
        commit: Commit = asyncio.get_running_loop().create_future()
        written: asyncio.Future[None] | None = None

        def settle(_token: int, refusal: Refusal | None) -> None:
            if refusal is None and written is not None and not written.done():
                # Its rows have left before their commit; its frame is not on disk before it.
                written.add_done_callback(lambda _: _finish(commit, None))
            else:
                _finish(commit, refusal)

        with self._store.writer.together() as transaction:
            self._submit(message, settle, 0)
            refusal = commit.result() if commit.done() else None
            if refusal is not None and refusal is not Refusal.UNROUTED:
                raise MessageRefusedError(message.device_id, refusal)
            written = self._add(frame, transaction)
        return None if commit.done() else commit

    def _add(self, frame: StoredFrame, transaction: object) -> asyncio.Future[None]:
        opened = self._open
        if opened is None or opened.transaction is not transaction:
            frames: dict[str, StoredFrame] = {}
            write = partial(_write, frames, self._store.hub_time.now_ms())
            future = self._store.writer.transact(write, commit_now=False)
            opened = self._open = _Open(transaction, frames, future)
            future.add_done_callback(partial(self._committed, opened))
        opened.frames.pop(frame.device_id, None)  # the newest of a transaction are its last ones
        opened.frames[frame.device_id] = frame
        return opened.committed

    def _committed(self, opened: _Open, future: asyncio.Future[None]) -> None:
        if opened is self._open:
            self._open = None  # the rows of its transaction are large
        error = None if future.cancelled() else future.exception()
        if error is not None and not isinstance(error, StoreError):
            # The messages are stored all the same; a repetition after a restart is stored again.
            log.error("store.frames_not_stored", error=str(error))


def _finish(commit: Commit, refusal: Refusal | None) -> None:
    if not commit.done():
        commit.set_result(refusal)


def _write(frames: dict[str, StoredFrame], now_ms: int, connection: sqlite3.Connection) -> None:
    # May run again when its transaction has to be repeated.
    connection.executemany(
        f"INSERT OR REPLACE INTO stored_frame ({_COLUMNS}, at_ms) VALUES (?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 - constant
        [(*frame, now_ms) for frame in frames.values()],
    )

"""The daemon with faults on request: SIGUSR1 blocks its event loop, SIGUSR2 its reads of rows.

Run as a script with the arguments of `edgehub`. Neither fault ends by itself.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from typing import TYPE_CHECKING

from edgehub.cli.main import main
from edgehub.store.queue import Queue

if TYPE_CHECKING:
    from edgehub.message import Row

reads_hang = threading.Event()
read_batch = Queue.read_batch


async def hanging_read_batch(queue: Queue, rows_max: int, bytes_max: int) -> list[Row]:
    """Read, or hang as a lost wake-up would."""
    if reads_hang.is_set():
        await asyncio.Event().wait()
    return await read_batch(queue, rows_max, bytes_max)


Queue.read_batch = hanging_read_batch  # type: ignore[method-assign]
signal.signal(signal.SIGUSR1, lambda *_: threading.Event().wait())
signal.signal(signal.SIGUSR2, lambda *_: reads_hang.set())
main()

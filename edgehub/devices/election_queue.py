"""Messages of devices that wait for their election before they go to the router.

Owns the waiting messages, by device. Only numbered messages are elected. Invariants: the messages
of a device are submitted in their order, numbered or not; each is settled once, a repetition after
the commit of what it repeats; if the election of one fails, those behind it are refused too, as
they would make it an old one when it is sent again; while none of a device waits, one without a
number is submitted at once.
"""

from __future__ import annotations

import zlib
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

from edgehub.devices.affinity.data import Uplink
from edgehub.devices.affinity.outcome import Result
from edgehub.devices.faults import DeviceError, MessageRefusedError
from edgehub.message import Message, Refusal
from edgehub.mqtt.property_bag import DUPLICATE_PROPERTY

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from edgehub.devices.affinity.outcome import FrameOutcome, Handling
    from edgehub.devices.affinity.stored_frames import Commit, StoredFrames
    from edgehub.devices.devices import Devices

    Settle = Callable[[int, Refusal | None], None]
    Submit = Callable[[Message, Settle, int], None]
    Waiting = tuple[Message, int | None, Settle, int]

SEQUENCE: Final = "sequence"
"""Application property with the number of a message, a frame counter of 32 bits."""

STATION: Final = "local"
_DIGITS_MAX: Final = 10
_F_CNT_MAX: Final = 2**32 - 1


class ElectionQueue:
    """The messages of devices that wait for their election.

    Args:
        devices: Where elections are made.
        submit: Takes messages that are not elected, in the turn of their device.
        frames: Stores elected ones, whose turn it is.
        tasks: Where they run.
        rejected: Called with a message that local checks refused: device, bytes, reason.
    """

    def __init__(
        self,
        devices: Devices,
        submit: Submit,
        *,
        frames: StoredFrames,
        tasks: asyncio.TaskGroup,
        rejected: Callable[[str, int, str], None],
    ) -> None:
        self._devices = devices
        self._submit = submit
        self._frames = frames
        self._tasks = tasks
        self._rejected = rejected
        self._waiting: dict[str, deque[Waiting]] = {}

    @property
    def waiting(self) -> int:
        """Return the number of messages that wait for their election, or are elected now."""
        return sum(len(waiting) for waiting in self._waiting.values())

    def submit(self, message: Message, settle: Settle, token: int) -> None:
        """Submit a message; see `edgehub.heads.head.Submit`."""
        sequence = sequence_of(message)
        waiting = self._waiting.get(message.device_id)
        if waiting is None:
            if sequence is None:
                self._submit(message, settle, token)
                return
            waiting = self._waiting[message.device_id] = deque()
            self._tasks.create_task(
                self._work(message.device_id, waiting), name=f"election-queue[{message.device_id}]"
            )
        waiting.append((message, sequence, settle, token))

    async def _work(self, device_id: str, waiting: deque[Waiting]) -> None:
        try:
            while waiting:
                message, sequence, settle, token = waiting[0]
                if sequence is None:
                    waiting.popleft()
                    self._submit(message, settle, token)
                    continue
                refusal: Refusal | None = None
                commit: Commit | None = None
                try:
                    commit = await self._elect(message, sequence)
                except MessageRefusedError as exc:
                    refusal = exc.refusal
                except DeviceError as exc:
                    self._fail(exc, waiting)
                    continue
                waiting.popleft()
                if commit is None:
                    settle(token, refusal)
                else:
                    commit.add_done_callback(partial(_settle, settle, token))
        finally:
            self._waiting.pop(device_id, None)
            for _, _, settle, token in waiting:
                settle(token, Refusal.CLOSED)  # the hub ends, or this failed

    def _fail(self, error: DeviceError, waiting: deque[Waiting]) -> None:
        """Refuse the first one for now, and the numbered ones behind it."""
        failed = -1
        for _ in range(len(waiting)):
            message, sequence, settle, token = waiting.popleft()
            if sequence is None:
                self._submit(message, settle, token)
            else:
                failed += 1
                settle(token, Refusal.UNAVAILABLE)
        self._devices.count_failed(error, failed)

    async def _elect(self, message: Message, sequence: int) -> Commit | None:
        """Elect a message; returns the commit after which it is acknowledged, None = it is over."""

        async def handle(handling: Handling) -> Commit | None:
            if not handling.upstream:
                return None
            elected = _marked(message) if handling.duplicate else message
            return self._frames.append(elected, handling.frame)

        uplink = Uplink(
            address=message.device_id,
            # A device that did not get its PUBACK sends again, and wants one.
            confirmed=True,
            station=STATION,
            key=f"{sequence}/{zlib.crc32(message.body)}",
            # A client that may send on the device's topic is the device.
            counter=lambda _stored: sequence,
        )
        outcome = await self._devices.data(uplink, handle)
        self._note(outcome, message)
        return outcome.commit

    def _note(self, outcome: FrameOutcome, message: Message) -> None:
        if outcome.result is Result.REJECTED and not outcome.repeated:
            reason = "rejected" if outcome.reason is None else outcome.reason.value
            self._rejected(message.device_id, len(message.body), reason)


def _settle(settle: Settle, token: int, commit: Commit) -> None:
    settle(token, Refusal.CLOSED if commit.cancelled() else commit.result())


def sequence_of(message: Message) -> int | None:
    """Return the number of a device's message, None = it has none, or is a module's."""
    text = message.properties.get(SEQUENCE)
    if text is None or message.module_id is not None or len(text) > _DIGITS_MAX:
        return None
    if not (text.isascii() and text.isdecimal()):
        return None
    sequence = int(text)
    return sequence if sequence <= _F_CNT_MAX else None


def _marked(message: Message) -> Message:
    return Message(
        message.device_id,
        message.module_id,
        message.source,
        {**message.properties, DUPLICATE_PROPERTY: "true"},
        message.system,
        message.body,
        message.expiry_ms,
    )

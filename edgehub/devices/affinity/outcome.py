"""What became of a message or a join request of a device.

Owns the values; see docs/explanation/affinity.md. An operation that could not be carried out raises
a `DeviceError` instead, which has a `reason` too.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from edgehub.devices.affinity.stored_frames import Commit, StoredFrame


class Result(StrEnum):
    """The result of a frame."""

    PROCESSED = "processed"
    ACCEPTED = "accepted"  # a join request
    REFUSED = "refused"  # a join request that this hub does not answer
    DROPPED = "dropped"  # refused by the election, or a copy from another station
    REJECTED = "rejected"  # refused by local checks, before any election


class Reason(StrEnum):
    """Why it was not taken."""

    DUPLICATE = "duplicate"
    SECOND_STATION = "second_station_of_same_gateway"
    INVALID_FRAME_COUNTER = "invalid_frame_counter"
    RESUBMIT_LIMIT = "resubmit_limit"
    BELONGS_TO_ANOTHER_GATEWAY = "belongs_to_another_gateway"
    DEV_NONCE_USED = "dev_nonce_used"
    JOIN_MIC_FAILED = "join_mic_failed"
    NO_DEVICE_BY_ADDRESS = "no_device_by_address"
    NO_DEVICE_BY_MIC = "no_device_by_mic"
    NOT_OWNER = "not_owner"


class FrameOutcome(Struct, frozen=True, kw_only=True):
    """What became of one frame at this hub.

    Attributes:
        device_id: Whose frame, None = of no device that is known here.
        result: See `Result`.
        reason: Why it was not taken, None = it was.
        elected_ms: Boot time at which the coordinator's answer came, None = it was not asked.
        upstream: Whether it was sent on.
        duplicate: Whether it was sent on with the mark of a duplicate.
        answer: Whether this hub may answer the device.
        saved: Whether the device's counters were written to its source.
        repeated: Whether this hub heard the very same frame within the last minute.
        commit: Of the newest message of the device that is not durable yet, None = all are. The
            device is answered after it, whatever became of the frame: it may be a repetition.
        is_open: Whether it was dropped although the hub that won has not stored it yet.
    """

    device_id: str | None
    result: Result
    reason: Reason | None = None
    elected_ms: int | None = None
    upstream: bool = False
    duplicate: bool = False
    answer: bool = False
    saved: bool = False
    repeated: bool = False
    commit: Commit | None = None
    is_open: bool = False


class Handling(Struct, frozen=True, kw_only=True):
    """What the head is to do with a frame that was elected.

    Attributes:
        upstream: Send it on.
        duplicate: Mark it as a duplicate.
        answer: Answer the device.
        frame: What is stored with the message.
    """

    upstream: bool
    duplicate: bool
    answer: bool
    frame: StoredFrame

"""What can go wrong with an operation of a device.

Owns the errors; `reason` is one of a closed set, for counters and answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgehub.errors import EdgeHubError

if TYPE_CHECKING:
    from edgehub.message import Refusal


class DeviceError(EdgeHubError):
    """An operation of a device failed.

    Attributes:
        device_id: Whose operation.
        reason: The kind of error, one word.
    """

    reason = "error"

    def __init__(self, device_id: str, text: str) -> None:
        super().__init__(f"device {device_id}: {text}")
        self.device_id = device_id


class DeviceQueueFullError(DeviceError):
    """Too many operations wait for the device; try again when some are done."""

    reason = "queue_full"


class TooManyDevicesError(DeviceError):
    """No place for one more device: all those in memory have something to do."""

    reason = "too_many_devices"


class DeviceUnknownError(DeviceError):
    """The source of devices does not know it."""

    reason = "unknown_device"


class DeviceSourceError(DeviceError):
    """Where devices are kept cannot be read or written now."""

    reason = "source_unreachable"


class DeviceConnectionError(DeviceError):
    """The device's own upstream connection cannot be opened."""

    reason = "connection_failed"


class DeviceNotOwnedError(DeviceError):
    """The connection is closed and stays closed: another hub owns the device."""

    reason = "not_owner"


class CoordinatorUnreachableError(DeviceError):
    """The coordinator gave no answer; the owner of the device is unknown."""

    reason = "coordinator_unreachable"


class MessageRefusedError(DeviceError):
    """The hub did not take the message after its election."""

    reason = "refused"

    def __init__(self, device_id: str, refusal: Refusal) -> None:
        super().__init__(device_id, f"the message is refused: {refusal}")
        self.refusal = refusal

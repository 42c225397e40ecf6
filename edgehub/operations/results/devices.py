"""Devices and their sessions, as operations return them."""

from __future__ import annotations

from typing import Any, NotRequired

from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12


class DeviceDocument(TypedDict):
    """A device that several hubs hear.

    Attributes:
        ownership: What this hub is for it.
        epoch: Number of the election.
        waiting: Messages that wait for an election.
        silent_s: Since it was last heard, null = not since the start.
    """

    device_id: str
    ownership: str
    epoch: int
    in_memory: bool
    session_open: bool
    waiting: int
    silent_s: float | None


class DevicesDocument(TypedDict):
    """A page of devices.

    Attributes:
        coordinator: What elects; `off` = nothing, and devices are not recorded.
        next: `after` of the next page, null = this is the last.
    """

    hub_id: str
    coordinator: str
    devices: list[DeviceDocument]
    next: str | None


class ElectionDocument(TypedDict):
    """A change of owner.

    Attributes:
        steal: This hub took the device from another.
        other: The other hub, null = none.
    """

    device_id: str
    time: str
    time_ms: int
    ownership: str
    former: str
    cause: str
    other: str | None
    epoch: int
    steal: bool


class ShownDevice(DeviceDocument):
    """One device, with its profile, session and newest changes of owner."""

    profile: dict[str, Any]
    session: dict[str, Any]
    queue: NotRequired[dict[str, Any]]
    connection: NotRequired[dict[str, Any]]
    ledger: list[ElectionDocument]


class LedgerDocument(TypedDict):
    """Changes of owner, and their number in the last hour and day."""

    hub_id: str
    entries: list[ElectionDocument]
    last_hour: dict[str, int]
    last_day: dict[str, int]


class ProfileDocument(TypedDict):
    """How a device is treated.

    Attributes:
        deduplication: What becomes of a copy that a hub heard too late.
        gateway_id: The only hub that may speak for it, null = any.
        keep_alive_s: After so much silence its session upstream is closed, 0 = never.
        activation: `abp` or `otaa`.
        relaxed_counters: Whether it may begin its counter again.
        gap_max: Largest step of its counter, null = any.
    """

    device_id: str
    deduplication: str
    gateway_id: str | None
    keep_alive_s: int
    activation: str
    relaxed_counters: bool
    gap_max: int | None


class ForgottenDocument(TypedDict):
    """Whether the registry had the device."""

    forgotten: bool


class ReleasedDocument(TypedDict):
    """Whether this hub spoke for the device."""

    released: bool

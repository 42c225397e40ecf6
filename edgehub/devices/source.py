"""What is stored of a device, and the contract of its source.

Owns the shapes. A source is the registry, or the device's twin upstream; only the latter needs the
device's connection to be read and written.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct, field

from edgehub.devices.connection import KEEP_ALIVE_S_MIN
from edgehub.errors import ConfigError
from edgehub.lora.device import LorawanProfile, LorawanSession, Whole  # noqa: TC001 - msgspec reads them

if TYPE_CHECKING:
    from collections.abc import Sequence

GAP_MAX: Final = 16_384
"""LoRaWAN 1.0.2 section 4.3.1.5, MAX_FCNT_GAP."""


RADIO_ADDRESS: Final = "/"
"""With it the address of a radio device begins, so that it is no device id."""


class Deduplication(StrEnum):
    """What happens to the copies of a message that several hubs receive."""

    DROP = "drop"  # one hub sends it, the others drop theirs
    MARK = "mark"  # all send it, the later ones say that they are duplicates
    NONE = "none"  # all send it


class Activation(StrEnum):
    """How a device got its session."""

    OTAA = "otaa"
    ABP = "abp"


class DeviceProfile(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The settings of a device.

    Attributes:
        device_id: DevEUI, or the id of another device.
        deduplication: See `Deduplication`.
        gateway_id: The only hub that may own it, None = the elected one.
        keep_alive_s: Idle seconds until its connection closes; 0 = never, else at least 60.
        activation: See `Activation`.
        relaxed_counters: An ABP device may start again with frame counter 0 or 1.
        gap_max: Frames that may be missing between two that are heard, None = any number.
        lora: What it has as a LoRaWAN device, None = it is none.
    """

    device_id: str
    deduplication: Deduplication = Deduplication.DROP
    gateway_id: str | None = None
    keep_alive_s: Whole = 0
    activation: Activation = Activation.OTAA
    relaxed_counters: bool = True
    gap_max: Whole | None = GAP_MAX
    lora: LorawanProfile | None = None

    def __post_init__(self) -> None:
        if self.keep_alive_s and self.keep_alive_s < KEEP_ALIVE_S_MIN:
            raise ConfigError(
                "keep_alive_s",
                f"{self.keep_alive_s} is between 0 and {KEEP_ALIVE_S_MIN}",
                f"0 = never close an idle connection, else at least {KEEP_ALIVE_S_MIN} seconds",
            )


class SessionState(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """What changes while a device lives.

    Attributes:
        session: Names the keys in use; another one with every join.
        generation: How many joins there were; each of them resets the counter.
        address: DevAddr in use behind `RADIO_ADDRESS`, "" = it has none; its frames are found by
            it.
        f_cnt_up: Last frame counter that was processed, 32 bits.
        dev_nonces: Nonces of earlier joins, the newest last.
        lora: Keys and further counters of a LoRaWAN device, None = it has no session.
    """

    session: str = ""
    generation: Whole = 0
    address: str = ""
    f_cnt_up: Whole = 0
    dev_nonces: tuple[Whole, ...] = ()
    lora: LorawanSession | None = None


class StoredDevice(Struct, frozen=True, kw_only=True):
    """A device as its source keeps it."""

    profile: DeviceProfile
    session: SessionState = field(default_factory=SessionState)


class DeviceSource(Protocol):
    """Where keys, session, counters and settings of devices live."""

    @property
    def needs_connection(self) -> bool:
        """Return whether `load` and `save` go over the device's own connection."""

    async def devices_at(self, address: str) -> Sequence[str]:
        """Return the ids of all devices with a DevAddr (or of the one device with that id).

        Raises:
            DeviceSourceError: It cannot be read now.
        """

    async def gateway_of(self, device_id: str) -> str | None:
        """Return the only gateway of a device without use of its connection; None = any.

        Also None where that is not known before the device is loaded.

        Raises:
            DeviceSourceError: It cannot be read now.
        """

    async def load(self, device_id: str) -> StoredDevice:
        """Read a device.

        Raises:
            DeviceUnknownError: There is none.
            DeviceSourceError: It cannot be read now.
        """

    async def save(self, device_id: str, session: SessionState) -> None:
        """Keep the new state of a device.

        Raises:
            DeviceUnknownError: There is none.
            DeviceSourceError: It cannot be written now.
        """


class DeviceRegistry(DeviceSource, Protocol):
    """A source that an operator writes to."""

    async def put(self, profile: DeviceProfile) -> None:
        """Write a profile down; the session stays.

        Raises:
            DeviceSourceError: It cannot be written now.
        """

    async def remove(self, device_id: str) -> bool:
        """Forget a device, profile and session; False = there was none.

        Raises:
            DeviceSourceError: It cannot be written now.
        """

    async def page(self, after: str, limit: int) -> list[StoredDevice]:
        """Read devices with an id above `after`, in the order of their ids.

        Raises:
            DeviceSourceError: They cannot be read now.
        """

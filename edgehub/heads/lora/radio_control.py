"""What devices are asked of their radio: data rate, power, repetitions, channels, windows, status.

Owns the recent signals of devices, and what they were asked and have not answered. Invariants: of
itself a device is asked only if something changes; what it has refused is not asked again in its
session; what it has granted is kept with its session. What an operator asks is sent with each
answer until the device has answered, and forgotten with its session or the hub.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from edgehub.lora.adr import AdrHistory, RadioSettings
from edgehub.lora.channels import masks_72
from edgehub.lora.device import MacVersion
from edgehub.lora.frames import FrameError
from edgehub.lora.mac_commands import MacCommand
from edgehub.lora.regions import FixedRegion

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from edgehub.devices.device import Device
    from edgehub.heads.lora.reception import Transmission
    from edgehub.lora.channels import Mask
    from edgehub.lora.device import LorawanSession
    from edgehub.lora.regions import Region

KEPT_MAX: Final = 20_000
ASKED_MAX: Final = 8
"""Commands of operators that wait for a device."""

_STICKY: Final = frozenset({"RXParamSetupAns", "RXTimingSetupAns", "DlChannelAns"})
"""Answers that a device repeats until it hears a downlink."""

_RX_PARAM: Final = ("channel_ack", "rx2_data_rate_ack", "rx1_dr_offset_ack")
_ACKS: Final = ("channel_mask_ack", "data_rate_ack", "power_ack")


class _Radio(Struct, eq=False):
    """What is known of a device in one session."""

    session: str
    history: AdrHistory = field(default_factory=AdrHistory)
    asked: RadioSettings | None = None
    refused: set[RadioSettings] = field(default_factory=set)
    is_masked: bool = False
    waiting: dict[str, MacCommand] = field(default_factory=dict)
    """Commands of operators, by their names."""
    answers: dict[str, Mapping[str, int]] = field(default_factory=dict)
    """The last answer to each, by its name."""


class RadioControl:
    """Requests to devices about their radio.

    Args:
        region: Of the stations.
        margin_db: What a signal keeps above the least, None = data rates are not adapted.
    """

    def __init__(self, region: Region, margin_db: float | None) -> None:
        self._region = region
        self._margin_db = margin_db
        self._radios: OrderedDict[str, _Radio] = OrderedDict()

    def record(
        self,
        device: Device,
        f_cnt: int,
        transmission: Transmission,
        commands: Iterable[MacCommand],
    ) -> bool:
        """Record a frame of a device, and what it answers; in its turn.

        Returns:
            Whether it wants a downlink, as it repeats an answer until then.
        """
        radio, before = self._radio(device), _session(device)
        lora, is_sticky = before, False
        for command in commands:
            is_sticky = is_sticky or command.name in _STICKY
            if command.name == "LinkADRAns" and radio.asked is not None:
                asked, radio.asked = radio.asked, None
                if all(command.values[name] for name in _ACKS):
                    radio.is_masked = True
                    lora = replace(lora, tx_power=asked.power, nb_trans=asked.nb_trans)
                else:
                    radio.refused.add(asked)
            elif command.name.endswith("Ans"):
                asked_for = radio.waiting.pop(command.name.removesuffix("Ans") + "Req", None)
                radio.answers[command.name] = command.values
                if asked_for is not None:
                    lora = _granted(lora, asked_for, command)
        if lora is not before:
            device.note_lora(lora)
        radio.history.add(f_cnt, transmission.best()[0].snr, lora.tx_power)
        return is_sticky

    def ask(self, device: Device, command: MacCommand) -> None:
        """Ask a device with its next answers; a command of the same name is replaced.

        Raises:
            FrameError: It is no such command, or too many wait.
        """
        command.build()
        waiting = self._radio(device).waiting
        if len(waiting) >= ASKED_MAX and command.name not in waiting:
            raise FrameError(f"{ASKED_MAX} commands wait for the device already")
        waiting[command.name] = command

    def document(self, device: Device) -> dict[str, Any]:
        """Describe what a device is asked and has answered."""
        radio = self._radios.get(device.device_id)
        if radio is None or radio.session != device.session.session:
            return {"waiting": [], "answers": {}}
        return {"waiting": list(radio.waiting), "answers": dict(radio.answers)}

    def requests(
        self, device: Device, transmission: Transmission, *, adapts: bool
    ) -> list[MacCommand]:
        """Return what a device is asked with its next answer; in its turn.

        Args:
            device: The device.
            transmission: Its frame.
            adapts: It lets the network choose its data rate.
        """
        waiting = list(self._radio(device).waiting.values())
        return waiting + self._link_requests(device, transmission, adapts=adapts)

    def _link_requests(
        self, device: Device, transmission: Transmission, *, adapts: bool
    ) -> list[MacCommand]:
        radio, lora = self._radio(device), _session(device)
        now = RadioSettings(transmission.first.dr, lora.tx_power, lora.nb_trans)
        wanted = now
        if adapts and self._margin_db is not None:
            wanted = radio.history.wanted(self._region, now, self._margin_db)
        if wanted in radio.refused:
            wanted = now
        if wanted == now and (radio.is_masked or not self._needs_masks(device)):
            return []
        if now.dr > self._region.up_dr_max:
            return []  # a rate of single channels, which the device has chosen itself
        radio.asked = wanted
        return [
            MacCommand(
                name="LinkADRReq",
                values={
                    "data_rate": wanted.dr,
                    "tx_power": wanted.power,
                    "ch_mask": mask,
                    "ch_mask_cntl": cntl,
                    "nb_rep": wanted.nb_trans,
                },
            )
            for cntl, mask in self._masks(device)
        ]

    def _needs_masks(self, device: Device) -> bool:
        """Return whether a device may send on channels that no station hears."""
        profile = device.profile.lora
        is_older = profile is not None and profile.mac_version < MacVersion.V1_0_3
        return isinstance(self._region, FixedRegion) and is_older

    def _masks(self, device: Device) -> list[Mask]:
        region = self._region
        if isinstance(region, FixedRegion):
            return masks_72(range(72), region.channels)
        # A device refuses channels that it does not know; further ones came with its join.
        has_joined = device.session.generation > 0
        known = region.up_channels_hz if has_joined else region.join_channels_hz
        return [(0, (1 << len(known)) - 1)]

    def _radio(self, device: Device) -> _Radio:
        session = device.session.session
        radio = self._radios.get(device.device_id)
        if radio is None or radio.session != session:
            radio = self._radios[device.device_id] = _Radio(session)
            if len(self._radios) > KEPT_MAX:
                self._radios.popitem(last=False)
        return radio


def _session(device: Device) -> LorawanSession:
    lora = device.session.lora
    assert lora is not None, "its MIC was checked"
    return lora


def _granted(lora: LorawanSession, asked: MacCommand, answer: MacCommand) -> LorawanSession:
    """Return a session with windows that its device has changed."""
    if asked.name == "RXTimingSetupReq":
        return replace(lora, rx_delay=asked.values["delay"] or 1)
    if asked.name == "RXParamSetupReq" and all(answer.values[name] for name in _RX_PARAM):
        return replace(
            lora,
            rx1_dr_offset=asked.values["rx1_dr_offset"],
            rx2_dr=asked.values["rx2_dr"],
            rx2_hz=asked.values["frequency_hz"],
        )
    return lora

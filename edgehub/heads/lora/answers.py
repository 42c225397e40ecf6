"""What devices are answered: acknowledgements, replies to MAC commands, and messages that wait.

Owns which downlink counters are reserved, and the messages that wait for a device's
acknowledgement. Runs in the turn of the device. Invariants: a downlink counter is on disk before it
is used, and used once; a message is settled once, as delivered when a station has sent it or,
where its sender wants that, when the device has acknowledged it.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from edgehub.decoders.scripts import DecoderError
from edgehub.devices.affinity.flags import Ownership
from edgehub.devices.faults import DeviceError
from edgehub.devices.request_queue import RequestKind
from edgehub.heads.lora.downlinks import windows_of
from edgehub.heads.lora.payloads import encode_body, is_encodable
from edgehub.lora import session
from edgehub.lora.frames import ACK, F_OPTS_MAX, F_PENDING, DataFrame, MType, mhdr_of
from edgehub.lora.gps_time import gps_ms
from edgehub.lora.mac_commands import MacCommand
from edgehub.lora.regions import required_snr_db
from edgehub.message import DELIVERED, FailureKind, SendResult

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from edgehub.clock import Clock, TimerHandle
    from edgehub.decoders.decoders import Decoders
    from edgehub.devices.device import Device
    from edgehub.heads.head import SendToClient, WaitingMessage
    from edgehub.heads.lora.downlinks import Downlinks, Windows
    from edgehub.heads.lora.radio_control import RadioControl
    from edgehub.heads.lora.reception import Transmission
    from edgehub.lora.device import LorawanSession
    from edgehub.lora.regions import Region

    Settle = Callable[[SendResult], None]

RESERVED_MIN: Final = 16
"""Downlink counters that are stored at once; twice as many each further time, because messages that
arrive during the write wait for it. A restart, or another owner, skips those left: so of the 16 384
that a device of LoRaWAN 1.0.3 may miss, it uses up hardly more than frames do."""
RESERVED_MAX: Final = 256
RESERVED_AHEAD: Final = 4
"""Further ones are stored when so few are left, so that hardly an answer waits for it."""
KEPT_MAX: Final = 20_000
"""Devices whose reserved counters are kept."""
ACKNOWLEDGED_S: Final = 60.0
"""A device that always listens acknowledges within this time."""
RETRY_S: Final = 5.0
"""A message that no station could send to a device that always listens is tried again so later."""
TEMPORARY_KINDS: Final = frozenset({"busy", "set_aside", "timed_out"})
"""Why a message was not encoded, and will be tried again."""
PORT_PROPERTY: Final = "loraPort"
CONFIRMED_PROPERTY: Final = "loraConfirmed"
PORT_MAX: Final = 223
_MARGIN_MAX: Final = 254

_NOT_ACKNOWLEDGED: Final = SendResult(FailureKind.TIMEOUT, "the device has not acknowledged it")
_NOT_SENT: Final = SendResult(
    FailureKind.UNREACHABLE, "no station sent it in a window", retry_after_s=RETRY_S
)


class WaitingMessages(Protocol):
    """The messages that wait for devices; see `edgehub.device_bound`."""

    def has_next(self, target: str) -> bool:
        """Return whether one could be taken."""

    def take(self, target: str) -> WaitingMessage | None:
        """Return the next message for a device that listens now, None = there is none."""

    def send_by(self, target: str, send: SendToClient) -> None:
        """Send messages as they come: the device always listens."""


class _Reserved(Struct, eq=False):
    session: str
    following: int
    limit: int
    count: int


class _Unacknowledged(Struct, eq=False):
    settle: Settle
    timer: TimerHandle | None


class _ApplicationData(Struct, frozen=True, kw_only=True):
    """The application's part of a downlink."""

    f_port: int
    payload: bytes
    confirmed: bool
    waiting: WaitingMessage


class Answers:
    """Answers to devices.

    Args:
        region: Of the stations.
        downlinks: Sends them.
        messages: Those that wait for devices.
        radio: What devices are asked of their radio.
        decoders: Encode messages to devices that name one.
        spawn: Runs what takes longer than the device's turn.
        clock: For times.
    """

    def __init__(
        self,
        region: Region,
        *,
        downlinks: Downlinks,
        messages: WaitingMessages,
        radio: RadioControl,
        decoders: Decoders,
        spawn: Callable[[Awaitable[object], str], None],
        clock: Clock,
    ) -> None:
        self._region = region
        self._downlinks = downlinks
        self._messages = messages
        self._radio = radio
        self._decoders = decoders
        self._spawn = spawn
        self._clock = clock
        self._reserved: OrderedDict[str, _Reserved] = OrderedDict()
        self._unacknowledged: dict[str, _Unacknowledged] = {}

    async def answer(
        self,
        device: Device,
        frame: DataFrame,
        f_cnt: int,
        commands: list[MacCommand],
        transmission: Transmission,
    ) -> None:
        """Answer an uplink in the device's windows, if there is something to say.

        Raises:
            DeviceError: A counter could not be reserved.
        """
        name = device.device_id
        self._acknowledge(name, frame)
        before = device.session.lora
        is_wanted = self._radio.record(device, f_cnt, transmission, commands)
        granted = device.session.lora
        if granted is not None and granted is not before:
            await device.save_lora(granted)
        to_device = self._replies(commands, transmission)
        to_device += self._radio.requests(device, transmission, adapts=frame.adr)
        options = b"".join(command.build() for command in to_device)
        has_message = self._messages.has_next(name) and name not in self._unacknowledged
        is_wanted = is_wanted or frame.is_confirmed or frame.adr_ack_req
        if not (is_wanted or options or has_message):
            return
        f_cnt_down = await self._next_f_cnt_down(device)
        lora = device.session.lora
        assert lora is not None, "it has just been written"
        windows = windows_of(self._region, lora.rx_delay, lora)
        data = None
        if has_message and len(options) <= F_OPTS_MAX:
            dr, _ = self._region.rx1(
                transmission.first.dr, transmission.first.hz, windows.rx1_dr_offset
            )
            data, windows = await self._next_data(device, windows, dr, len(options))
        phy_payload = _downlink(
            lora,
            data,
            dev_addr=frame.dev_addr,
            f_cnt=f_cnt_down,
            options=options,
            acknowledged=f_cnt if frame.is_confirmed else None,
        )
        if data is not None and data.confirmed:
            await self._save_confirmed(device, f_cnt_down)
        written = None if data is None else data.waiting.written
        sent = self._downlinks.answer(int(name, 16), phy_payload, transmission, windows, written)
        self._spawn(sent if data is None else self._deliver(name, data, sent, None), "lora-answer")

    async def send_now(
        self, device: Device, dev_addr: int, station: int, waiting: WaitingMessage
    ) -> None:
        """Send a message to a device that always listens.

        Raises:
            DeviceError: A counter could not be reserved; the message is not settled.
        """
        lora = device.session.lora
        assert lora is not None, "it has a session"
        windows = windows_of(self._region, lora.rx_delay, lora)
        data = await self._data_of(device, waiting)
        if isinstance(data, SendResult):
            waiting.settle(data)
            return
        limit = self._region.max_payload(windows.rx2_dr)
        if len(data.payload) > limit:
            waiting.settle(_too_large(len(data.payload), limit))
            return
        f_cnt_down = await self._next_f_cnt_down(device)
        if data.confirmed:
            await self._save_confirmed(device, f_cnt_down)
        lora = device.session.lora
        phy_payload = _downlink(lora, data, dev_addr=dev_addr, f_cnt=f_cnt_down)
        dev_eui = int(device.device_id, 16)
        # Handed over in this turn of the loop: where it is busy, each one more is milliseconds.
        sent = self._downlinks.send_now(dev_eui, phy_payload, station, windows, waiting.written)
        timeout_s = ACKNOWLEDGED_S if data.confirmed else None
        self._spawn(self._deliver(device.device_id, data, sent, timeout_s), "lora-message")

    # Messages.

    async def _next_data(
        self, device: Device, windows: Windows, rx1_dr: int, used: int
    ) -> tuple[_ApplicationData | None, Windows]:
        """Take the next message that fits; windows that are too small for it are left out."""
        limits = [self._region.max_payload(dr) - used for dr in (rx1_dr, windows.rx2_dr)]
        while (waiting := self._messages.take(device.device_id)) is not None:
            data = await self._data_of(device, waiting)
            if isinstance(data, SendResult):
                waiting.settle(data)
                if data.kind is FailureKind.UNREACHABLE:
                    return None, windows  # it waits on, and would be taken again
                continue
            size = len(data.payload)
            if size > max(limits):
                if size > max(limits) + used:
                    waiting.settle(_too_large(size, max(limits) + used))
                    continue
                waiting.settle(_NOT_SENT)  # the MAC commands go first
                return None, windows
            fits_rx1, fits_rx2 = (size <= limit for limit in limits)
            return data, replace(windows, has_rx1=fits_rx1, has_rx2=fits_rx2)
        return None, windows

    async def _data_of(
        self, device: Device, waiting: WaitingMessage
    ) -> _ApplicationData | SendResult:
        """Return what a message asks for; a result where that cannot be sent, or not now."""
        message, profile = waiting.message, device.profile.lora
        properties, payload = message.properties, message.body
        asked = properties.get(PORT_PROPERTY)
        port: str | int | None = asked
        decoder = None if profile is None else profile.decoder
        if decoder and is_encodable(message):
            try:
                encoded = await encode_body(payload, asked, self._decoders, decoder)
            except DecoderError as error:
                is_lasting = error.kind not in TEMPORARY_KINDS
                kind = FailureKind.REJECTED if is_lasting else FailureKind.UNREACHABLE
                reason = f"decoder {decoder}: {error}"
                return SendResult(kind, reason, retry_after_s=None if is_lasting else RETRY_S)
            payload = encoded.payload
            port = asked if encoded.f_port is None else encoded.f_port
        f_port = _port_of(port)
        if f_port is None:
            reason = f"{PORT_PROPERTY} is {str(port)[:20]}, want a port from 1 to {PORT_MAX}"
            return SendResult(FailureKind.REJECTED, reason)
        return _ApplicationData(
            f_port=f_port,
            payload=payload,
            confirmed=properties.get(CONFIRMED_PROPERTY) == "true",
            waiting=waiting,
        )

    async def _deliver(
        self,
        name: str,
        data: _ApplicationData,
        sent: Awaitable[bool],
        timeout_s: float | None,
    ) -> None:
        waiting = data.waiting
        if data.confirmed:
            # The acknowledgement may come before the report of the station.
            self._unacknowledged[name] = _Unacknowledged(waiting.settle, None)
        is_sent = await sent
        if not data.confirmed:
            waiting.settle(DELIVERED if is_sent else _NOT_SENT)
            return
        unacknowledged = self._unacknowledged.get(name)
        if unacknowledged is None:
            return
        if not is_sent:
            self._unacknowledged.pop(name)
            waiting.settle(_NOT_SENT)
        elif timeout_s is not None:
            unacknowledged.timer = self._clock.call_later(timeout_s, partial(self._give_up, name))

    def _acknowledge(self, name: str, frame: DataFrame) -> None:
        """Settle the message that waits for its device's acknowledgement, by the next uplink."""
        unacknowledged = self._unacknowledged.pop(name, None)
        if unacknowledged is not None:
            if unacknowledged.timer is not None:
                unacknowledged.timer.cancel()
            unacknowledged.settle(DELIVERED if frame.ack else _NOT_ACKNOWLEDGED)

    def _give_up(self, name: str) -> None:
        unacknowledged = self._unacknowledged.pop(name, None)
        if unacknowledged is not None:
            unacknowledged.settle(_NOT_ACKNOWLEDGED)

    # MAC commands.

    def _replies(self, commands: list[MacCommand], transmission: Transmission) -> list[MacCommand]:
        replies = []
        for command in commands:
            if command.name == "LinkCheckReq":
                best = transmission.best()
                rate = self._region.rate(best[0].dr)
                margin = 0.0 if rate is None else best[0].snr - required_snr_db(rate)
                values = {"margin": max(0, min(int(margin), _MARGIN_MAX)), "gw_cnt": len(best)}
                replies.append(MacCommand(name="LinkCheckAns", values=values))
            elif command.name == "DeviceTimeReq" and self._clock.synchronized():
                # The time of the end of the uplink is wanted.
                elapsed_s = self._clock.monotonic() - transmission.first.received_s
                ms = gps_ms(self._clock.wall_ms()) - int(elapsed_s * 1000)
                seconds, part = divmod(ms, 1000)
                values = {"seconds": seconds, "fraction_256": part * 256 // 1000}
                replies.append(MacCommand(name="DeviceTimeAns", values=values))
            elif command.name in ("RekeyInd", "ResetInd"):
                reply = command.name.replace("Ind", "Conf")
                replies.append(MacCommand(name=reply, values={"minor": 1}))
        return replies

    # Counters.

    async def _next_f_cnt_down(self, device: Device) -> int:
        lora, name = device.session.lora, device.session.session
        assert lora is not None, "its MIC was checked"
        kept = self._reserved.get(device.device_id)
        if kept is None or kept.session != name or kept.limit != lora.f_cnt_down:
            # What is written may have been used, by this hub before a restart or by another one.
            kept = _Reserved(name, lora.f_cnt_down, lora.f_cnt_down, RESERVED_MIN)
        if kept.following == kept.limit:
            await _reserve(device, kept)
        self._reserved[device.device_id] = kept
        if len(self._reserved) > KEPT_MAX:
            self._reserved.popitem(last=False)
        kept.following += 1
        if kept.following + RESERVED_AHEAD == kept.limit:
            self._spawn(self._reserve_ahead(device, kept), "lora-counters")
        return kept.following - 1

    async def _reserve_ahead(self, device: Device, kept: _Reserved) -> None:
        """Reserve counters in a turn of their own; if it fails, the answer that needs them does."""

        async def reserve() -> None:
            lora = None if device.stored is None else device.session.lora
            if (
                lora is not None
                and device.ownership is Ownership.OWNER
                and (device.session.session, lora.f_cnt_down) == (kept.session, kept.limit)
            ):
                await _reserve(device, kept)

        with contextlib.suppress(DeviceError):
            await device.queue.run(RequestKind.DOWNLINK, reserve)

    async def _save_confirmed(self, device: Device, f_cnt_down: int) -> None:
        lora = device.session.lora
        assert lora is not None, "it has just been written"
        if lora.is_1_1:
            # The MIC of the uplink that acknowledges it covers this counter.
            await device.save_lora(replace(lora, confirmed_f_cnt_down=f_cnt_down))


async def _reserve(device: Device, kept: _Reserved) -> None:
    lora = device.session.lora
    assert lora is not None, "it has a session"
    kept.limit += kept.count
    kept.count = min(2 * kept.count, RESERVED_MAX)
    await device.save_lora(replace(lora, f_cnt_down=kept.limit))


def _port_of(port: str | int | None) -> int | None:
    """Return the port that a message or its decoder asks for, None = it is none."""
    text = "1" if port in (None, "") else str(port)
    is_port = text.isascii() and text.isdecimal() and 1 <= int(text) <= PORT_MAX
    return int(text) if is_port else None


def _too_large(size: int, limit: int) -> SendResult:
    reason = f"it has {size} bytes, and {limit} fit at the device's data rate"
    return SendResult(FailureKind.TOO_LARGE, reason)


def _downlink(
    lora: LorawanSession | None,
    data: _ApplicationData | None,
    *,
    dev_addr: int,
    f_cnt: int,
    options: bytes = b"",
    acknowledged: int | None = None,
) -> bytes:
    assert lora is not None, "the device has a session"
    confirmed = data is not None and data.confirmed
    kind = MType.CONFIRMED_DATA_DOWN if confirmed else MType.UNCONFIRMED_DATA_DOWN
    has_more = data is not None and data.waiting.has_more
    frame = DataFrame(
        mhdr=mhdr_of(kind),
        dev_addr=dev_addr,
        f_ctrl=(0 if acknowledged is None else ACK) | (F_PENDING if has_more else 0),
        f_cnt=f_cnt & 0xFFFF,
        f_opts=options,
        f_port=None if data is None else data.f_port,
        frm_payload=b"" if data is None else data.payload,
    )
    return session.build_frame(lora, frame, f_cnt, conf_f_cnt=acknowledged or 0)

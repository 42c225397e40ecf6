"""The network server: join requests and data frames of devices, and what they are answered.

Owns the frames that are being processed. Elections, counters and sessions are those of
`edgehub.devices`: each frame goes through its device's request queue. Invariants: nothing of a
frame is used before its MIC was found right with the full counter; a confirmed frame is
acknowledged after its message was committed; a downlink counter is on disk before it is used.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from edgehub.devices.affinity.data import Uplink
from edgehub.devices.affinity.join import JoinRequest
from edgehub.devices.affinity.outcome import Reason, Result
from edgehub.devices.election_queue import MessageRefusedError
from edgehub.devices.faults import DeviceError, DeviceUnknownError
from edgehub.devices.source import RADIO_ADDRESS, SessionState
from edgehub.heads.lora.downlinks import Downlinks, Windows
from edgehub.heads.lora.reception import Transmissions, parse_reception
from edgehub.heads.lora.station_messages import phy_payload_of
from edgehub.lora import crypto, session
from edgehub.lora.channels import frequency_cf_list, mask_cf_list
from edgehub.lora.device import MacVersion
from edgehub.lora.frames import (
    ACK,
    DataFrame,
    JoinAcceptFields,
    JoinAcceptFrame,
    JoinRequestFrame,
    MType,
    dl_settings,
    mhdr_of,
    parse_frame,
)
from edgehub.lora.identifiers import dev_addr_of, dev_addr_text, eui_text
from edgehub.lora.mac_commands import MacCommand
from edgehub.lora.regions import JOIN_ACCEPT_DELAY_S, FixedRegion, required_snr_db
from edgehub.message import Message, message_source
from edgehub.mqtt.property_bag import DUPLICATE_PROPERTY

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from edgehub.clock import Clock
    from edgehub.devices.affinity.outcome import FrameOutcome, Handling
    from edgehub.devices.device import Device
    from edgehub.devices.devices import Devices
    from edgehub.devices.source import StoredDevice
    from edgehub.heads.head import Submit
    from edgehub.heads.lora.reception import StationReception, Transmission
    from edgehub.heads.lora.stations import Station, Stations
    from edgehub.lora.device import LorawanSession
    from edgehub.lora.regions import Region
    from edgehub.message import Refusal
    from edgehub.telemetry.log_limit import LogLimit

FRAMES_MAX: Final = 1_000
"""Frames in process at once; beyond it stations are not read."""
RESERVED: Final = 16
"""Downlink counters that are written down at once."""
FIRST_STATION: Final = "first"
"""In place of the name of the station whose copy of a transmission came first."""
KEPT_MAX: Final = 20_000
"""Devices whose last accept and reserved counters are kept."""
_MARGIN_MAX: Final = 254
_GPS_EPOCH_S: Final = 315_964_800
_LEAP_S: Final = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOptions:
    """How devices are answered.

    Attributes:
        net_id: NetID of their addresses.
        rx_delay_s: Seconds until RX1, for devices that join.
        join_resend: A join that was answered is answered again until data come.
    """

    net_id: int
    rx_delay_s: int
    join_resend: bool


@dataclass(slots=True, eq=False)
class _Reserved:
    session: str
    following: int
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Accepted:
    mic: bytes
    session: str
    phy_payload: bytes


class NetworkServer:
    """Frames of devices.

    Args:
        options: How devices are answered.
        region: Of the stations.
        stations: Those that are connected.
        devices: Where frames are processed.
        is_registered: Returns whether a DevEUI is that of a registered device.
        submit: Stores messages; their device's turn is kept while it runs.
        clock: For all timers.
        log: Lines at a bounded rate.

    Attributes:
        downlinks: Answers on their way.
        counts: Join requests and refused frames by what became of them.
    """

    def __init__(
        self,
        options: NetworkOptions,
        *,
        region: Region,
        stations: Stations,
        devices: Devices,
        is_registered: Callable[[str], Awaitable[bool]],
        submit: Submit,
        clock: Clock,
        log: LogLimit,
    ) -> None:
        self._options = options
        self._region = region
        self._devices = devices
        self._is_registered = is_registered
        self._submit = submit
        self._clock = clock
        self._log = log
        self._tasks: asyncio.TaskGroup | None = None
        self._transmissions = Transmissions(clock)
        self._reserved: OrderedDict[str, _Reserved] = OrderedDict()
        self._accepted: OrderedDict[str, _Accepted] = OrderedDict()
        self._idle = asyncio.Event()
        self.downlinks = Downlinks(region, stations, clock)
        self.counts: Counter[str] = Counter()
        self.busy = 0
        self.on_load: Callable[[bool], None] = lambda _is_full: None

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Take the group in which frames are processed."""
        self._tasks = tasks

    async def until_idle(self) -> None:
        """Wait until every frame that was taken is processed and answered."""
        while self.busy:
            self._idle.clear()
            await self._idle.wait()

    def take(self, message: Mapping[str, Any], station: Station) -> None:
        """Take a frame of a station.

        Raises:
            FrameError: It is none.
        """
        reception = parse_reception(
            message,
            self._region,
            station=station.station_id,
            received_s=self._clock.monotonic(),
        )
        phy_payload = phy_payload_of(message)
        frame = parse_frame(phy_payload)
        if not isinstance(frame, DataFrame | JoinRequestFrame):
            self.counts["other_frames"] += 1
            return
        added = self._transmissions.add(phy_payload, reception)
        if added is None:
            station.loops += 1
            self._log.warning("lora.station_loops", station=eui_text(station.station_id))
            return
        transmission, is_again = added
        if is_again:
            return  # another antenna of the station, or another channel that it was heard on
        # A repetition is one, whichever station hears it first.
        is_first = transmission.first is reception
        name = FIRST_STATION if is_first else eui_text(station.station_id)
        if isinstance(frame, JoinRequestFrame):
            work = self._join(frame, transmission, name)
        else:
            work = self._data(frame, phy_payload, transmission, reception, name)
        self._spawn(work, "lora-frame")

    # Joins.

    async def _join(
        self, frame: JoinRequestFrame, transmission: Transmission, station: str
    ) -> None:
        device_id = eui_text(frame.dev_eui)
        built: list[bytes] = []

        async def accept(stored: StoredDevice) -> SessionState | None:
            self._check_registered(stored, frame)
            if not _is_authentic(stored, frame):
                return None
            state, phy_payload = self._accept(stored, frame)
            built.append(phy_payload)
            return state

        request = JoinRequest(
            device_id=device_id,
            dev_nonce=frame.dev_nonce,
            station=station,
            key=f"{frame.dev_nonce}/{frame.mic.hex()}",
        )
        try:
            if not await self._is_registered(device_id):
                raise DeviceUnknownError(device_id, "it is not registered")
            outcome = await self._devices.join(request, accept)
        except DeviceError as error:
            self._failed("lora.join_failed", error)
            return
        self.counts[f"join_{outcome.reason or outcome.result}"] += 1
        phy_payload, heard_by = None, eui_text(transmission.first.station)
        if outcome.result is Result.ACCEPTED:
            [phy_payload] = built
            self._keep_accept(device_id, frame, phy_payload)
            self._log.info("lora.joined", device_id=device_id, station=heard_by)
        elif outcome.reason is Reason.DEV_NONCE_USED:
            phy_payload = self._again(device_id, frame)
        elif outcome.reason is Reason.JOIN_MIC_FAILED:
            self._log.warning("lora.join_mic_failed", device_id=device_id, station=heard_by)
        if phy_payload is not None:
            windows = self._windows(JOIN_ACCEPT_DELAY_S)
            await self.downlinks.answer(frame.dev_eui, phy_payload, transmission, windows)

    @staticmethod
    def _check_registered(stored: StoredDevice, frame: JoinRequestFrame) -> None:
        device_id, profile = stored.profile.device_id, stored.profile.lora
        if profile is None or not profile.app_key:
            raise DeviceUnknownError(device_id, "it is not registered as a device that joins")
        join_eui = eui_text(frame.join_eui)
        if profile.join_eui not in ("", join_eui):
            raise DeviceUnknownError(
                device_id, f"it is registered with another JoinEUI, {join_eui}"
            )

    def _accept(self, stored: StoredDevice, frame: JoinRequestFrame) -> tuple[SessionState, bytes]:
        profile, options = stored.profile.lora, self._options
        assert profile is not None
        is_1_1 = profile.mac_version is MacVersion.V1_1
        # JoinNonce counts from 1.0.4 on, and never comes twice before.
        nonce = stored.session.generation + 1
        fields = JoinAcceptFields(
            app_nonce=nonce,
            net_id=options.net_id,
            dev_addr=dev_addr_of(options.net_id, secrets.randbits(32)),
            dl_settings=dl_settings(rx1_dr_offset=0, rx2_dr=self._region.rx2_dr, opt_neg=is_1_1),
            rx_delay=options.rx_delay_s,
            cf_list=self._cf_list(profile.mac_version),
        )
        app_key = bytes.fromhex(profile.app_key)
        nwk_key = bytes.fromhex(profile.nwk_key) if is_1_1 else app_key
        keys = crypto.JoinKeys(app_key, nwk_key, frame.join_eui, frame.dev_eui, frame.dev_nonce)
        state = SessionState(
            session=secrets.token_hex(8),
            address=RADIO_ADDRESS + dev_addr_text(fields.dev_addr),
            lora=session.session_of(keys, fields, rx_delay=options.rx_delay_s),
        )
        mhdr = mhdr_of(MType.JOIN_ACCEPT)
        mic = crypto.join_accept_mic(keys, mhdr, fields)
        sealed = crypto.seal_accept(nwk_key, fields.build(), mic)
        return state, JoinAcceptFrame(mhdr=mhdr, encrypted=sealed).build()

    def _cf_list(self, version: MacVersion) -> bytes:
        region = self._region
        if not isinstance(region, FixedRegion):
            return frequency_cf_list(region.more_channels_hz)
        # Masks came with 1.0.3; older devices know no such list.
        return mask_cf_list(region.channels) if version >= MacVersion.V1_0_3 else b""

    def _keep_accept(self, device_id: str, frame: JoinRequestFrame, phy_payload: bytes) -> None:
        device = self._devices.known(device_id)
        if device is not None and device.stored is not None:
            self._accepted[device_id] = _Accepted(
                mic=frame.mic, session=device.session.session, phy_payload=phy_payload
            )
            if len(self._accepted) > KEPT_MAX:
                self._accepted.popitem(last=False)

    def _again(self, device_id: str, frame: JoinRequestFrame) -> bytes | None:
        """Return the accept that a device has not heard, None = its nonce is used."""
        device, accepted = self._devices.known(device_id), self._accepted.get(device_id)
        if device is None or device.stored is None or not _is_authentic(device.stored, frame):
            return None
        is_pending = (
            accepted is not None
            and accepted.mic == frame.mic
            and accepted.session == device.session.session
            and not device.heard
        )
        if accepted is not None and is_pending and self._options.join_resend:
            self.counts["join_resent"] += 1
            return accepted.phy_payload
        self._log.warning(
            "lora.nonce_used",
            device_id=device_id,
            dev_nonce=frame.dev_nonce,
            hint="a device that begins its nonces again needs `edgehub lora device forget-nonces`; "
            "one that has not heard its answer needs lora.join_resend",
        )
        return None

    # Data.

    async def _data(
        self,
        frame: DataFrame,
        phy_payload: bytes,
        transmission: Transmission,
        reception: StationReception,
        station: str,
    ) -> None:
        address = RADIO_ADDRESS + dev_addr_text(frame.dev_addr)
        rate = session.UplinkRate(reception.dr, self._region.channel_of(reception.hz))
        found: dict[str, int] = {}

        def counter(stored: StoredDevice) -> int | None:
            if stored.session.lora is None or stored.session.address != address:
                return None
            last = stored.session.f_cnt_up
            f_cnt = session.find_counter(stored.session.lora, frame, last, rate)
            if f_cnt is not None:
                found.clear()
                found[stored.profile.device_id] = f_cnt
            return f_cnt

        async def handle(handling: Handling) -> None:
            [(device_id, f_cnt)] = found.items()
            device = self._devices.known(device_id)
            assert device is not None, "it is in its own turn"
            await self._handle(device, frame, f_cnt, transmission, handling)

        uplink = Uplink(
            address=address,
            confirmed=frame.is_confirmed,
            station=station,
            key=phy_payload.hex(),
            counter=counter,
        )
        try:
            outcome = await self._devices.data(uplink, handle)
        except DeviceError as error:
            self._failed("lora.frame_failed", error)
            return
        self._note(outcome, eui_text(transmission.first.station))

    async def _handle(
        self,
        device: Device,
        frame: DataFrame,
        f_cnt: int,
        transmission: Transmission,
        handling: Handling,
    ) -> None:
        lora = device.session.lora
        assert lora is not None, "its MIC was checked"
        plain = session.open_frame(lora, frame, f_cnt)
        if handling.upstream and frame.f_port:
            message = self._message(device.device_id, frame, f_cnt, plain.payload, transmission)
            if handling.duplicate:
                message.properties[DUPLICATE_PROPERTY] = "true"
            await self._store(message)
        if not handling.answer:
            return
        replies = self._replies(plain.commands, transmission)
        if frame.is_confirmed or frame.adr_ack_req or replies:
            await self._answer(device, frame, f_cnt, replies, transmission)

    def _message(
        self,
        device_id: str,
        frame: DataFrame,
        f_cnt: int,
        payload: bytes,
        transmission: Transmission,
    ) -> Message:
        best = transmission.best()[0]
        rate = self._region.rate(best.dr)
        properties: dict[str, str | None] = {
            "loraPort": str(frame.f_port),
            "loraCounter": str(f_cnt),
            "loraDevAddr": dev_addr_text(frame.dev_addr),
            "loraConfirmed": "true" if frame.is_confirmed else "false",
            "loraStation": eui_text(best.station),
            "loraRssi": f"{best.rssi:g}",
            "loraSnr": f"{best.snr:g}",
            "loraFrequency": str(best.hz),
            "loraDataRate": str(best.dr) if rate is None else rate.name,
        }
        system: dict[str, str | None] = {"contentType": "application/octet-stream"}
        return Message(device_id, None, message_source(None, None), properties, system, payload)

    async def _store(self, message: Message) -> None:
        stored: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()

        def settle(_token: int, refusal: Refusal | None) -> None:
            if not stored.done():
                stored.set_result(refusal)

        self._submit(message, settle, 0)
        refusal = await stored
        if refusal is not None:
            raise MessageRefusedError(message.device_id, refusal)

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
                ms = self._clock.wall_ms() - (_GPS_EPOCH_S - _LEAP_S) * 1000
                # The time of the end of the uplink is wanted.
                elapsed_s = self._clock.monotonic() - transmission.first.received_s
                seconds, part = divmod(ms - int(elapsed_s * 1000), 1000)
                values = {"seconds": seconds, "fraction_256": part * 256 // 1000}
                replies.append(MacCommand(name="DeviceTimeAns", values=values))
            elif command.name in ("RekeyInd", "ResetInd"):
                reply = command.name.replace("Ind", "Conf")
                replies.append(MacCommand(name=reply, values={"minor": 1}))
        return replies

    async def _answer(
        self,
        device: Device,
        frame: DataFrame,
        f_cnt: int,
        replies: list[MacCommand],
        transmission: Transmission,
    ) -> None:
        f_cnt_down = await self._next_f_cnt_down(device)
        lora = device.session.lora
        assert lora is not None, "it has just been written"
        phy_payload = session.build_frame(
            lora,
            DataFrame(
                mhdr=mhdr_of(MType.UNCONFIRMED_DATA_DOWN),
                dev_addr=frame.dev_addr,
                f_ctrl=ACK if frame.is_confirmed else 0,
                f_cnt=f_cnt_down & 0xFFFF,
                f_opts=b"".join(command.build() for command in replies),
            ),
            f_cnt_down,
            conf_f_cnt=f_cnt if frame.is_confirmed else 0,
        )
        windows = self._windows(lora.rx_delay, lora)
        work = self.downlinks.answer(int(device.device_id, 16), phy_payload, transmission, windows)
        self._spawn(work, "lora-answer")

    async def _next_f_cnt_down(self, device: Device) -> int:
        lora, name = device.session.lora, device.session.session
        assert lora is not None, "its MIC was checked"
        kept = self._reserved.get(device.device_id)
        if kept is None or kept.session != name or kept.limit != lora.f_cnt_down:
            # What is written may have been used, by this hub before a restart or by another one.
            kept = _Reserved(name, lora.f_cnt_down, lora.f_cnt_down)
        if kept.following == kept.limit:
            kept.limit += RESERVED
            await device.save_lora(replace(lora, f_cnt_down=kept.limit))
        self._reserved[device.device_id] = kept
        if len(self._reserved) > KEPT_MAX:
            self._reserved.popitem(last=False)
        kept.following += 1
        return kept.following - 1

    def _windows(self, delay_s: int, lora: LorawanSession | None = None) -> Windows:
        region = self._region
        dr, hz = (None, None) if lora is None else (lora.rx2_dr, lora.rx2_hz)
        return Windows(
            delay_s=delay_s,
            rx1_dr_offset=0 if lora is None else lora.rx1_dr_offset,
            rx2_dr=region.rx2_dr if dr is None else dr,
            rx2_hz=region.rx2_hz if hz is None else hz,
        )

    def _note(self, outcome: FrameOutcome, station: str) -> None:
        if outcome.result is Result.REJECTED and outcome.device_id and not outcome.repeated:
            self._log.warning(
                "lora.frame_refused",
                device_id=outcome.device_id,
                station=station,
                reason=outcome.reason,
            )

    def _failed(self, event: str, error: DeviceError) -> None:
        self.counts[error.reason] += 1
        self._log.warning(event, device_id=error.device_id, reason=str(error))

    def _spawn(self, work: Awaitable[object], name: str) -> None:
        assert self._tasks is not None, "connections exist only while the head runs"

        async def run() -> None:
            try:
                await work
            finally:
                self.busy -= 1
                self.on_load(self.busy >= FRAMES_MAX)
                if not self.busy:
                    self._idle.set()

        self.busy += 1
        self.on_load(self.busy >= FRAMES_MAX)
        self._tasks.create_task(run(), name=name)


def _is_authentic(stored: StoredDevice, frame: JoinRequestFrame) -> bool:
    profile = stored.profile.lora
    if profile is None or not profile.app_key:
        return False
    is_1_1 = profile.mac_version is MacVersion.V1_1
    key = bytes.fromhex(profile.nwk_key if is_1_1 else profile.app_key)
    return crypto.is_mic(crypto.request_mic(key, frame.signed_part()), frame.mic)

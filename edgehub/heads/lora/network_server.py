"""The network server: join requests and data frames of devices, and what they are answered.

Owns the frames that are being processed. Elections, counters and sessions are those of
`edgehub.devices`: each frame goes through its device's request queue. Invariants: nothing of a
frame is used before its MIC was found right with the full counter; a confirmed frame is
acknowledged after its message was committed; a downlink counter is on disk before it is used.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace

from edgehub.decoders.decoders import Decoders
from edgehub.devices.affinity.data import Uplink
from edgehub.devices.affinity.flags import Ownership
from edgehub.devices.affinity.outcome import Result
from edgehub.devices.faults import DeviceError, DeviceNotOwnedError, DeviceUnknownError
from edgehub.devices.request_queue import RequestKind
from edgehub.devices.source import RADIO_ADDRESS
from edgehub.heads.head import WaitingMessage
from edgehub.heads.lora.answers import Answers
from edgehub.heads.lora.downlinks import Downlinks
from edgehub.heads.lora.joins import JoinServer
from edgehub.heads.lora.payloads import DecodedUplink, decode_body
from edgehub.heads.lora.radio_control import RadioControl
from edgehub.heads.lora.reception import Transmissions, parse_reception
from edgehub.heads.lora.station_messages import phy_payload_of
from edgehub.lora import session
from edgehub.lora.device import DeviceClass
from edgehub.lora.frames import (
    DataFrame,
    JoinRequestFrame,
    parse_frame,
)
from edgehub.lora.identifiers import dev_addr_text, eui_text
from edgehub.message import FailureKind, Message, Refusal, SendResult, message_source
from edgehub.mqtt.property_bag import DUPLICATE_PROPERTY

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from edgehub.clock import Clock
    from edgehub.decoders.scripts import DecoderScript
    from edgehub.devices.affinity.outcome import FrameOutcome, Handling
    from edgehub.devices.affinity.stored_frames import Commit, StoredFrames
    from edgehub.devices.device import Device
    from edgehub.devices.devices import Devices
    from edgehub.devices.source import StoredDevice
    from edgehub.heads.lora.answers import Settle, WaitingMessages
    from edgehub.heads.lora.reception import StationReception, Transmission
    from edgehub.heads.lora.stations import Station, Stations
    from edgehub.lora.mac_commands import MacCommand
    from edgehub.lora.regions import Region
    from edgehub.settings import LoraSettings
    from edgehub.telemetry.log_limit import LogLimit

FRAMES_MAX: Final = 1_000
"""Frames in process at once; beyond it stations are not read."""
FIRST_STATION: Final = "first"
"""In place of the name of the station whose copy of a transmission came first."""

_NOT_RUNNING: Final = SendResult(FailureKind.UNREACHABLE, "no station can be connected now")


class _Taken(NamedTuple):
    """A data frame that this hub answers once its message is durable."""

    device: Device
    session: str
    f_cnt: int
    commands: list[MacCommand]


class NetworkServer:
    """Frames of devices.

    Args:
        settings: How devices are answered.
        region: Of the stations.
        scripts: Decoders of payloads, by name.
        stations: Those that are connected.
        devices: Where frames are processed.
        find: Returns what is listed of a registered device, None = it is none.
        messages: Those that wait for devices.
        frames: Stores messages; their device's turn is kept while it runs.
        clock: For all timers.
        log: Lines at a bounded rate.

    Attributes:
        decoders: Decode payloads of devices that name one.
        downlinks: Answers on their way.
        radio: What devices are asked of their radio.
        busy: Frames and answers that are not done.
        on_load: Called with whether too many frames are processed at once.
        counts: Join requests and refused frames by what became of them.
    """

    def __init__(  # noqa: PLR0913 - its neighbours, each by name
        self,
        settings: LoraSettings,
        region: Region,
        *,
        scripts: Mapping[str, DecoderScript],
        stations: Stations,
        devices: Devices,
        find: Callable[[str], Awaitable[StoredDevice | None]],
        frames: StoredFrames,
        messages: WaitingMessages,
        clock: Clock,
        log: LogLimit,
    ) -> None:
        self._region = region
        self._devices = devices
        self._frames = frames
        self._stations = stations
        self._messages = messages
        self.decoders = Decoders(scripts, clock, log)
        self._clock = clock
        self._log = log
        self._tasks: asyncio.TaskGroup | None = None
        self._is_running = False
        self._transmissions = Transmissions(clock)
        self._idle = asyncio.Event()
        self.downlinks = Downlinks(region, stations, clock)
        self.counts: Counter[str] = Counter()
        self.busy = 0
        self._in_process = 0
        self.radio = RadioControl(region, settings.adr_margin_db if settings.adr else None)
        self._answers = Answers(
            region,
            downlinks=self.downlinks,
            messages=messages,
            radio=self.radio,
            decoders=self.decoders,
            spawn=self._spawn,
            clock=clock,
        )
        self._joins = JoinServer(
            settings,
            region,
            devices=devices,
            find=find,
            downlinks=self.downlinks,
            spawn=self._spawn,
            counts=self.counts,
            log=log,
        )
        self.on_load: Callable[[bool], None] = lambda _is_full: None

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Take the group in which frames are processed."""
        self._tasks, self._is_running = tasks, True

    def stop(self) -> None:
        """Stop sending messages to devices; they stay stored."""
        self._is_running = False

    def always_listens(self, device_id: str) -> None:
        """Send messages to a device of class C as they come."""
        self._messages.send_by(device_id, self._send_now)

    async def ask(self, device_id: str, command: MacCommand) -> dict[str, Any]:
        """Ask a device with its next answers; returns what waits and what it has answered.

        Raises:
            DeviceError: It has no session, or cannot be read now.
            FrameError: It is no command that may be asked, or too many wait.
        """
        device = await self._devices.get(device_id)

        async def ask() -> dict[str, Any]:
            await device.ensure_loaded()
            if device.session.lora is None:
                raise DeviceUnknownError(device_id, "it has no LoRaWAN session")
            self.radio.ask(device, command)
            return self.radio.document(device)

        return await device.queue.run(RequestKind.REFRESH, ask)

    def answers_of(self, device_id: str) -> dict[str, Any]:
        """Return what a device in memory is asked, and what it has answered."""
        device = self._devices.known(device_id)
        if device is None or device.stored is None:
            return {"waiting": [], "answers": {}}
        return self.radio.document(device)

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
        if isinstance(frame, JoinRequestFrame) and not station.takes_joins:
            self.counts["join_station_not_allowed"] += 1
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
            work = self._joins.join(frame, transmission, name)
        else:
            work = self._data(frame, phy_payload, transmission, reception, name)
        self._spawn(self._bounded(work), "lora-frame")

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
        taken: list[_Taken] = []

        def counter(stored: StoredDevice) -> int | None:
            if stored.session.lora is None or stored.session.address != address:
                return None
            last = stored.session.f_cnt_up
            f_cnt = session.find_counter(stored.session.lora, frame, last, rate)
            if f_cnt is not None:
                found.clear()
                found[stored.profile.device_id] = f_cnt
            return f_cnt

        async def handle(handling: Handling) -> Commit | None:
            [(device_id, f_cnt)] = found.items()
            device = self._devices.known(device_id)
            assert device is not None, "it is in its own turn"
            lora = device.session.lora
            assert lora is not None, "its MIC was checked"
            plain = session.open_frame(lora, frame, f_cnt)
            commit = None
            if handling.upstream and frame.f_port:
                message = await self._message(device, frame, f_cnt, plain.payload, transmission)
                if handling.duplicate:
                    message.properties[DUPLICATE_PROPERTY] = "true"
                commit = self._frames.append(message, handling.frame)
            if handling.answer:
                name = device.session.session
                taken.append(_Taken(device, name, f_cnt, plain.commands))
            return commit

        uplink = Uplink(
            address=address,
            confirmed=frame.is_confirmed,
            station=station,
            key=phy_payload.hex(),
            counter=counter,
        )
        outcome = await self._devices.data(uplink, handle)
        self._note(outcome, eui_text(transmission.first.station))
        for each in taken:
            if outcome.commit is not None and await outcome.commit is Refusal.CLOSED:
                return  # the hub ends, and the device repeats it
            answer = partial(self._answer, each, frame, transmission)
            await each.device.queue.run(RequestKind.DOWNLINK, answer)

    async def _answer(self, taken: _Taken, frame: DataFrame, transmission: Transmission) -> None:
        """Answer a frame in its device's turn, if nothing has changed since its own."""
        device = taken.device
        lora = None if device.stored is None else device.session.lora
        is_present = lora is not None and device.session.session == taken.session
        if lora is None or not is_present or device.ownership is not Ownership.OWNER:
            return
        copies = transmission.best()
        heard_by = [copy.station for copy in copies if self._stations.may_transmit(copy.station)]
        station = eui_text(heard_by[0] if heard_by else copies[0].station)
        if station != lora.station:
            device.note_lora(replace(lora, station=station))
        profile = device.profile.lora
        if profile is not None and profile.device_class is DeviceClass.C:
            self.always_listens(device.device_id)
        await self._answers.answer(device, frame, taken.f_cnt, taken.commands, transmission)

    def _send_now(
        self,
        target: str,
        bag: str,
        message: Message,
        settle: Settle,
        *,
        dup: bool,
        written: Callable[[], None],
    ) -> None:
        del bag, dup  # MQTT's
        if not self._is_running:
            settle(_NOT_RUNNING)
            return
        waiting = WaitingMessage(message=message, settle=settle, written=written)

        async def send() -> None:
            try:
                device = await self._devices.get(target)
                await device.queue.run(
                    RequestKind.DOWNLINK, lambda: self._downlink(device, waiting)
                )
            except DeviceError as error:
                settle(SendResult(FailureKind.UNREACHABLE, str(error)))

        self._spawn(send(), "lora-message")

    async def _downlink(self, device: Device, waiting: WaitingMessage) -> None:
        if device.ownership is not Ownership.OWNER:
            raise DeviceNotOwnedError(device.device_id, "another hub speaks for it")
        await device.ensure_loaded()
        lora = device.session.lora
        if lora is None or not lora.station:
            raise DeviceUnknownError(device.device_id, "it has no session, or was never heard")
        dev_addr = int(device.session.address.removeprefix(RADIO_ADDRESS), 16)
        await self._answers.send_now(device, dev_addr, int(lora.station, 16), waiting)

    async def _message(
        self,
        device: Device,
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
        source = message_source(None, None)
        message = Message(device.device_id, None, source, properties, system, payload)
        profile = device.profile.lora
        if profile is not None and profile.decoder:
            uplink = DecodedUplink(frame.f_port or 0, f_cnt, self._clock.wall_ms())
            await decode_body(message, self.decoders, profile.decoder, uplink)
        return message

    def _note(self, outcome: FrameOutcome, station: str) -> None:
        if outcome.result is Result.REJECTED and outcome.device_id and not outcome.repeated:
            self._log.warning(
                "lora.frame_refused",
                device_id=outcome.device_id,
                station=station,
                reason=outcome.reason,
            )

    def _spawn(self, work: Awaitable[object], name: str) -> None:
        """Run what belongs to a device; the head drains until it is done."""
        assert self._tasks is not None, "connections exist only while the head runs"

        async def run() -> None:
            try:
                await work
            except DeviceError as error:
                self.counts[error.reason] += 1
                self._log.warning("lora.frame_failed", device_id=error.device_id, reason=str(error))
            finally:
                self.busy -= 1
                if not self.busy:
                    self._idle.set()

        self.busy += 1
        self._tasks.create_task(run(), name=name)

    async def _bounded(self, work: Awaitable[None]) -> None:
        """Process a frame; too many at once keep stations from being read."""
        self._in_process += 1
        self.on_load(self._in_process >= FRAMES_MAX)
        try:
            await work
        finally:
            self._in_process -= 1
            self.on_load(self._in_process >= FRAMES_MAX)

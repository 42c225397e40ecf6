"""Many simulated LoRaWAN devices behind a few stations, against running hubs.

Owns the devices and what became of their frames. Keys follow from a seed, so that the same devices
can be registered first. Invariants: a device sends nothing new before its windows are over; a
confirmed frame is repeated until it is acknowledged, as often as devices do; every frame is counted
once, by how it ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import Counter, deque
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from websockets.exceptions import WebSocketException

from edgehub.clock import SystemClock
from edgehub.lab.radio.device import ReceivedDownlink, SimulatedLorawanDevice
from edgehub.lab.radio.station import SimulatedStation
from edgehub.lora.frames import FrameError
from edgehub.lora.identifiers import dashed_eui, eui_text
from edgehub.lora.regions import RX2_AFTER_S

if TYPE_CHECKING:
    import random
    import ssl
    from collections.abc import Mapping, Sequence

    from edgehub.clock import Clock

DEV_EUI_FIRST: Final = 0xFEED_0000_0000_0000
TRIES_MAX: Final = 8
RECONNECT_S: Final = 1.0
IN_DOUBT_S: Final = 3.0
"""A hub that ends a connection may not have taken what it was sent in this time."""
RECENT_MAX: Final = 1_000
JOIN_TIMEOUT_S: Final = 8.0
ACK_TIMEOUT_S: Final = 2.0
"""After its windows a device waits so long for an acknowledgement before it repeats a frame."""
_LEAD_S: Final = 0.02
"""What Basics Station needs before a window."""


class RadioOptions(Struct, frozen=True, kw_only=True):
    """What is simulated.

    Attributes:
        hubs: Address of the hub of each station, `ws://host:port`.
        stations: Their ids.
        devices: How many there are.
        seed: Of their keys.
        seconds: How long data are sent.
        joins_per_s: Joins begun.
        uplinks_per_s: Frames of all devices.
        confirmed: Share of frames that want an acknowledgement.
        shared: Share of frames that a second station hears.
        token: What stations send as `Authorization`, None = nothing.
    """

    hubs: Sequence[str]
    stations: Sequence[int]
    devices: int
    seed: str = ""
    seconds: float = 60.0
    joins_per_s: float = 3.0
    uplinks_per_s: float = 5.0
    confirmed: float = 0.1
    shared: float = 0.05
    token: str | None = None


class RadioResult(Struct, frozen=True, kw_only=True):
    """What became of it.

    Attributes:
        joined: Devices that have joined.
        uplinks: Frames sent, repetitions apart.
        confirmed: Those of them that wanted an acknowledgement.
        acknowledged: Those of these that got it.
        repetitions: Times that frames and joins were sent again.
        windows: Answers by the window they came in time for; `late` = for none.
        refused: Answers that were none for their device.
        unheard: Transmissions while no station that hears the device was connected, and those that
            a hub may not have taken before it ended the connection.
        reconnects: Times that stations had to connect again.
    """

    joined: int
    uplinks: int
    confirmed: int
    acknowledged: int
    repetitions: int
    windows: dict[str, int]
    refused: int
    unheard: int
    reconnects: int


def simulated_devices(count: int, seed: str) -> list[tuple[int, bytes]]:
    """Return DevEUI and AppKey of each device."""
    return [
        (
            DEV_EUI_FIRST + number,
            hashlib.blake2b(f"{seed}/{number}".encode(), digest_size=16).digest(),
        )
        for number in range(count)
    ]


def device_table(count: int, seed: str) -> str:
    """Return the devices as CSV, to be registered."""
    rows = [
        f"{eui_text(eui)},simulated-{eui & 0xFFFF},{key.hex()}"
        for eui, key in simulated_devices(count, seed)
    ]
    return "\n".join(["dev_eui,name,app_key", *rows, ""])


class _StationPlace:
    """Where a station stands, whatever becomes of its connection."""

    def __init__(self) -> None:
        self.station: SimulatedStation
        self.connected = asyncio.Event()
        self.recent: deque[tuple[float, tuple[int, int]]] = deque(maxlen=RECENT_MAX)
        """Unconfirmed frames that it has sent last, with the time."""

    def in_doubt(self, since_s: float) -> set[tuple[int, int]]:
        """Return the frames that it has sent since then."""
        return {frame for sent_s, frame in self.recent if sent_s >= since_s}


class RadioSimulation:
    """One run; see the module.

    Args:
        options: What is simulated.
        rng: Chooses devices and stations.
        clock: For all timers.
        tls: For `wss`.

    Attributes:
        unanswered: DevEUI and counter of confirmed frames that no hub has acknowledged.
    """

    def __init__(
        self,
        options: RadioOptions,
        rng: random.Random,
        *,
        clock: Clock | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._options = options
        self._rng = rng
        self._clock = clock or SystemClock()
        self._tls = tls
        self._devices = [
            SimulatedLorawanDevice(eui, key)
            for eui, key in simulated_devices(options.devices, options.seed)
        ]
        self._by_name = {dashed_eui(device.dev_eui): device for device in self._devices}
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._places: list[_StationPlace] = []
        self._counts: Counter[str] = Counter()
        self._windows: Counter[str] = Counter()
        self._taken: dict[tuple[int, int], set[_StationPlace]] = {}
        """Unconfirmed frames, with the stations whose hub has taken them."""
        self._acknowledged: set[tuple[int, int]] = set()
        self.unanswered: set[tuple[int, int]] = set()

    @property
    def arrived(self) -> set[tuple[int, int]]:
        """Return DevEUI and counter of the frames that a hub has taken and not lost by its end."""
        return {frame for frame, places in self._taken.items() if places} | self._acknowledged

    async def run(self) -> RadioResult:
        """Connect, join, send, and return what became of it.

        Raises:
            OSError: A hub cannot be reached at the beginning.
            StationRefusedError: A hub refuses a station.
        """
        options = self._options
        for hub, station_id in zip(options.hubs, options.stations, strict=True):
            async with self._station(hub, station_id):
                self._places.append(_StationPlace())
        async with asyncio.TaskGroup() as links:
            tasks = [
                links.create_task(self._keep(*each))
                for each in zip(self._places, options.hubs, options.stations, strict=True)
            ]
            for place in self._places:
                await place.connected.wait()
            await self._join_all()
            await self._send_all()
            for task in tasks:
                task.cancel()
        return self.result()

    def result(self) -> RadioResult:
        """Return what became of it until now."""
        return RadioResult(
            joined=self._counts["joined"],
            uplinks=self._counts["uplinks"],
            confirmed=self._counts["confirmed"],
            acknowledged=self._counts["acknowledged"],
            repetitions=self._counts["repetitions"],
            windows=dict(self._windows),
            refused=self._counts["refused"],
            unheard=self._counts["unheard"],
            reconnects=self._counts["reconnects"],
        )

    def _station(self, hub: str, station_id: int) -> SimulatedStation:
        token = self._options.token
        headers = None if token is None else {"Authorization": token}
        return SimulatedStation(hub, station_id, clock=self._clock, tls=self._tls, headers=headers)

    async def _keep(self, place: _StationPlace, hub: str, station_id: int) -> None:
        """Keep a station connected, also where its hub ends the connection."""
        while True:
            with contextlib.suppress(OSError, WebSocketException):
                async with self._station(hub, station_id) as station:
                    place.station = station
                    place.connected.set()
                    async with asyncio.TaskGroup() as tasks:
                        reader = tasks.create_task(self._read(station))
                        await station.closed()
                        reader.cancel()
            place.connected.clear()
            for frame in place.in_doubt(self._clock.monotonic() - IN_DOUBT_S):
                places = self._taken[frame]
                places.discard(place)
                self._counts["unheard"] += not places
            self._counts["reconnects"] += 1
            await self._clock.sleep(RECONNECT_S)

    async def _join_all(self) -> None:
        async with asyncio.TaskGroup() as joins:
            for device in self._devices:
                joins.create_task(self._join(device))
                await self._clock.sleep(1 / self._options.joins_per_s)

    async def _send_all(self) -> None:
        ready = [device for device in self._devices if device.has_session]
        busy: set[int] = set()

        async def send(device: SimulatedLorawanDevice) -> None:
            try:
                await self._uplink(device)
            finally:
                busy.discard(device.dev_eui)

        end = self._clock.monotonic() + self._options.seconds
        due = self._clock.monotonic()
        async with asyncio.TaskGroup() as sends:
            while ready and due < end:
                device = self._rng.choice(ready)
                if device.dev_eui not in busy:
                    busy.add(device.dev_eui)
                    sends.create_task(send(device))
                due += 1 / self._options.uplinks_per_s
                await self._clock.sleep(max(0.0, due - self._clock.monotonic()))

    async def _join(self, device: SimulatedLorawanDevice) -> None:
        for number in range(TRIES_MAX):
            self._counts["repetitions"] += number > 0
            if await self._exchange(device, device.join_request(), JOIN_TIMEOUT_S):
                self._counts["joined"] += 1
                return

    async def _uplink(self, device: SimulatedLorawanDevice) -> None:
        confirmed = self._rng.random() < self._options.confirmed
        f_cnt = device.f_cnt
        frame = device.uplink(self._rng.randbytes(12), confirmed=confirmed)
        self._counts["uplinks"] += 1
        if not confirmed:
            await self._transmit(frame, (device.dev_eui, f_cnt))
            await self._clock.sleep(device.windows_s)
            return
        self._counts["confirmed"] += 1
        for number in range(TRIES_MAX):
            self._counts["repetitions"] += number > 0
            if await self._exchange(device, frame, device.windows_s + ACK_TIMEOUT_S):
                self._counts["acknowledged"] += 1
                self._acknowledged.add((device.dev_eui, f_cnt))
                return
        self.unanswered.add((device.dev_eui, f_cnt))

    async def _exchange(
        self, device: SimulatedLorawanDevice, frame: bytes, timeout_s: float
    ) -> bool:
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[device.dev_eui] = answered
        await self._transmit(frame)
        try:
            async with asyncio.timeout(timeout_s):
                await answered
        except TimeoutError:
            return False
        finally:
            del self._waiting[device.dev_eui]
        return True

    async def _transmit(self, frame: bytes, unconfirmed: tuple[int, int] | None = None) -> None:
        """Transmit a frame, which one station hears, or two."""
        shared = len(self._places) > 1 and self._rng.random() < self._options.shared
        is_heard = False
        for place in self._rng.sample(self._places, 2 if shared else 1):
            if place.connected.is_set():
                if unconfirmed is not None:
                    # Before it is sent: the connection may end while it is.
                    self._taken.setdefault(unconfirmed, set()).add(place)
                    place.recent.append((self._clock.monotonic(), unconfirmed))
                with contextlib.suppress(WebSocketException):
                    await place.station.hear(frame, rssi=self._rng.uniform(-110, -40))
                    is_heard = True
        self._counts["unheard"] += not is_heard

    async def _read(self, station: SimulatedStation) -> None:
        while True:
            message = await station.downlinks.get()
            window = _window(message, station.xtime())
            self._windows[window] += 1
            device = self._by_name.get(message["DevEui"])
            if device is None or window == "late":
                continue
            try:
                received = device.receive(bytes.fromhex(message["pdu"]))
            except FrameError:
                self._counts["refused"] += 1
                continue
            waiting = self._waiting.get(device.dev_eui)
            is_answer = not isinstance(received, ReceivedDownlink) or received.frame.ack
            if waiting is not None and not waiting.done() and is_answer:
                waiting.set_result(None)


def _window(message: Mapping[str, int], xtime: int) -> str:
    left_s = (message["xtime"] - xtime) / 1e6 + message["RxDelay"] - _LEAD_S
    if left_s >= 0 and "RX1DR" in message:
        return "rx1"
    return "rx2" if left_s + RX2_AFTER_S >= 0 and "RX2DR" in message else "late"

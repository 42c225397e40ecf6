"""The LoRaWAN head: binds, accepts stations, and ends with what was taken processed.

Owns the listening sockets and the tasks of frames. Invariant: between `drain` and `close` no frame
is taken, and every one that was taken before is processed and answered.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Final

import structlog
from msgspec import Struct

from edgehub.devices.server_tls import RenewableTls
from edgehub.heads.binding import ListeningPort
from edgehub.heads.lora.connection import StationConnection
from edgehub.heads.lora.context import StationContext
from edgehub.heads.lora.network_server import NetworkServer
from edgehub.heads.lora.stations import Stations
from edgehub.heads.websocket import WebSocketConnection, WebSocketOptions
from edgehub.storage.credentials import read_secret
from edgehub.telemetry.log_limit import LogLimit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from edgehub.clock import Clock
    from edgehub.decoders.scripts import DecoderScript
    from edgehub.devices.affinity.stored_frames import StoredFrames
    from edgehub.devices.devices import Devices
    from edgehub.devices.source import StoredDevice
    from edgehub.heads.lora.answers import WaitingMessages
    from edgehub.lora.regions import Region
    from edgehub.settings import LoraSettings

MESSAGE_BYTES_MAX: Final = 64 * 1024
BACKLOG: Final = 64
SPARE_CONNECTIONS: Final = 32
"""In addition to one of each station: discovery, and connections that have not signed in."""

log = structlog.get_logger(__name__)


class LoraStatistics(Struct, frozen=True, kw_only=True):
    """Stations and frames at one moment.

    Attributes:
        stations: That may connect.
        connected: That are connected.
        busy: Frames in process.
        frames: Frames that stations have sent.
        refused: Messages of stations that were none.
        loops: Copies left alone, because a station repeated them without end.
        joins: Join requests and frames of unknown devices, by what became of them.
        downlinks: Answers by the first window they were handed over for, `missed` = none was left;
            `sent` = the station has reported that it sends them.
        payloads: Of devices with a decoder, by what became of them.
    """

    stations: int
    connected: int
    busy: int
    frames: int
    refused: int
    loops: int
    joins: dict[str, int]
    downlinks: dict[str, int]
    payloads: dict[str, int]


class LoraHead:
    """The LoRaWAN head; implements `Head`.

    Args:
        settings: Of the section `[lora]`; its port is not None.
        region: That it names.
        devices: Where frames are processed.
        find: Returns what is listed of a registered device, None = it is none.
        frames: Stores messages.
        messages: Those that wait for devices.
        scripts: Decoders of payloads, by name.
        clock: For all timers.

    Attributes:
        stations: Those that may connect.
        server: Processes frames.
    """

    def __init__(
        self,
        settings: LoraSettings,
        region: Region,
        *,
        devices: Devices,
        find: Callable[[str], Awaitable[StoredDevice | None]],
        frames: StoredFrames,
        messages: WaitingMessages,
        scripts: Mapping[str, DecoderScript],
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._port = ListeningPort("lora", "stations", backlog=BACKLOG)
        self._tls = RenewableTls(
            "lora", settings.certificate_file, settings.key_file, settings.client_ca_file
        )
        self._is_full = False
        self.stations = Stations(
            (int(each, 16) for each in settings.stations),
            clock,
            listen_only={int(each, 16) for each in settings.listen_only},
            no_joins={int(each, 16) for each in settings.no_joins},
        )
        limited = LogLimit(clock)
        self.server = NetworkServer(
            settings,
            region,
            scripts=scripts,
            stations=self.stations,
            devices=devices,
            find=find,
            frames=frames,
            messages=messages,
            clock=clock,
            log=limited,
        )
        self.server.on_load = self._load_changed
        self._context = StationContext(
            stations=self.stations,
            server=self.server,
            region=region,
            clock=clock,
            log=limited,
            is_encrypted=settings.certificate_file is not None,
            has_client_certificates=settings.client_ca_file is not None,
            connections_max=2 * len(settings.stations) + SPARE_CONNECTIONS,
        )

    async def open(self) -> None:
        """Bind and listen; connections wait until `run` accepts them.

        Raises:
            StartupError: If an address cannot be bound.
            ConfigError: If certificate or token cannot be read.
        """
        settings = self._settings
        await self.reload()
        if self._tls.context is not None and settings.client_ca_file is not None:
            self._tls.context.verify_mode = ssl.CERT_REQUIRED
        assert settings.port is not None, "the head of a hub without stations is not built"
        await self._port.open(settings.host, settings.port)
        log.info(
            "lora.listening",
            addresses=[f"{host}:{port}" for host, port in self.addresses],
            tls=self._tls.context is not None,
            region=self._context.region.name,
            stations=len(settings.stations),
        )

    async def run(self) -> None:
        """Accept stations and process frames until cancelled, then close all connections."""
        async with asyncio.TaskGroup() as tasks:
            self.server.start(tasks)
            tasks.create_task(self.server.decoders.run(), name="lora-decoders")
            try:
                await self._port.accept(self._connection, self._tls.context)
                await asyncio.Event().wait()
            finally:
                # Before the group waits for its tasks: no connection may ask it for a new one.
                self._context.draining = True
                self.server.stop()
                self._port.close()
                self._close_connections()

    async def drain(self) -> None:
        """Take no more frames, and wait until those taken are processed and answered.

        The caller sets the time limit.
        """
        self._context.draining = True
        self._port.close()
        await self.server.until_idle()

    async def close(self) -> None:
        """Close all connections and give the sockets a turn of the loop to write what is left."""
        self._context.draining = True
        self._port.close()
        self._close_connections()
        await asyncio.sleep(0)

    async def reload(self) -> None:
        """Read certificate and token again, for new connections.

        Raises:
            ConfigError: If one cannot be read; the present ones are kept.
        """
        settings = self._settings
        await self._tls.read()
        if settings.token_file is not None:
            text = await asyncio.to_thread(read_secret, "lora.token_file", settings.token_file)
            self._context.token = text.encode()

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each listening socket."""
        return self._port.addresses

    def statistics(self) -> LoraStatistics:
        """Return the counts of this moment."""
        stations = self.stations.all()
        return LoraStatistics(
            stations=len(stations),
            connected=self.stations.connected,
            busy=self.server.busy,
            frames=sum(station.frames for station in stations),
            refused=sum(station.refused for station in stations),
            loops=sum(station.loops for station in stations),
            joins=dict(self.server.counts),
            downlinks=dict(self.server.downlinks.counts),
            payloads=dict(self.server.decoders.counts),
        )

    def _connection(self) -> WebSocketConnection:
        station = StationConnection(self._context)
        options = WebSocketOptions(
            check=station.check,
            refused=self._refused,
            message_bytes_max=MESSAGE_BYTES_MAX,
            is_text=True,
        )
        return WebSocketConnection(station, options, self._clock)

    def _refused(self, address: str, reason: str) -> None:
        self._context.log.warning("lora.station_refused", address=address, reason=reason)

    def _load_changed(self, is_full: bool) -> None:
        if is_full is self._is_full:
            return
        self._is_full = is_full
        for connection in list(self._context.connections):
            if is_full:
                connection.pause()
            else:
                connection.resume()

    def _close_connections(self) -> None:
        for connection in list(self._context.connections):
            connection.close()

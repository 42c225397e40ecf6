"""One connection of a station: Basics Station's LNS protocol, version 2, above WebSocket.

Owns nothing but its place in the conversation. Invariants: a station that may not connect is
refused in the handshake; before its `version` a station gets nothing; a message that is none is
counted and leaves the connection as it was.
"""

from __future__ import annotations

import asyncio
import hmac
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, cast

import orjson

from edgehub.devices.server_tls import common_name
from edgehub.heads.binding import peer_of, set_up_peer
from edgehub.heads.lora.router_config import router_config
from edgehub.lora.frames import FrameError
from edgehub.lora.gps_time import gps_ms
from edgehub.lora.identifiers import eui_text, id6_text, parse_station_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    from websockets.http11 import Request

    from edgehub.clock import TimerHandle
    from edgehub.heads.lora.context import StationContext
    from edgehub.heads.lora.stations import Station

DISCOVERY: Final = "/router-info"
SESSION: Final = "/router-data/"
VERSION_TIMEOUT_S: Final = 30.0
UNSENT_BYTES_MAX: Final = 256 * 1024
"""A station that does not read gets no more answers."""
PROTOCOL: Final = 2
_ABOUT: Final = ("station", "model", "package", "firmware", "features")
_TEXT_MAX: Final = 200


class StationConnection(asyncio.Protocol):
    """One connection.

    Args:
        context: What all connections share.

    Attributes:
        address: Host and port of the peer.
    """

    def __init__(self, context: StationContext) -> None:
        self._context = context
        self._transport: asyncio.Transport | None = None
        self._station: Station | None = None
        self._host = ""
        self._is_configured = False
        self._timer: TimerHandle | None = None
        self.address = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; the station has a time limit for its handshake and first message."""
        context = self._context
        self._transport = cast("asyncio.Transport", transport)
        _, self.address = peer_of(transport)
        set_up_peer(transport)
        context.connections[self] = None
        if len(context.connections) > context.connections_max:
            self._transport.abort()
            return
        self._timer = context.clock.call_later(VERSION_TIMEOUT_S, self._transport.abort)

    def check(self, request: Request) -> tuple[HTTPStatus, str] | None:
        """Return why a request is refused, None = it is not."""
        context = self._context
        path = request.path.partition("?")[0]
        if path != DISCOVERY and not path.startswith(SESSION):
            return HTTPStatus.NOT_FOUND, f"stations are at {DISCOVERY} and {SESSION}"
        if context.token is not None:
            given = request.headers.get_all("Authorization")
            if len(given) != 1 or not hmac.compare_digest(given[0].encode(), context.token):
                return HTTPStatus.UNAUTHORIZED, "the header Authorization is not that of a station"
        self._host = next(iter(request.headers.get_all("Host")), "")
        if path == DISCOVERY:
            return None
        try:
            station_id = parse_station_id(path.removeprefix(SESSION))
        except ValueError as error:
            return HTTPStatus.NOT_FOUND, f"{path}: {error}"
        self._station = context.stations.get(station_id)
        fault = self._fault_of(station_id)
        return None if fault is None else (HTTPStatus.FORBIDDEN, fault)

    def data_received(self, data: bytes) -> None:
        """Take one message."""
        try:
            message = orjson.loads(data)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            self._refuse("it is no JSON object")
        elif self._station is None:
            self._discover(message)
        else:
            self._take(self._station, message)

    def pause_writing(self) -> None:
        """Do nothing: `send` checks what is unsent."""

    def resume_writing(self) -> None:
        """Do nothing, as above."""

    def connection_lost(self, exc: Exception | None) -> None:
        """End; only this connection is removed."""
        del exc
        context, station = self._context, self._station
        context.connections.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        if station is not None and context.stations.detach(station, self):
            context.log.info("lora.station_disconnected", station=eui_text(station.station_id))
        self._transport = None

    def send(self, message: Mapping[str, Any]) -> bool:
        """Send a message; False = the station has no configuration yet, or does not read."""
        transport = self._transport
        if transport is None or transport.is_closing() or not self._is_configured:
            return False
        if transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            return False
        transport.write(orjson.dumps(message))
        return True

    def pause(self) -> None:
        """Stop reading."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """Close it."""
        if self._transport is not None:
            self._transport.close()

    def _fault_of(self, station_id: int) -> str | None:
        context = self._context
        if context.stations.get(station_id) is None:
            return f"station {eui_text(station_id)} is not among lora.stations"
        if not context.has_client_certificates:
            return None
        assert self._transport is not None
        name = common_name(self._transport.get_extra_info("peercert"))
        try:
            if name is not None and parse_station_id(name) == station_id:
                return None
        except ValueError:
            pass
        return f"the certificate is not that of station {eui_text(station_id)}"

    # Messages.

    def _discover(self, message: Mapping[str, Any]) -> None:
        assert self._transport is not None
        answer: dict[str, Any]
        try:
            station_id = parse_station_id(message.get("router"))
        except ValueError as error:
            answer = {"router": None, "error": f"`router`: {error}"}
        else:
            fault = self._fault_of(station_id)
            if fault is None:
                scheme = "wss" if self._context.is_encrypted else "ws"
                where = f"{scheme}://{self._host}{SESSION}{id6_text(station_id)}"
                answer = {"router": id6_text(station_id), "muxs": "::0", "uri": where}
            else:
                answer = {"router": id6_text(station_id), "error": fault}
        if "error" in answer:
            self._context.log.warning(
                "lora.station_refused", address=self.address, reason=answer["error"]
            )
        self._transport.write(orjson.dumps(answer))

    def _take(self, station: Station, message: dict[str, Any]) -> None:
        kind = message.get("msgtype")
        if kind == "version":
            self._configure(station, message)
        elif not self._is_configured:
            self._refuse("it came before `version`")
        elif kind in ("jreq", "updf", "rejoin", "propdf"):
            if self._context.draining:
                return  # what was taken before still has to be reported as sent
            station.frames += 1
            try:
                self._context.server.take(message, station)
            except FrameError as error:
                self._refuse(str(error))
        elif kind == "dntxed":
            self._context.server.downlinks.transmitted(station.station_id, message.get("diid"))
        elif kind == "timesync":
            self._time(message)
        elif kind in ("event", "alarm", "error"):
            self._context.log.info(
                "lora.station_event",
                station=eui_text(station.station_id),
                kind=kind,
                text=str(message)[:_TEXT_MAX],
            )

    def _configure(self, station: Station, message: Mapping[str, Any]) -> None:
        context = self._context
        if message.get("protocol") != PROTOCOL:
            self._refuse(f"it speaks protocol {message.get('protocol')}, not {PROTOCOL}")
            self.close()
            return
        if self._timer is not None:
            self._timer.cancel()
        station.about = {name: str(message.get(name) or "")[:_TEXT_MAX] for name in _ABOUT}
        self._is_configured = True
        context.stations.attach(station, self)
        self.send(router_config(context.region))
        context.log.info(
            "lora.station_connected",
            station=eui_text(station.station_id),
            address=self.address,
            version=station.about["station"],
        )

    def _time(self, message: Mapping[str, Any]) -> None:
        clock = self._context.clock
        if type(message.get("txtime")) is int and clock.synchronized():
            gps_us = gps_ms(clock.wall_ms()) * 1000
            self.send({"msgtype": "timesync", "txtime": message["txtime"], "gpstime": gps_us})

    def _refuse(self, reason: str) -> None:
        station = self._station
        if station is not None:
            station.refused += 1
        self._context.log.warning(
            "lora.message_refused",
            station=None if station is None else eui_text(station.station_id),
            address=self.address,
            reason=reason,
        )

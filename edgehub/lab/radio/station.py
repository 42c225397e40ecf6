"""A simulated station: Basics Station's side of the LNS protocol over WebSocket.

Owns one connection. A station's time is the clock's, in microseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final, Self

import orjson
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from edgehub.errors import EdgeHubError
from edgehub.heads.lora.station_messages import data_message, join_request_message
from edgehub.lab.radio.device import DATA_RATE, FREQUENCY_HZ
from edgehub.lora.frames import DataFrame, JoinRequestFrame, parse_frame
from edgehub.lora.identifiers import id6_text

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from websockets.asyncio.client import ClientConnection

    from edgehub.clock import Clock

SESSION_BIT: Final = 1 << 48
"""The session of a station in its times is never 0."""


class StationRefusedError(EdgeHubError):
    """The hub does not let the station in."""


class SimulatedStation:
    """One station; used as `async with`.

    Args:
        uri: Of the hub, `ws://host:port`.
        station_id: Its id.
        clock: For its times.
        tls: For `wss`.
        headers: Further headers, a token for example.

    Attributes:
        config: What the hub said of its channels.
        downlinks: Messages `dnmsg` as they came.
        reports: Whether it reports each as sent when it comes.
    """

    def __init__(
        self,
        uri: str,
        station_id: int,
        *,
        clock: Clock,
        tls: ssl.SSLContext | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._uri = uri.rstrip("/")
        self.station_id = station_id
        self._clock = clock
        self._options: dict[str, Any] = {
            "ssl": tls,
            "additional_headers": headers,
            "open_timeout": 10,
            "close_timeout": 1,
            "proxy": None,
        }
        self._stack = contextlib.AsyncExitStack()
        self._link: ClientConnection
        self.config: dict[str, Any] = {}
        self.reports = True
        self.downlinks: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def __aenter__(self) -> Self:
        """Ask where to connect, connect, and get the configuration.

        Raises:
            StationRefusedError: The hub refuses it.
        """
        name = id6_text(self.station_id)
        async with connect(f"{self._uri}/router-info", **self._options) as link:
            await link.send(orjson.dumps({"router": name}).decode())
            answer = orjson.loads(await link.recv())
        if "uri" not in answer:
            raise StationRefusedError(f"station {name}: {answer.get('error', 'no uri')}")
        async with contextlib.AsyncExitStack() as stack:
            self._link = await stack.enter_async_context(connect(answer["uri"], **self._options))
            await self.send(
                {
                    "msgtype": "version",
                    "station": "edgehub-simulation",
                    "firmware": None,
                    "package": None,
                    "model": "simulated",
                    "protocol": 2,
                    "features": "",
                }
            )
            self.config = orjson.loads(await self._link.recv())
            group = await stack.enter_async_context(asyncio.TaskGroup())
            reader = group.create_task(self._read(), name=f"station[{name}]")
            stack.callback(reader.cancel)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        """End the connection."""
        await self._stack.aclose()

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send any message."""
        await self._link.send(orjson.dumps(message).decode())

    async def hear(
        self,
        phy_payload: bytes,
        *,
        rssi: float = -60.0,
        snr: float = 9.0,
        dr: int = DATA_RATE,
        hz: int = FREQUENCY_HZ,
    ) -> None:
        """Send a frame of a device on."""
        frame = parse_frame(phy_payload)
        message: dict[str, Any]
        if isinstance(frame, JoinRequestFrame):
            message = join_request_message(frame)
        elif isinstance(frame, DataFrame):
            message = data_message(frame)
        else:
            message = {"msgtype": "propdf", "FRMPayload": phy_payload.hex()}
        info = {"rctx": 0, "xtime": self.xtime(), "gpstime": 0, "rssi": rssi, "snr": snr}
        await self.send({**message, "RefTime": 0.0, "DR": dr, "Freq": hz, "upinfo": info})

    async def closed(self) -> None:
        """Wait until the hub has ended the connection."""
        await self._link.wait_closed()

    def xtime(self) -> int:
        """Return its time."""
        return SESSION_BIT | int(self._clock.monotonic() * 1e6)

    async def report(self, message: Mapping[str, Any]) -> None:
        """Report that a downlink is sent."""
        sent = {name: message[name] for name in ("diid", "DevEui", "rctx")}
        await self.send({"msgtype": "dntxed", "xtime": self.xtime(), **sent})

    async def _read(self) -> None:
        try:
            async for text in self._link:
                message = orjson.loads(text)
                if message.get("msgtype") == "dnmsg":
                    self.downlinks.put_nowait(message)
                    if self.reports:
                        await self.report(message)
        except ConnectionClosed:
            return

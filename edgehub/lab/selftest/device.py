"""The simulated devices: MQTT clients with QoS 1 that send again what was not acknowledged.

Owns what a device has in flight; knows nothing of the hub but its port. Invariants: a message is
noted as acknowledged only after its PUBACK; what has none is sent again, in order, before anything
new.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from edgehub.endpoints.mqtt_link import LinkOptions, connect
from edgehub.lab.selftest.ledger import is_kept
from edgehub.lab.selftest.scratch import DELIVERED_KIND, KEPT_KIND
from edgehub.mqtt.client import LinkError
from edgehub.mqtt.packets import publish

if TYPE_CHECKING:
    from random import Random

    from edgehub.clock import Clock
    from edgehub.lab.selftest.hub_process import HubProcess
    from edgehub.lab.selftest.ledger import Ledger
    from edgehub.mqtt.client import Client

HOST: Final = "127.0.0.1"
DEVICES: Final = 4
IN_FLIGHT_MAX: Final = 16
PAUSE_S: Final = 0.002
"""With four devices 2 000 messages a second at most, which bounds what the test leaves on disk."""
BODY_BYTES: Final = 200
RECONNECT_S: Final = 0.05


class Device:
    """One device.

    Args:
        device_id: Its name, known to the ledger.
        hub: Where it sends to.
        ledger: The books.
        clock: Pauses.
        rng: Their length.
    """

    def __init__(
        self, device_id: str, hub: HubProcess, ledger: Ledger, *, clock: Clock, rng: Random
    ) -> None:
        self._device_id = device_id
        self._hub = hub
        self._sent = ledger.devices[device_id]
        self._clock = clock
        self._rng = rng
        self._again: deque[int] = deque()
        self._in_flight: dict[int, int] = {}
        self._acknowledged = asyncio.Event()
        self._stopping = False

    def stop(self) -> None:
        """Send nothing new; `run` ends with the last PUBACK."""
        self._stopping = True

    async def run(self) -> None:
        """Send until `stop`; a lost connection is made again."""
        done = False
        while not done:
            await self._hub.serving.wait()
            options = LinkOptions(
                host=HOST,
                port=self._hub.mqtt_port,
                client_id=self._device_id,
                clean_session=True,
            )
            try:
                async with connect(
                    options,
                    clock=self._clock,
                    on_confirmed=self._take_confirmed,
                    on_messages=lambda _messages: None,
                ) as connection:
                    done = await self._use(connection)
            except LinkError:
                # Killed between its start and our connection.
                await self._clock.sleep(RECONNECT_S)

    async def _use(self, connection: Client) -> bool:
        # True = everything has been sent and acknowledged, False = the connection was lost.
        self._in_flight.clear()
        self._again = deque(self._sent.resend())
        async with asyncio.TaskGroup() as group:
            sender = group.create_task(self._send(connection), name=f"{self._device_id}[send]")
            end = group.create_task(connection.wait_closed(), name=f"{self._device_id}[end]")
            await asyncio.wait({sender, end}, return_when=asyncio.FIRST_COMPLETED)
            done = sender.done()
            sender.cancel()
            end.cancel()
        return done

    async def _send(self, connection: Client) -> None:
        while (number := self._next()) is not None:
            kind = KEPT_KIND if is_kept(number) else DELIVERED_KIND
            topic = f"devices/{self._device_id}/messages/events/kind={kind}".encode()
            packet_id = connection.next_packet_id(self._in_flight)
            self._in_flight[packet_id] = number
            connection.write(publish(topic, build_body(number), packet_id))
            await self._clock.sleep(PAUSE_S * self._rng.uniform(0.5, 1.5))
            await self._until_in_flight_below(IN_FLIGHT_MAX)
        await self._until_in_flight_below(1)

    async def _until_in_flight_below(self, count: int) -> None:
        while len(self._in_flight) >= count:
            self._acknowledged.clear()
            await self._acknowledged.wait()

    def _next(self) -> int | None:
        if self._again:
            return self._again.popleft()
        return None if self._stopping else self._sent.send()

    def _take_confirmed(self, packet_ids: list[int]) -> None:
        for packet_id in packet_ids:
            number = self._in_flight.pop(packet_id, None)
            if number is not None:
                self._sent.acknowledge(number)
        self._acknowledged.set()


def build_body(number: int) -> bytes:
    """Write a body that says which message of its device it is."""
    return f"{number} ".encode("ascii").ljust(BODY_BYTES, b"x")


def parse_body(body: bytes) -> int:
    """Read back what `build_body` wrote; anything else is -1."""
    digits = body.split(b" ", 1)[0]
    return int(digits) if digits.isdigit() else -1

"""Messages to devices at their full rate, while the uplink is as thin and as full as it gets.

Figures are printed; the floor for alarms is that of `test_thin_links`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from edgehub.clock import SystemClock
from edgehub.devices.token_file import changing_tokens
from edgehub.devices.tokens import Role, Token
from edgehub.endpoints.mqtt_link import LinkOptions, open_client
from edgehub.mqtt.packets import publish
from tests.support.daemon import Daemon
from tests.support.link_thread import LinkThread
from tests.support.link_trial import ALARM, telemetry
from tests.support.mqtt_peer import MqttPeer, mqtt_peer
from tests.support.mqtt_wire import publish as deliver
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edgehub.mqtt.client import Client

pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.timeout(600)]

DEVICES = 1_000
API_RATE_S = 1_000
LINK_RATE_S = 2
SECONDS = 20
UP_BIT_S = 64_000
BULK_RATE_S = 45
"""One and a half times what the link carries."""
ALARM_EVERY_S = 1.5
FLOOR_S = 1.5
API_CONNECTIONS = 24
LAST_S = 90

MANIFEST = {
    "schemaVersion": "1.1",
    "routes": {
        "alarms": {
            "route": "FROM /messages/* WHERE kind = 'alarm' INTO $upstream",
            "priority": 0,
        },
        "bulk": "FROM /messages/* WHERE NOT is_defined(kind) INTO $upstream",
    },
    "storeAndForwardConfiguration": {"timeToLiveSecs": 7200},
}


class Site:
    """A hub with its devices; what was sent is noted by body, with the time.

    Args:
        daemon: The hub.
        peer: Behind the thin link.
        api: Port and token of the API.
    """

    def __init__(self, daemon: Daemon, peer: MqttPeer, api: tuple[int, str]) -> None:
        self.daemon = daemon
        self.peer = peer
        self.received: dict[bytes, float] = {}
        self.arrived: dict[bytes, float] = {}
        self.alarms: dict[bytes, float] = {}
        self.bare_s = 0.0
        self._api = api
        self._clock = SystemClock()
        self._rng = random.Random(3)
        self._packet_id = 0

    async def connect(self, client_id: str) -> Client:
        """Sign a device in, and listen for messages to it."""
        client: Client

        def take(messages: list[Any]) -> None:
            now = self._clock.monotonic()
            self.received |= {each.body: now for each in messages}
            client.acknowledge_all(messages)

        client = await open_client(
            LinkOptions(
                host="127.0.0.1",
                port=self.daemon.mqtt_port,
                client_id=client_id,
                keep_alive_s=600,
                connect_timeout_s=60,
            ),
            clock=self._clock,
            on_confirmed=lambda _packet_ids: None,
            on_messages=take,
        )
        client.begin()
        assert not await client.subscribe([f"devices/{client_id}/messages/devicebound/#"])
        return client

    async def watch_arrivals(self) -> None:
        """Note when alarms arrive."""
        seen = 0
        while True:
            await self.peer.until(lambda seen=seen: len(self.peer.published) > seen, LAST_S)
            now = self._clock.monotonic()
            new = self.peer.published[seen:]
            self.arrived |= {body: now for body in new if body.startswith(ALARM)}
            seen += len(new)

    def alarm(self, press: Client) -> bytes:
        """Send an alarm."""
        body = (ALARM + b"%d " % len(self.alarms)).ljust(200, b"-")
        self._publish(press, "kind=alarm", body)
        self.alarms[body] = self._clock.monotonic()
        return body

    async def measure_bare(self, press: Client) -> None:
        """Measure the way of an alarm over the idle link."""
        took = []
        for _ in range(3):
            body = self.alarm(press)
            await self.peer.until(lambda body=body: body in self.peer.published, 30)
            took.append(self._clock.monotonic() - self.alarms[body])
        self.bare_s = min(took)
        self.alarms.clear()

    async def send_bulk(self, press: Client) -> None:
        """Send more than the link carries, until cancelled."""
        for number in range(1_000_000):
            self._publish(press, "", telemetry(self._rng, number))
            await self._clock.sleep(1 / BULK_RATE_S)

    async def send_alarms(self, press: Client) -> list[float]:
        """Send alarms for a while; returns what they took beyond the bare way, sorted."""
        self.alarms.clear()
        end = self._clock.monotonic() + SECONDS
        while self._clock.monotonic() < end:
            await self._clock.sleep(ALARM_EVERY_S * self._rng.uniform(0.5, 1.5))
            self.alarm(press)
        await self.peer.until(lambda: self.alarms.keys() <= set(self.peer.published), LAST_S)
        await asyncio.sleep(0)
        return sorted(self.arrived[body] - at - self.bare_s for body, at in self.alarms.items())

    async def send_by_api(self) -> dict[bytes, float]:
        """Originate messages at the API of the hub at the full rate."""
        sent: dict[bytes, float] = {}
        numbers = iter(range(API_RATE_S * SECONDS))
        began = self._clock.monotonic()
        async with asyncio.TaskGroup() as group:
            for _ in range(API_CONNECTIONS):
                group.create_task(self._post_all(numbers, began, sent))
        took = self._clock.monotonic() - began
        print(f"\n{len(sent) / took:.0f} messages/s by the API, for {took:.1f} s")
        return sent

    async def send_by_link(self) -> dict[bytes, float]:
        """Let the peer send messages down the thin link."""
        sent: dict[bytes, float] = {}
        for number in range(LINK_RATE_S * SECONDS):
            body = b"link %d" % number
            device_id = f"dev-{number % DEVICES}"
            topic = f"devices/{device_id}/messages/devicebound/%24.mid=link-{number}"
            sent[body] = self._clock.monotonic()
            self.peer.send(deliver(topic, body, qos=1, packet_id=number + 1))
            await self._clock.sleep(1 / LINK_RATE_S)
        await self.peer.until(lambda: len(self.peer.acknowledged) == len(sent), LAST_S)
        return sent

    async def all_received(self, sent: dict[bytes, float]) -> list[float]:
        """Wait for all of these; returns how long each took, sorted."""
        try:
            async with asyncio.timeout(LAST_S):
                while not sent.keys() <= self.received.keys():
                    await self._clock.sleep(0.05)
        except TimeoutError:
            missing = sorted(sent.keys() - self.received.keys())
            pytest.fail(f"{len(missing)} of {len(sent)} are missing: {missing[:10]}")
        return sorted(self.received[body] - at for body, at in sent.items())

    def _publish(self, press: Client, bag: str, body: bytes) -> None:
        self._packet_id = self._packet_id % 60_000 + 1
        topic = f"devices/press/messages/events/{bag}".encode()
        press.write(publish(topic, body, self._packet_id))

    async def _post_all(
        self, numbers: Iterator[int], began: float, sent: dict[bytes, float]
    ) -> None:
        port, token = self._api
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in numbers:
            await self._clock.sleep(max(0, began + number / API_RATE_S - self._clock.monotonic()))
            body = b"api %d" % number
            content = json.dumps({"body": body.decode()})
            sent[body] = self._clock.monotonic()
            writer.write(
                f"POST /api/v1/devices/dev-{number % DEVICES}/messages HTTP/1.1\r\n"
                f"Host: localhost\r\nAuthorization: Bearer {token}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
                f"{content}".encode()
            )
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            _, _, rest = head.partition(b"content-length:")
            answer = await reader.readexactly(int(rest.split(b"\r\n")[0]))
            assert b" 200 " in head.split(b"\r\n")[0], answer
        writer.close()


@contextmanager
def a_hub(folder: Path, upstream: int) -> Iterator[tuple[Daemon, tuple[int, str]]]:
    """Run a hub with the API."""
    port = free_port()
    (folder / "m.json").write_text(json.dumps(MANIFEST))
    entry, token = Token.new("load", Role.WRITE)
    with changing_tokens(folder / "tokens") as tokens:
        tokens["load"] = entry
    daemon = Daemon(
        folder,
        f'data_dir = "data"\nmanifest = "m.json"\n[mqtt]\nport = {free_port()}\n'
        f"clients_max = {2 * DEVICES}\n"
        f'[upstream]\ntype = "mqtt"\nmqtt = "3.1.1"\nhost = "127.0.0.1"\nport = {upstream}\n'
        f'[web]\nport = {port}\ntoken_file = "tokens"\n[log]\nformat = "json"\n',
    )
    try:
        daemon.start()
        daemon.wait_event("web.listening")
        yield daemon, (port, token)
        assert daemon.stop() == 0
    finally:
        daemon.close()


def cpu_of(pid: int) -> float:
    """Return the seconds of a core that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def shown(waits: list[float]) -> str:
    """Return quantiles of seconds."""
    p99 = waits[min(len(waits) - 1, int(len(waits) * 0.99))]
    return f"p50 {waits[len(waits) // 2]:.3f} p99 {p99:.3f} max {waits[-1]:.3f} s"


async def test_alarms_keep_their_bound_while_messages_come_down(tmp_path: Path) -> None:
    """1 000 a second to 1 000 devices from the API of the hub, then 2 a second down the link."""
    async with AsyncExitStack() as stack:
        peer = await stack.enter_async_context(mqtt_peer())
        link = stack.enter_context(LinkThread(peer.port, bit_s=UP_BIT_S, down_bit_s=UP_BIT_S))
        daemon, api = stack.enter_context(a_hub(tmp_path, link.port))
        site = Site(daemon, peer, api)
        press = await site.connect("press")
        await peer.until(lambda: peer.is_connected)
        watch = asyncio.create_task(site.watch_arrivals())
        await site.measure_bare(press)
        devices = [await site.connect(f"dev-{number}") for number in range(DEVICES)]
        # Until then SUBSCRIBEs for the devices have the link.
        wanted = {f"devices/dev-{number}/messages/devicebound/#" for number in range(DEVICES)}
        await peer.until(lambda: wanted <= peer.granted, LAST_S)
        bulk = asyncio.create_task(site.send_bulk(press))
        waits = {"nothing": await site.send_alarms(press)}
        for name, send in (("API", site.send_by_api), ("link", site.send_by_link)):
            before, cpu_s = link.bytes_passed, cpu_of(daemon.pid)
            async with asyncio.TaskGroup() as group:
                alarms = group.create_task(site.send_alarms(press))
                sent = group.create_task(send())
            waits[name] = alarms.result()
            took = await site.all_received(sent.result())
            used = (link.bytes_passed - before) * 8 / UP_BIT_S
            cpu_s = cpu_of(daemon.pid) - cpu_s
            print(
                f"{name}: {len(took)} messages down in {shown(took)}; "
                f"{used:.1f} s of the link, {cpu_s:.1f} s of a core"
            )
        for name, each in waits.items():
            print(f"{len(each)} alarms up beside {name}: {shown(each)} beyond {site.bare_s:.3f} s")
        for task in (bulk, watch):
            task.cancel()
        await asyncio.wait({bulk, watch})
        for client in (press, *devices):
            await client.close()
    for each in waits.values():
        assert each[int(len(each) * 0.99)] < FLOOR_S

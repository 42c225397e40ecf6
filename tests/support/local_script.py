"""Scripts of local clients: the same steps against any broker, and what each client was sent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import mqtt5

from tests.support import mqtt_wire as wire
from tests.support.mqtt_wire import RawClient, length

if TYPE_CHECKING:
    from random import Random


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """What a client was sent.

    `properties` are those of MQTT 5 that pass through a broker.
    """

    topic: str
    body: bytes
    qos: int
    retain: bool
    again: bool
    properties: tuple = ()


@dataclass(frozen=True, kw_only=True)
class Step:
    """One thing that one client does.

    `kind` is connect, subscribe, unsubscribe, publish, leave, vanish, hold or confirm: a client
    that holds takes messages and confirms none of them.
    """

    kind: str
    client: str
    topic: str = ""
    body: bytes = b""
    qos: int = 0
    retain: bool = False
    options: dict = field(default_factory=dict)


class Client:
    """One client of either protocol version."""

    def __init__(self, raw: RawClient, level: int) -> None:
        self.raw = raw
        self.level = level
        self.got: list[Delivery] = []
        self.holding = False
        self._held: list[tuple[int, int]] = []
        self._answers: list[tuple[int, bytes]] = []

    @classmethod
    async def connected(
        cls, port: int, client_id: str, level: int, *, clean: bool, expiry_s: int
    ) -> tuple[Client, bool]:
        """Sign in; gives the client and whether its session was there."""
        client = cls(await RawClient.open(port), level)
        if level == 5:
            packet = mqtt5.ConnectPacket(
                client_id,
                clean_start=clean,
                session_expiry_interval=expiry_s,
                keep_alive=60,
                receive_max=1000,
            )
            client.raw.send(packet.write())
        else:
            client.raw.send(wire.connect(client_id, clean=clean))
        head, body = await client.raw.read()
        assert (head, body[1]) == (wire.CONNACK, 0), body
        return client, bool(body[0])

    def send(self, v3: bytes, v5: mqtt5.Packet) -> None:
        """Send a packet in the client's protocol version."""
        self.raw.send(v5.write() if self.level == 5 else v3)

    async def answer(self, head: int) -> bytes:
        """Wait for an answer; messages that come before it are taken."""
        while not self._answers or self._answers[0][0] != head:
            await self._read()
        return self._answers.pop(0)[1]

    async def settle(self) -> None:
        """Take and confirm all that the broker has for the client now."""
        before = -1
        while len(self.got) != before:
            before = len(self.got)
            self.raw.send(wire.PINGREQ)
            await self.answer(wire.PINGRESP)

    def confirm(self) -> None:
        """Confirm what was held back, and hold nothing back any more."""
        self.holding = False
        for head, packet_id in self._held:
            self.raw.send(wire.acknowledgement(head, packet_id))
        self._held.clear()

    async def _read(self) -> None:
        head, body = await self.raw.read()
        if head == wire.PUBREL:
            self.raw.send(wire.packet(wire.PUBCOMP, body[:2]))
            return
        if head & 0xF0 != 0x30:
            self._answers.append((head, body))
            return
        delivery, packet_id = self._parsed(head, body)
        self.got.append(delivery)
        answer = wire.PUBREC if delivery.qos > 1 else wire.PUBACK
        if packet_id and self.holding:
            self._held.append((answer, packet_id))
        elif packet_id:
            self.raw.send(wire.acknowledgement(answer, packet_id))

    def _parsed(self, head: int, body: bytes) -> tuple[Delivery, int]:
        if self.level == 5:
            packet, _ = mqtt5.read(memoryview(bytes([head]) + length(len(body)) + body))
            properties = (
                packet.content_type,
                packet.response_topic,
                packet.correlation_data,
                packet.payload_format_indicator,
                tuple(packet.user_properties or ()),
            )
            return Delivery(
                topic=packet.topic,
                body=bytes(packet.payload),
                qos=int(packet.qos),
                retain=packet.retain,
                again=packet.duplicate,
                properties=properties,
            ), packet.packet_id or 0
        end = 2 + int.from_bytes(body[:2], "big")
        qos = head >> 1 & 3
        packet_id = int.from_bytes(body[end : end + 2], "big") if qos else 0
        return Delivery(
            topic=body[2:end].decode(),
            body=body[end + 2 :] if qos else body[end:],
            qos=qos,
            retain=bool(head & 1),
            again=bool(head & 8),
        ), packet_id


class Script:
    """Runs steps against one broker; each client id has one protocol version and session kind."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.clients: dict[str, Client] = {}
        self.gone: list[Client] = []
        self.log: list[tuple[str, list[Delivery]]] = []

    async def run(self, steps: list[Step]) -> list:
        """Play the script; gives, step by step, answers and what each client was sent."""
        account = []
        for step in steps:
            answer = await getattr(self, f"_{step.kind}")(step)
            account.append((step.kind, step.client, answer, await self._deliveries()))
        for client in (*self.clients.values(), *self.gone):
            await client.raw.close()
        return account

    async def _deliveries(self) -> dict[str, list[Delivery]]:
        got = {}
        for name, client in self.clients.items():
            await client.settle()
            if client.got:
                # Between topics there is no order; inside one there is.
                got[name] = sorted(client.got, key=lambda delivery: delivery.topic)
                client.got = []
        return got

    async def _connect(self, step: Step) -> bool:
        old = self.clients.pop(step.client, None)
        if old is not None:
            self.gone.append(old)
        client, present = await Client.connected(self.port, step.client, **step.options)
        self.clients[step.client] = client
        return present

    async def _subscribe(self, step: Step) -> bytes:
        client = self.clients[step.client]
        wanted = mqtt5.TopicFilter(
            step.topic,
            **{**step.options, "max_qos": mqtt5.QoS(step.qos)},
        )
        client.send(wire.subscribe((step.topic, step.qos)), mqtt5.SubscribePacket(1, [wanted]))
        return (await client.answer(wire.SUBACK))[-1:]

    async def _unsubscribe(self, step: Step) -> bytes:
        client = self.clients[step.client]
        client.send(wire.unsubscribe(step.topic), mqtt5.UnsubscribePacket(1, [step.topic]))
        return (await client.answer(wire.UNSUBACK))[2:]

    async def _publish(self, step: Step) -> None:
        client = self.clients[step.client]
        packet = mqtt5.PublishPacket(
            step.topic,
            step.body,
            qos=mqtt5.QoS(step.qos),
            packet_id=7 if step.qos else None,
            retain=step.retain,
            **step.options,
        )
        flags = int(step.retain)
        v3 = wire.publish(step.topic, step.body, qos=step.qos, packet_id=7, flags=flags)
        client.send(v3, packet)
        if step.qos > 1:
            await client.answer(wire.PUBREC)
            client.raw.send(wire.acknowledgement(wire.PUBREL, 7))
            await client.answer(wire.PUBCOMP)
        elif step.qos:
            await client.answer(wire.PUBACK)
        else:
            client.raw.send(wire.PINGREQ)
            await client.answer(wire.PINGRESP)

    async def _leave(self, step: Step) -> None:
        client = self.clients.pop(step.client)
        client.raw.send(wire.DISCONNECT)
        assert await client.raw.closed()
        await client.raw.close()

    async def _vanish(self, step: Step) -> None:
        client = self.clients.pop(step.client)
        client.raw.send(wire.PINGREQ)
        await client.answer(wire.PINGRESP)
        # Half closed: the broker sees the end, and its own close says that it has.
        await client.raw.end()
        await client.raw.close()

    async def _hold(self, step: Step) -> None:
        self.clients[step.client].holding = True

    async def _confirm(self, step: Step) -> None:
        self.clients[step.client].confirm()


TOPICS = ("te/a", "te/b", "te/a/x", "te/b/x", "te/a/x/y", "c8y/s", "te")
FILTERS = ("te/#", "te/+", "te/+/x", "te/a", "te/a/#", "#", "+/s", "te/a/x/y", "c8y/+/#")


def random_steps(random: Random, count: int) -> list[Step]:
    """Make a script of clients that come, go, subscribe and publish.

    A client keeps its quality of service and options, because brokers differ in which of several
    matching subscriptions decides; `test_local_space` says what the hub does.
    """
    kinds = {
        f"c{number}": {
            "level": random.choice((4, 5)),
            "clean": random.random() < 0.4,
            "qos": random.choice((0, 1, 2)),
            "no_local": random.random() < 0.3,
            "rap": random.random() < 0.5,
        }
        for number in range(5)
    }
    steps: list[Step] = []
    connected: set[str] = set()
    for number in range(count):
        client = random.choice(list(kinds))
        kind = kinds[client]
        if client not in connected or random.random() < 0.05:
            clean = kind["clean"] or random.random() < 0.1
            options = {"level": kind["level"], "clean": clean}
            # A session of MQTT 3.1.1 lasts for ever unless it is clean.
            options["expiry_s"] = 0 if kind["clean"] else 1000
            if kind["level"] == 4:
                options["clean"] = kind["clean"]
            steps.append(Step(kind="connect", client=client, options=options))
            connected.add(client)
            continue
        chance = random.random()
        if chance < 0.25:
            steps.append(_subscription(random, client, kind))
        elif chance < 0.32:
            topic = _shared(random, client, kind) + random.choice(FILTERS)
            steps.append(Step(kind="unsubscribe", client=client, topic=topic))
        elif chance < 0.40:
            steps.append(Step(kind=random.choice(("leave", "vanish")), client=client))
            connected.discard(client)
        elif chance < 0.46:
            steps.append(Step(kind=random.choice(("hold", "confirm")), client=client))
        else:
            retain = random.random() < 0.3
            body = b"" if retain and random.random() < 0.3 else str(number).encode()
            options = {}
            if kind["level"] == 5 and random.random() < 0.5:
                options = {
                    "user_properties": [("k", "v"), ("k", "w")],
                    "content_type": "text/plain",
                    "response_topic": "te/answer",
                    "correlation_data": b"\x00\xff",
                }
            steps.append(
                Step(
                    kind="publish",
                    client=client,
                    topic=random.choice(TOPICS),
                    body=body,
                    qos=random.choice((0, 1, 2)),
                    retain=retain,
                    options=options,
                )
            )
    return steps


def _subscription(random: Random, client: str, kind: dict) -> Step:
    options = {}
    share = _shared(random, client, kind)
    if kind["level"] == 5:
        options = {
            "no_local": kind["no_local"] and not share,
            "retain_as_published": kind["rap"],
            "retain_handling": mqtt5.RetainHandling(2 if share else random.choice((0, 1, 2))),
        }
    topic = share + random.choice(FILTERS)
    return Step(kind="subscribe", client=client, topic=topic, qos=kind["qos"], options=options)


def _shared(random: Random, client: str, kind: dict) -> str:
    """Begin a shared subscription, now and then.

    The group is the client's own, as brokers differ in whose turn it is among several. Only MQTT 5
    can ask for no retained messages, which Mosquitto sends here against the standard.
    """
    return f"$share/{client}/" if kind["level"] == 5 and random.random() < 0.15 else ""

"""A client that speaks MQTT 5 through another codec than the listener's, packet by packet."""

from __future__ import annotations

from typing import TypeVar

import mqtt5

from tests.support.mqtt_wire import RawClient, length

P = TypeVar("P")

AT_MOST_ONCE = mqtt5.QoS.AT_MOST_ONCE
AT_LEAST_ONCE = mqtt5.QoS.AT_LEAST_ONCE
EXACTLY_ONCE = mqtt5.QoS.EXACTLY_ONCE

EVENTS = "devices/dev1/messages/events/"
BOUND = "devices/dev1/messages/devicebound/#"


class Client5:
    """A raw connection; everything is sent and read as packets of the `mqtt5` package."""

    def __init__(self, raw: RawClient) -> None:
        self.raw = raw

    @classmethod
    async def open(cls, port: int) -> Client5:
        """Connect on loopback."""
        return cls(await RawClient.open(port))

    @classmethod
    async def signed_in(cls, port: int, client_id: str = "dev1", **options: object) -> Client5:
        """Connect and sign in; fails unless the hub accepts."""
        client = await cls.open(port)
        try:
            answer = await client.connect(client_id, **options)
        except BaseException:
            client.raw.cut()
            raise
        assert answer.reason_code == 0, answer
        return client

    async def connect(self, client_id: str = "dev1", **options: object) -> mqtt5.ConnAckPacket:
        """Send a CONNECT and give the answer."""
        options = {"clean_start": True, "keep_alive": 60, **options}
        self.send(mqtt5.ConnectPacket(client_id, **options))
        return await self.read(mqtt5.ConnAckPacket)

    def send(self, *packets: mqtt5.Packet) -> None:
        """Write without waiting."""
        self.raw.send(b"".join(packet.write() for packet in packets))

    def publish(self, topic: str = EVENTS, payload: bytes = b"x", **options: object) -> None:
        """Send a PUBLISH, of QoS 1 with packet id 1 unless told otherwise."""
        options = {"qos": AT_LEAST_ONCE, "packet_id": 1, **options}
        if not int(options["qos"]):
            options["packet_id"] = None
        self.send(mqtt5.PublishPacket(topic, payload, **options))

    async def subscribe(self, *filters: str, **options: object) -> list[int]:
        """Subscribe with QoS 1 and give the codes."""
        wanted = [
            mqtt5.TopicFilter(name, **{"max_qos": AT_LEAST_ONCE, **options}) for name in filters
        ]
        self.send(mqtt5.SubscribePacket(1, wanted))
        answer = await self.read(mqtt5.SubAckPacket)
        return [int(code) for code in answer.reason_codes]

    async def read(self, kind: type[P]) -> P:
        """Return the next packet, which must be of this kind."""
        packet = await self.read_any()
        assert isinstance(packet, kind), packet
        return packet

    async def read_any(self) -> mqtt5.Packet:
        """Return the next packet."""
        head, body = await self.raw.read()
        data = bytes([head]) + length(len(body)) + body
        packet, size = mqtt5.read(memoryview(data))
        assert size == len(data)
        return packet

    async def codes(self, count: int) -> list[tuple[int, int]]:
        """Return packet id and reason code of the next `count` packets, PUBACKs."""
        answers = [await self.read(mqtt5.PubAckPacket) for _ in range(count)]
        return [(answer.packet_id, int(answer.reason_code)) for answer in answers]

    async def goodbye(self) -> mqtt5.DisconnectPacket:
        """Return the DISCONNECT that comes next, and make sure that nothing follows."""
        packet = await self.read(mqtt5.DisconnectPacket)
        assert await self.raw.closed()
        return packet

    async def pong(self) -> None:
        """Ping and wait for the answer: what was sent before has been acted upon."""
        await self.raw.pong()

    async def close(self) -> None:
        """Close the socket."""
        await self.raw.close()

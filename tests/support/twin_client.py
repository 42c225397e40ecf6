"""A device, a module or a hub that speaks for others, as the topics of twins and methods see it."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import mqtt5

from tests.support.mqtt5_client import AT_MOST_ONCE, Client5

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

OWN = ("$iothub/twin/res/#", "$iothub/twin/PATCH/properties/desired/#", "$iothub/methods/POST/#")
OF_CLIENTS = ("$edge/clients/+/+/+/#",)
_RESULT = re.compile(r"(.*)twin/res/(\d+)/\?\$rid=(\w+)(?:&\$version=(\d+))?")
_DESIRED = re.compile(r"(.*)twin/PATCH/properties/desired/\?\$version=(\d+)")
_CALL = re.compile(r"(.*)methods/POST/([^/]+)/\?\$rid=(.*)")


class Result(NamedTuple):
    """The answer to a request."""

    status: int
    body: Any
    version: int | None


class Desired(NamedTuple):
    """A change of desired properties."""

    prefix: str
    version: int
    patch: Any


class Call(NamedTuple):
    """A call of a method."""

    prefix: str
    name: str
    request_id: str
    payload: Any


class TwinClient:
    """A signed-in client, subscribed to all that concerns twins and methods."""

    def __init__(self, client: Client5) -> None:
        self.client = client
        self._numbers = itertools.count(1)

    async def get(self, prefix: str = "$iothub/") -> Result:
        """Read a twin."""
        return await self._request(f"{prefix}twin/GET/", b"")

    async def report(self, patch: Any, prefix: str = "$iothub/") -> Result:
        """Report properties."""
        body = patch if isinstance(patch, bytes) else json.dumps(patch).encode()
        return await self._request(f"{prefix}twin/PATCH/properties/reported/", body)

    async def desired(self) -> Desired:
        """Return the next message, a change of desired properties."""
        packet = await self.message()
        found = _DESIRED.fullmatch(packet.topic)
        assert found is not None, packet.topic
        patch = json.loads(bytes(packet.payload))
        # The SDKs read it from the body, others from the topic.
        assert patch.pop("$version") == int(found[2])
        return Desired(found[1], int(found[2]), patch)

    async def call(self) -> Call:
        """Return the next message, a call of a method."""
        packet = await self.message()
        found = _CALL.fullmatch(packet.topic)
        assert found is not None, packet.topic
        return Call(found[1], found[2], found[3], json.loads(bytes(packet.payload) or b"null"))

    def respond(self, call: Call, status: int | str, payload: Any = None) -> None:
        """Answer a call."""
        topic = f"{call.prefix}methods/res/{status}/?$rid={call.request_id}"
        self.client.publish(topic, json.dumps(payload).encode(), qos=AT_MOST_ONCE)

    async def message(self) -> mqtt5.PublishPacket:
        """Return the next packet, a message, confirmed."""
        packet = await self.client.read(mqtt5.PublishPacket)
        if int(packet.qos):
            self.client.send(mqtt5.PubAckPacket(packet.packet_id))
        return packet

    async def _request(self, topic: str, body: bytes) -> Result:
        request_id = str(next(self._numbers))
        self.client.publish(f"{topic}?$rid={request_id}", body, qos=AT_MOST_ONCE)
        packet = await self.message()
        found = _RESULT.fullmatch(packet.topic)
        assert found is not None, packet.topic
        assert found[3] == request_id
        payload = bytes(packet.payload)
        version = None if found[4] is None else int(found[4])
        return Result(int(found[2]), json.loads(payload) if payload else None, version)


@contextlib.asynccontextmanager
async def twin_client(
    port: int, client_id: str, *, filters: tuple[str, ...] = OWN, **options: object
) -> AsyncIterator[TwinClient]:
    """Sign a client in for the length of the block."""
    client = await Client5.signed_in(port, client_id, **options)
    try:
        assert await client.subscribe(*filters) == [1] * len(filters)
        yield TwinClient(client)
    finally:
        await client.close()

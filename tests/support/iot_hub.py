"""A scripted Azure IoT Hub: its MQTT endpoint, and its service side as methods for tests.

MQTT 3.1.1 alone. It closes the connection over whatever IoT Hub does not take, and notes why: a
hub under test is expected to cause no such fault. `MqttPeer` is the peer for faults of the link.

Source: Azure IoT Hub, "Communicate with an IoT hub using the MQTT protocol", "Send cloud-to-device
messages", "Understand and invoke direct methods".
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import itertools
import json
import re
import socket
import ssl
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, quote, unquote

from tests.support.mqtt_peer import CONNECT, DISCONNECT, PINGREQ, PUBACK, PUBLISH, SUBSCRIBE
from tests.support.mqtt_peer import read_packet as read
from tests.support.mqtt_wire import packet, puback, publish
from tests.support.twin_responder import merge

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

NAME = "hub.azure-devices.net"
API = "?api-version=2021-04-12"
MESSAGE_BYTES_MAX = 256 * 1024
WAITING_MAX = 50
UNSUBSCRIBE = 10

METHODS = "$iothub/methods/POST/#"
DESIRED = "$iothub/twin/PATCH/properties/desired/#"
ANSWERS = "$iothub/twin/res/#"

_USER = re.compile(re.escape(NAME) + r"/([^/]+)(?:/([^/]+))?/\?(.*&)?api-version=[\d-]+(&.*)?")
_EVENTS = re.compile(r"devices/([^/]+)/(?:modules/([^/]+)/)?messages/events/([^/]*)/?")
_GET = re.compile(r"\$iothub/twin/GET/\?\$rid=([^&]+)")
_REPORT = re.compile(r"\$iothub/twin/PATCH/properties/reported/\?\$rid=([^&]+)")
_RESULT = re.compile(r"\$iothub/methods/res/(\d+)/\?\$rid=([^&]+)")
_BAD_NAME = re.compile(r"[\x00-\x20.$#]")
_NOT_AUTHORIZED = 5


class Event(NamedTuple):
    """A message of a device."""

    sender: str
    body: bytes
    properties: dict[str, str]
    is_retained: bool


@dataclass
class Client:
    """A device or module that is registered.

    Attributes:
        key: Its symmetric key, None = it has a certificate whose common name is its id.
        filters: To what it is subscribed; kept with the session.
        messages: Those that wait, by id: the topic and the body of each.
        requests: `GET` or the patch of each request about its twin.
        connects: How often it has signed in.
    """

    id: str
    key: bytes | None
    desired: dict[str, Any] = field(default_factory=dict)
    desired_version: int = 1
    reported: dict[str, Any] = field(default_factory=dict)
    reported_version: int = 1
    filters: set[str] = field(default_factory=set)
    messages: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    requests: list[Any] = field(default_factory=list)
    connects: int = 0
    link: Link | None = None

    def document(self) -> dict[str, Any]:
        """Return the twin as its client reads it."""
        return {
            "desired": {**self.desired, "$version": self.desired_version},
            "reported": {**self.reported, "$version": self.reported_version},
        }


class Link:
    """The connection of a signed-in client."""

    def __init__(self, client: Client, writer: asyncio.StreamWriter, *, is_clean: bool) -> None:
        self.client = client
        self.writer = writer
        self.is_clean = is_clean
        self.unconfirmed: dict[int, str] = {}
        self._ids = itertools.cycle(range(1, 65_536))

    def publish(self, topic: str, body: bytes) -> None:
        """Send with QoS 0."""
        self.writer.write(publish(topic, body))

    def deliver(self) -> None:
        """Send the messages that are not under way."""
        for mid, (topic, body) in self.client.messages.items():
            if mid not in self.unconfirmed.values():
                packet_id = next(self._ids)
                self.unconfirmed[packet_id] = mid
                self.writer.write(publish(topic, body, qos=1, packet_id=packet_id))


class IotHub:
    """The hub.

    Attributes:
        port: Where it listens.
        clients: By id, `<device>` or `<device>/<module>`.
        events: Messages of devices in order of arrival.
        completed: Ids of messages to devices that were acknowledged.
        faults: Why it closed connections, in order.
        status: Answers each request about a twin with this status instead, 429 for example.
        is_silent: Answers no request about a twin.
    """

    def __init__(self) -> None:
        self.port = 0
        self.clients: dict[str, Client] = {}
        self.events: list[Event] = []
        self.completed: list[str] = []
        self.faults: list[str] = []
        self.status: int | None = None
        self.is_silent = False
        self._calls: dict[str, asyncio.Future[tuple[int, Any]]] = {}
        self._numbers = itertools.count(1)
        self._changed = asyncio.Event()

    # The service side.

    def register(self, client_id: str, key: bytes | None = None) -> Client:
        """Register a device or module."""
        client = self.clients[client_id] = Client(client_id, key)
        return client

    def enrol(self, folder: Path, *client_ids: str) -> None:
        """Register clients, each with a key of its own in a file of its name."""
        for client_id in client_ids:
            key = hashlib.sha256(client_id.encode()).digest()
            self.register(client_id, key)
            file = folder / f"{client_id}.key"
            file.write_text(base64.b64encode(key).decode())
            file.chmod(0o600)

    def upstream(self, folder: Path, *, sessions: bool = False) -> dict[str, Any]:
        """Return the settings that lead the gateway `gw` here, maybe with sessions of devices."""
        link = {
            "type": "mqtt",
            "host": NAME,
            "port": self.port,
            "username": f"{NAME}/gw/{API}",
            "shared_access_key_file": str(folder / "gw.key"),
            "twins": True,
        }
        if not sessions:
            return link
        return {
            **link,
            "identity": "device",
            "device_username": f"{NAME}/{{device}}/{API}",
            "device_shared_access_key_file": str(folder / "{device}.key"),
        }

    def desire(self, client_id: str, patch: dict[str, Any]) -> None:
        """Merge a patch into what is desired of a client; it is sent, and lost if it is absent."""
        client = self.clients[client_id]
        merge(client.desired, patch)
        client.desired_version += 1
        if client.link is not None and DESIRED in client.filters:
            version = client.desired_version
            body = json.dumps({**patch, "$version": version}).encode()
            client.link.publish(f"{DESIRED[:-1]}?$version={version}", body)

    def send(
        self, device_id: str, body: bytes, *, expires_s: float | None = None, **properties: str
    ) -> str:
        """Send a message to a device; returns its id, empty if the queue of the device is full."""
        client = self.clients[device_id]
        if len(client.messages) >= WAITING_MAX:
            return ""
        mid = f"mid-{next(self._numbers)}"
        bag = {"$.mid": mid, "$.to": f"/devices/{device_id}/messages/devicebound"}
        if expires_s is not None:
            moment = time.gmtime(time.time() + expires_s)
            bag["$.exp"] = time.strftime("%Y-%m-%dT%H:%M:%S.0000000Z", moment)
        bag |= {name.replace("iothub_ack", "iothub-ack"): text for name, text in properties.items()}
        pairs = [f"{quote(name, safe='')}={quote(text, safe='')}" for name, text in bag.items()]
        topic = f"devices/{device_id}/messages/devicebound/{'&'.join(pairs)}"
        client.messages[mid] = topic, body
        if client.link is not None and _device_bound(client) in client.filters:
            client.link.deliver()
        return mid

    async def invoke(
        self, client_id: str, name: str, payload: Any = None, *, timeout_s: float = 10
    ) -> tuple[int, Any]:
        """Call a method; 404 without a client that listens, 504 without an answer."""
        client = self.clients[client_id]
        if client.link is None or METHODS not in client.filters:
            return 404, None
        request_id = f"{next(self._numbers):x}"
        answer = self._calls[request_id] = asyncio.get_running_loop().create_future()
        topic = f"{METHODS[:-1]}{name}/?$rid={request_id}"
        client.link.publish(topic, json.dumps(payload).encode())
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            return 504, None
        finally:
            del self._calls[request_id]

    def listens(self, client_id: str, topic_filter: str) -> bool:
        """Return whether a client is connected and subscribed."""
        client = self.clients[client_id]
        return client.link is not None and topic_filter in client.filters

    def cut(self, client_id: str | None = None) -> None:
        """Close the connection of a client, by default all."""
        chosen = self.clients.values() if client_id is None else [self.clients[client_id]]
        for client in chosen:
            if client.link is not None:
                client.link.writer.transport.abort()

    async def until(self, condition: Callable[[], Any], timeout_s: float = 10) -> None:
        """Wait until a condition on this record holds."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    # The side of the devices.

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle one connection."""
        link = None
        # Closed also when a test has ended, which cancels it.
        with (
            contextlib.closing(writer),
            contextlib.suppress(asyncio.IncompleteReadError, ConnectionError),
        ):
            link = await self._signed_in(reader, writer)
            while link is not None:
                kind, flags, payload = await read(reader)
                if kind == DISCONNECT:
                    break
                if fault := self._take(link, kind, flags, payload):
                    self.faults.append(f"{link.client.id}: {fault}")
                    break
                self._changed.set()
        if link is not None and link.client.link is link:
            link.client.link = None
            if link.is_clean:
                link.client.filters.clear()
        self._changed.set()

    async def _signed_in(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Link | None:
        kind, _, payload = await read(reader)
        certificate = writer.get_extra_info("peercert") or {}
        names = [
            pair[0][1] for pair in certificate.get("subject", ()) if pair[0][0] == "commonName"
        ]
        fault, client = "the first packet is not CONNECT of MQTT 3.1.1", None
        if kind == CONNECT and payload.startswith(b"\0\4MQTT\4"):
            fault, client = self._check(_fields(payload), names)
        if client is None:
            self.faults.append(fault)
            writer.write(packet(0x20, bytes([0, _NOT_AUTHORIZED])))
            return None
        if client.link is not None:
            client.link.writer.transport.abort()  # one connection a device
        link = client.link = Link(client, writer, is_clean=bool(payload[7] & 2))
        if link.is_clean:
            client.filters.clear()
        client.connects += 1
        writer.write(packet(0x20, bytes([bool(client.filters), 0])))
        if _device_bound(client) in client.filters:
            link.deliver()
        self._changed.set()
        return link

    def _check(self, fields: list[str], names: list[str]) -> tuple[str, Client | None]:
        client_id, user, *password = [*fields, ""][:3]
        found = _USER.fullmatch(user)
        if found is None or "/".join(filter(None, found.group(1, 2))) != client_id:
            return f"client id {client_id!r} with the user name {user!r}", None
        client = self.clients.get(client_id)
        if client is None:
            return f"{client_id!r} is not registered", None
        is_trusted = client_id in names if client.key is None else _is_signed(password[0], client)
        return ("", client) if is_trusted else (f"wrong credentials of {client_id!r}", None)

    def _take(self, link: Link, kind: int, flags: int, payload: bytes) -> str:
        """Handle a packet; returns what is wrong with it."""
        if kind == PUBLISH:
            return self._take_publish(link, flags, payload)
        if kind == PUBACK:
            mid = link.unconfirmed.pop(int.from_bytes(payload, "big"), "")
            if link.client.messages.pop(mid, None) is not None:
                self.completed.append(mid)
        elif kind == SUBSCRIBE:
            return self._take_subscribe(link, payload)
        elif kind == UNSUBSCRIBE:
            link.client.filters.difference_update(_fields(payload, start=2))
            link.writer.write(packet(0xB0, payload[:2]))
        elif kind == PINGREQ:
            link.writer.write(b"\xd0\x00")
        else:
            return f"packet of type {kind}"
        return ""

    def _take_subscribe(self, link: Link, payload: bytes) -> str:
        client, codes, at = link.client, bytearray(), 2
        while at < len(payload):
            end = at + 2 + int.from_bytes(payload[at : at + 2], "big")
            topic_filter, qos, at = payload[at + 2 : end].decode(), payload[end], end + 1
            if topic_filter not in {METHODS, DESIRED, ANSWERS, _device_bound(client)}:
                return f"SUBSCRIBE to {topic_filter}"
            client.filters.add(topic_filter)
            codes.append(min(qos, 1))
        link.writer.write(packet(0x90, payload[:2] + codes))
        if _device_bound(client) in client.filters:
            link.deliver()
        return ""

    def _take_publish(self, link: Link, flags: int, payload: bytes) -> str:
        qos = flags >> 1 & 3
        end = 2 + int.from_bytes(payload[:2], "big")
        topic, body = payload[2:end].decode(), payload[end + 2 * bool(qos) :]
        if qos > 1:
            return "PUBLISH with QoS 2"
        if len(payload) > MESSAGE_BYTES_MAX:
            return f"PUBLISH of {len(payload)} bytes"
        if event := _EVENTS.fullmatch(topic):
            sender = "/".join(filter(None, event.group(1, 2)))
            if sender != link.client.id:
                return f"PUBLISH of {sender}"
            properties = dict(parse_qsl(event[3], keep_blank_values=True))
            self.events.append(Event(sender, body, properties, bool(flags & 1)))
        elif request := _GET.fullmatch(topic) or _REPORT.fullmatch(topic):
            self._answer(link, request[1], None if "/GET/" in topic else body)
        elif result := _RESULT.fullmatch(topic):
            answer = self._calls.get(result[2])
            if answer is not None and not answer.done():
                answer.set_result((int(result[1]), json.loads(body) if body else None))
        else:
            return f"PUBLISH to {topic}"
        if qos:
            link.writer.write(puback(int.from_bytes(payload[end : end + 2], "big")))
        return ""

    def _answer(self, link: Link, request_id: str, patch: bytes | None) -> None:
        client = link.client
        status, body, version = self.status or 200, b"", ""
        client.requests.append("GET" if patch is None else json.loads(patch))
        if self.is_silent or ANSWERS not in client.filters:
            return
        if self.status is None and patch is None:
            body = json.dumps(client.document()).encode()
        elif self.status is None:
            status, version = 400, ""
            if not _is_bad(client.requests[-1]):
                merge(client.reported, client.requests[-1])
                client.reported_version += 1
                status, version = 204, f"&$version={client.reported_version}"
        link.publish(f"{ANSWERS[:-1]}{status}/?$rid={request_id}{version}", body)


def _device_bound(client: Client) -> str:
    device_id, _, module_id = client.id.partition("/")
    modules = f"modules/{module_id}/" if module_id else ""
    return f"devices/{device_id}/{modules}messages/devicebound/#"


def _fields(payload: bytes, start: int = 10) -> list[str]:
    """Return the texts of a packet from an offset on; that of a CONNECT without a will is 10."""
    found = []
    while start < len(payload):
        end = start + 2 + int.from_bytes(payload[start : start + 2], "big")
        found.append(payload[start + 2 : end].decode())
        start = end
    return found


def _is_signed(password: str, client: Client) -> bool:
    fields = dict(item.split("=", 1) for item in password.rpartition(" ")[2].split("&") if item)
    device_id, _, module_id = client.id.partition("/")
    resource = f"{NAME}/devices/{device_id}" + (f"/modules/{module_id}" if module_id else "")
    if unquote(fields.get("sr", "")) != resource or float(fields.get("se", "0")) < time.time():
        return False
    digest = hmac.digest(client.key or b"", f"{fields['sr']}\n{fields['se']}".encode(), "sha256")
    return unquote(fields.get("sig", "")) == base64.b64encode(digest).decode()


def _is_bad(patch: Any) -> bool:
    if isinstance(patch, list):
        return None in patch or any(map(_is_bad, patch))
    return isinstance(patch, dict) and any(
        _BAD_NAME.search(name) or _is_bad(value) for name, value in patch.items()
    )


def server_tls(certificate: Path, key: Path, authority: Path) -> ssl.SSLContext:
    """Return TLS that asks for certificates and takes clients without one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(authority)
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


@contextlib.contextmanager
def _named() -> Iterator[None]:
    """Resolve the hub's name to loopback in this process."""
    resolve = socket.getaddrinfo

    def resolved(host: Any, *rest: Any, **options: Any) -> Any:
        return resolve("127.0.0.1" if host == NAME else host, *rest, **options)

    socket.getaddrinfo = resolved  # type: ignore[assignment]
    try:
        yield
    finally:
        socket.getaddrinfo = resolve


@contextlib.asynccontextmanager
async def iot_hub(*, tls: ssl.SSLContext | None = None) -> AsyncIterator[IotHub]:
    """Run one on a free port of loopback for the length of the block, found by its name."""
    hub = IotHub()
    server = await asyncio.start_server(hub.serve, "127.0.0.1", 0, ssl=tls)
    hub.port = server.sockets[0].getsockname()[1]
    try:
        with _named():
            yield hub
    finally:
        server.close()
        hub.cut()
        await server.wait_closed()

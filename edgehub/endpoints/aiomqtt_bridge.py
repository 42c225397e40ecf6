"""One connection to an MQTT broker through aiomqtt; no other file knows the inside of it and paho.

aiomqtt (2.5.1 on paho-mqtt 2.2) keeps the session: CONNECT, keep-alive, subscriptions, DISCONNECT.
What is reached into, and why:

- `Client._client`: paho's client. aiomqtt has no argument for manual acknowledgement, and its own
  queue of incoming messages would acknowledge before anybody has taken a message.
- `paho._create_socket`: returns a `Channel` around a socket that was connected here without
  blocking; paho would connect in a thread that cannot be cancelled, and read byte by byte. The
  channel takes PUBLISHes and PUBACKs out, so paho sees messages of QoS 2 only.
- `paho._mid_generate`: packet ids of our PUBLISHes must not collide with those of paho's
  SUBSCRIBEs. The PUBLISHes themselves are written straight to the channel: `await publish` costs
  about 48 us a message, paho's own `publish` about 25, a written packet 2.
- `paho._loop_rc_handle`, `paho._sock_close`: the ways to end a connection at once, with and
  without telling aiomqtt.
- `Client._client_connect`, `_on_connect`, `_on_disconnect`, `_disconnected`: see `_Client`.
- `Client._wait_for`: see `CancellableClient`.
- `Client._loop`: see `_Readers`.

Invariants: when `connect` is left, by whatever way, the socket is closed and no callback comes; who
is cancelled in here hears of that, and not of a link that ended in the same moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import select
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import aiomqtt
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from edgehub.endpoints.mqtt_channel import Channel, Receiver
from edgehub.endpoints.mqtt_link import LinkError, LinkOptions, Wanted, Welcome, open_socket
from edgehub.errors import ConfigError
from edgehub.mqtt.client_decoder import Incoming
from edgehub.mqtt.packets import LEVEL_5
from edgehub.storage.credentials import read_secret

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from paho.mqtt.client import Client as PahoClient
    from paho.mqtt.client import MQTTMessage

T = TypeVar("T")

DISCONNECT_TIMEOUT_S: Final = 1.0
SUBSCRIBE_TIMEOUT_S: Final = 10.0

# MQTT 5 reason codes, to which paho translates those of 3.1.1.
_REFUSED_FOR_GOOD: Final = {133, 134, 135}
_BAD_CLIENT_ID: Final = 133
_PUBACK_HEAD: Final = b"\x40\x02"
_FAILURE: Final = 0x80


class _Gate:
    """Holds messages back until whoever connected is ready for them.

    A peer that has kept the session sends what waited right behind its CONNACK.
    """

    __slots__ = ("_held", "_is_open", "_pass_on")

    def __init__(self, pass_on: Callable[[list[Incoming]], None]) -> None:
        self._pass_on = pass_on
        self._held: list[Incoming] = []
        self._is_open = False

    def take(self, messages: list[Incoming]) -> None:
        """Take what came."""
        if self._is_open:
            self._pass_on(messages)
        else:
            self._held += messages

    def open(self) -> None:
        """Pass on what is held, and what comes from now on."""
        self._is_open = True
        held, self._held = self._held, []
        if held:
            self._pass_on(held)


class _Readers:
    """The loop as aiomqtt sees it: reads the socket by way of an epoll, and can pause.

    uvloop forgets who reads a socket that the peer resets, and calls nobody; the link would pass
    for up until acknowledgements are overdue. An epoll that holds the socket meets no error of its
    own, it can be read then. aiomqtt hands its reader to the loop and has no way to take it back.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._reader: Callable[[], object] | None = None
        self._epoll: select.epoll | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def add_reader(self, descriptor: int, callback: Callable[[], object]) -> None:
        """See the loop."""
        self.remove_reader(descriptor)
        self._reader = callback
        self._epoll = select.epoll(1)
        self._epoll.register(descriptor, select.EPOLLIN)
        self._loop.add_reader(self._epoll.fileno(), callback)

    def remove_reader(self, _descriptor: int) -> bool:
        """See the loop."""
        epoll, self._epoll = self._epoll, None
        if epoll is None:
            return False
        self._loop.remove_reader(epoll.fileno())
        epoll.close()
        return True

    def pause(self, descriptor: int) -> None:
        """Read no more."""
        self.remove_reader(descriptor)

    def resume(self, descriptor: int) -> None:
        """Read again."""
        if self._reader is not None:
            self.add_reader(descriptor, self._reader)


class Connection:
    """An established session.

    Attributes:
        welcome: What the peer's CONNACK said.
    """

    __slots__ = ("_channel", "_client", "_gate", "_level", "_paho", "_pauses", "welcome")

    def __init__(self, client: _Client, channel: Channel, gate: _Gate, level: int) -> None:
        self._client = client
        self._paho = _paho_of(client)
        self._channel = channel
        self._gate = gate
        self._level = level
        self._pauses = 0
        self.welcome = client.welcome

    def pause_reading(self) -> None:
        """Leave what the peer sends in the socket; its answers to pings too, so not for long.

        Who calls it twice has to resume twice.
        """
        self._pauses += 1
        if self._pauses == 1 and self._channel.is_open:
            self._client.readers.pause(self._channel.fileno())

    def resume_reading(self) -> None:
        """End a pause."""
        assert self._pauses
        self._pauses -= 1
        if not self._pauses and self._channel.is_open:
            self._client.readers.resume(self._channel.fileno())

    def begin(self) -> None:
        """Hand over messages from now on, those first that came since CONNACK."""
        self._gate.open()

    def next_mid(self) -> int:
        """Give the next packet id, 1 to 65 535, from the row that paho counts."""
        return self._paho._mid_generate()  # noqa: SLF001 - see the module

    def write(self, data: bytes) -> None:
        """Write whole packets."""
        self._channel.write(data)

    def unsent_bytes(self) -> int:
        """Give the bytes that have not left this machine."""
        return self._channel.unsent_bytes()

    def look_at_way(self) -> None:
        """See `Channel.look_at_way`."""
        self._channel.look_at_way()

    @property
    def unsent_at_close(self) -> int | None:
        """Bytes that had not left when the peer closed; None = it did not close."""
        return self._channel.unsent_at_close

    def acknowledge(self, message: Incoming) -> None:
        """Send the PUBACK of a message of this connection; nothing once it is closed."""
        self.acknowledge_all((message,))

    def acknowledge_all(self, messages: Iterable[Incoming]) -> None:
        """Send the PUBACKs of messages of this connection, in order; nothing once it is closed."""
        if not self._channel.is_open:
            return
        pubacks: list[bytes] = []
        for message in messages:
            if message.qos == 1:
                pubacks.append(_PUBACK_HEAD + message.mid.to_bytes(2, "big"))
            elif message.qos:
                self._paho.ack(message.mid, message.qos)
        if pubacks:
            self._channel.write(b"".join(pubacks))

    async def subscribe(self, filters: Iterable[str]) -> list[str]:
        """Subscribe with QoS 1; gives the filters that the peer refused."""
        wanted = list(filters)
        try:
            granted = await self._client.subscribe(
                [(topic, 1) for topic in wanted], timeout=SUBSCRIBE_TIMEOUT_S
            )
        except aiomqtt.MqttError as error:
            raise LinkError(f"subscribe: {error}", parked=False) from error
        codes = [_code(code) for code in granted]
        return [topic for topic, code in zip(wanted, codes, strict=True) if code >= _FAILURE]

    async def subscribe_as(self, wanted: Wanted) -> int:
        """Subscribe with the options of MQTT 5, as far as the protocol level has them.

        The retain flag comes as it was published, and retained messages come when the session does
        not have the subscription yet.

        Returns:
            The peer's reason code; from 128 on it refused.

        Raises:
            LinkError: If it does not answer.
        """
        assert self._level >= LEVEL_5
        options = SubscribeOptions(
            qos=1,
            noLocal=wanted.no_local,
            retainAsPublished=True,
            retainHandling=SubscribeOptions.RETAIN_SEND_IF_NEW_SUB,
        )
        properties = Properties(PacketTypes.SUBSCRIBE)  # type: ignore[no-untyped-call] # paho's has no types
        if wanted.number is not None:
            properties.SubscriptionIdentifier = wanted.number
        try:
            (granted,) = await self._client.subscribe(
                wanted.filter, options=options, properties=properties, timeout=SUBSCRIBE_TIMEOUT_S
            )
        except aiomqtt.MqttError as error:
            raise LinkError(f"subscribe: {error}", parked=False) from error
        return _code(granted)

    async def unsubscribe(self, filters: Iterable[str]) -> None:
        """Unsubscribe."""
        try:
            await self._client.unsubscribe(list(filters), timeout=SUBSCRIBE_TIMEOUT_S)
        except aiomqtt.MqttError as error:
            raise LinkError(f"unsubscribe: {error}", parked=False) from error

    def abort(self, reason: str) -> None:
        """End the connection at once; `wait_closed` gives the reason."""
        self._channel.end_reason = reason
        self._paho._loop_rc_handle(MQTTErrorCode.MQTT_ERR_CONN_LOST)  # noqa: SLF001 - see the module

    async def wait_closed(self) -> str:
        """Wait for the end of the connection; gives the reason."""
        try:
            async for _ in self._client.messages:
                # Incoming messages go to `on_message` instead of aiomqtt's queue.
                raise AssertionError
        except aiomqtt.MqttError as error:
            cause = error.__cause__ or error
            return self._channel.end_reason or str(cause)
        raise AssertionError


@contextlib.asynccontextmanager
async def connect(
    options: LinkOptions,
    *,
    on_pubacks: Callable[[list[int]], None],
    on_messages: Callable[[list[Incoming]], None],
    on_refusals: Callable[[list[tuple[int, int]]], None] | None = None,
) -> AsyncIterator[Connection]:
    """Connect, and close again at the end of the block.

    Args:
        options: See `LinkOptions`.
        on_pubacks: Gets the packet ids of confirmed PUBLISHes.
        on_messages: Gets incoming messages from `Connection.begin` on; each is acknowledged by
            `Connection.acknowledge`.
        on_refusals: Gets packet ids and reason codes of PUBLISHes that a peer of MQTT 5 refused.

    Raises:
        LinkError: If there is no connection.
    """
    password = await _password(options)
    sock = await open_socket(options)
    gate = _Gate(on_messages)
    receiver = Receiver(
        on_pubacks,
        gate.take,
        on_refusals,
        level=options.level,
        bytes_max=options.incoming_bytes_max,
    )
    channel = Channel(sock, asyncio.get_running_loop(), receiver)
    try:
        client = _client(options, password, channel)
        paho = _paho_of(client)
        _take_over_messages(paho, gate.take)
        try:
            client.start()
            async with client:
                client.timeout = DISCONNECT_TIMEOUT_S
                yield Connection(client, channel, gate, options.level)
        except aiomqtt.MqttError as error:
            raise _refused(error, channel) from error
        finally:
            paho._sock_close()  # noqa: SLF001 - see the module
    finally:
        channel.close()


class CancellableClient(aiomqtt.Client):
    """aiomqtt's client, for those who are to end when they are cancelled."""

    async def _wait_for(self, fut: Awaitable[T], timeout: float | None) -> T:  # noqa: ASYNC109 - aiomqtt's own form
        """Wait as aiomqtt does, but for `asyncio.wait_for`: Python 3.11's forgets a cancel.

        It does where what it waits for comes in the same turn of the loop; whoever was to end
        would then go on for ever.
        """
        seconds = self.timeout if timeout is None else timeout
        try:
            async with asyncio.timeout(None if seconds == math.inf else seconds):
                return await fut
        except TimeoutError:
            raise aiomqtt.MqttError("Operation timed out") from None


class _Client(CancellableClient):
    """aiomqtt's client on a socket that is connected already; used for one connection.

    Attributes:
        welcome: What CONNACK said, once it came.
        readers: Pauses reading.
    """

    welcome = Welcome()
    readers: _Readers

    def start(self) -> None:
        """Send CONNECT: aiomqtt would do it in a thread, which is of no use without blocking."""
        self.readers = _Readers(self._loop)
        self._loop = self.readers  # type: ignore[assignment] # stands in for the loop
        # The end may come when nobody waits for it, which asyncio would complain about.
        self._disconnected.add_done_callback(lambda end: end.cancelled() or end.exception())
        super()._client_connect()

    async def __aenter__(self) -> Self:
        end = self._disconnected
        await super().__aenter__()
        # aiomqtt puts a new future here if the peer closed right behind its CONNACK, and waits for
        # the end of a connection that is gone already.
        self._disconnected = end
        return self

    def _client_connect(self) -> None:
        """Do nothing: `start` has done it."""

    def _on_connect(
        self,
        client: PahoClient,
        userdata: Any,
        flags: Any,
        reason_code: Any,
        properties: Any = None,
    ) -> None:
        # aiomqtt drops what else is in CONNACK.
        self.welcome = _welcome(flags, properties)
        super()._on_connect(client, userdata, flags, reason_code, properties)

    def _on_disconnect(
        self,
        client: PahoClient,
        userdata: Any,
        flags: Any,
        reason_code: Any,
        properties: Any = None,
    ) -> None:
        # aiomqtt ignores an end before CONNACK and lets the connect time out instead.
        if not self._connected.done():
            self._connected.set_exception(aiomqtt.MqttError("closed before CONNACK"))
            return
        super()._on_disconnect(client, userdata, flags, reason_code, properties)


def _welcome(flags: Any, properties: Any) -> Welcome:
    def said(name: str, absent: int | None) -> Any:
        return getattr(properties, name, absent)

    return Welcome(
        session_present=bool(flags.session_present),
        receive_maximum=said("ReceiveMaximum", 65_535),
        packet_bytes_max=said("MaximumPacketSize", None),
        retains=bool(said("RetainAvailable", 1)),
        shares=bool(said("SharedSubscriptionAvailable", 1)),
        identifies=bool(said("SubscriptionIdentifierAvailable", 1)),
    )


def _code(code: ReasonCode | int) -> int:
    return int(code.value) if isinstance(code, ReasonCode) else code


def _session_options(options: LinkOptions) -> dict[str, Any]:
    """Say in the words of the protocol level whether and how long the session is kept."""
    if options.level < LEVEL_5:
        return {"clean_session": options.clean_session}
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call] # likewise
    properties.SessionExpiryInterval = 0 if options.clean_session else options.session_expiry_s
    properties.ReceiveMaximum = options.receive_maximum
    return {
        "protocol": aiomqtt.ProtocolVersion.V5,
        "clean_start": options.clean_session,
        "properties": properties,
    }


def _client(options: LinkOptions, password: str | None, channel: Channel) -> _Client:
    client = _Client(
        options.host,
        options.port,
        username=options.username,
        password=password,
        identifier=options.client_id,
        keepalive=options.keep_alive_s,
        timeout=options.connect_timeout_s,
        **_session_options(options),
    )
    paho = _paho_of(client)
    # Two log calls a packet, payload lengths and topics in them: nothing for production.
    paho.disable_logger()
    paho.manual_ack_set(True)
    paho._create_socket = lambda: channel  # type: ignore[method-assign,assignment,return-value]  # noqa: SLF001 - see the module
    loop = asyncio.get_running_loop()

    # The channel takes every packet whole and owns the descriptor's writer; paho only has to be
    # called once for what it has queued.
    def write_soon(*_: object) -> None:
        loop.call_soon(paho.loop_write)

    paho.on_socket_register_write = write_soon
    paho.on_socket_unregister_write = lambda *_: None
    return client


def _take_over_messages(paho: PahoClient, on_messages: Callable[[list[Incoming]], None]) -> None:
    """Take messages of QoS 2, which a subscription of somebody else may bring."""
    loop = asyncio.get_running_loop()

    def take(_client: PahoClient, _userdata: Any, message: MQTTMessage) -> None:
        topic: str | None
        try:
            topic = message.topic
        except UnicodeDecodeError:
            topic = None
        incoming = Incoming(
            topic=topic, body=bytes(message.payload), mid=message.mid, qos=message.qos
        )
        # Not from inside paho's read, which would take an error of ours for one of the link.
        loop.call_soon(on_messages, [incoming])

    paho.on_message = take


async def _password(options: LinkOptions) -> str | None:
    file = options.password_file
    if file is None:
        return None
    try:
        return await asyncio.to_thread(read_secret, "password_file", file)
    except ConfigError as error:
        raise LinkError(str(error), parked=True) from error


def _refused(error: aiomqtt.MqttError, channel: Channel) -> LinkError:
    code = error.rc if isinstance(error, aiomqtt.MqttCodeError) else None
    if isinstance(code, ReasonCode):
        parked = code.value in _REFUSED_FOR_GOOD
        hint = " (set client_id to the user's id)" if code.value == _BAD_CLIENT_ID else ""
        return LinkError(f"refused: {code.getName()}{hint}", parked=parked)
    return LinkError(channel.end_reason or str(error), parked=False)


def _paho_of(client: aiomqtt.Client) -> PahoClient:
    return client._client  # noqa: SLF001 - see the module

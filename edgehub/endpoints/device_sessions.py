"""The MQTT endpoint at which each device has its own session.

Owns the sessions; the hub's own endpoint lies inside and carries the hub's rows, those of devices
that another hub owns if the peer allows it, and the state of the link. Over which
session a row is sent is decided by `UpstreamSessions`. Invariants: a row is settled exactly once;
no session of a device is open without the hub's own one.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Final

import structlog

from edgehub.endpoints.device_bound import DEVICE_TOPIC, accept_publish, device_filter
from edgehub.endpoints.device_session import DeviceSession, SessionEnd, SessionError
from edgehub.endpoints.device_twins import DeviceTwins
from edgehub.endpoints.mqtt_link import VersionChoice
from edgehub.endpoints.mqtt_payload import too_large, topic_of
from edgehub.endpoints.mqtt_topic import IotHubTopics
from edgehub.endpoints.subscription_guard import SubscriptionGuard
from edgehub.message import FailureKind, SendResult
from edgehub.mqtt.client_topics import OWN, OWN_FILTERS
from edgehub.mqtt.packets import publish_bytes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from edgehub.clock import Clock
    from edgehub.endpoints.client_uplink import ClientUplink
    from edgehub.endpoints.device_bound import Accept
    from edgehub.endpoints.device_session import SessionOptions
    from edgehub.endpoints.device_twins import TwinAnswer
    from edgehub.endpoints.endpoint import EndpointListener, Settle
    from edgehub.endpoints.mqtt import MqttEndpoint
    from edgehub.message import EndpointId, Row
    from edgehub.mqtt.client_decoder import IncomingPublish

SESSIONS_KEPT: Final = 20_000
"""Objects of closed sessions kept; beyond it they are created again when needed."""

OPENINGS_MAX: Final = 64
"""Sessions that are being opened at once: when a link comes back, all devices have rows."""


log = structlog.get_logger(__name__)


class DeviceSessions:
    """An endpoint with a session for each device; implements `Endpoint` and `ClientSessions`.

    Args:
        hub: The hub's own session.
        options: How devices connect.
        on_behalf: The peer takes messages of devices from the hub's session too.
        clock: Timers.
        device_bound: Stores messages to devices, None = they are not subscribed to.
        clients: Takes what concerns twins and methods of devices, None = nothing does.
    """

    def __init__(
        self,
        hub: MqttEndpoint,
        options: SessionOptions,
        *,
        on_behalf: bool,
        clock: Clock,
        device_bound: Accept | None,
        clients: ClientUplink | None = None,
    ) -> None:
        self.id: EndpointId = hub.id
        self.on_behalf = on_behalf
        self._hub = hub
        self._options = options
        self._clock = clock
        self._device_bound = device_bound
        self._clients = clients
        self._topics = IotHubTopics(modules=options.takes_modules)
        self._version = VersionChoice(options.level, falls_back=options.falls_back)
        self._twins = DeviceTwins(timeout_s=options.connect_timeout_s)
        self._sessions: dict[str, DeviceSession] = {}
        self._busy: set[DeviceSession] = set()
        self._topic_of: dict[int, bytes | SendResult] = {}
        """Of the rows that were measured last, by offset."""
        self._openings = asyncio.Semaphore(OPENINGS_MAX)
        self._wanted: set[str] = set()
        self._attached: set[str] = set()
        self._guards: dict[str, SubscriptionGuard] = {}
        self.over_hub: Callable[[str], bool | None] = lambda _device_id: True
        """Returns whether a row goes over the hub's session, None = it cannot leave; set once."""
        self.ended: Callable[[str, SessionEnd, str], None] = lambda _device_id, _end, _reason: None
        """Called with sessions that this hub did not close; set once."""
        self.link_changed: Callable[[bool], None] = lambda _is_up: None
        """Called with the state of the hub's own session; set once."""
        self.listening: Callable[[str, bool], None] = lambda _device_id, _listens: None
        """Called with a device that begins or ceases to be subscribed here; set once."""
        self.may_open: Callable[[str], bool] = lambda _device_id: False
        """Returns whether a device has its session open, or may have it opened now; set once."""
        self.in_use: Callable[[str], AbstractAsyncContextManager[None]] = lambda _: nullcontext()
        """Keeps the session of a device open for the length of the block; set once."""

    @property
    def state(self) -> str:
        """Return the state: `connecting`, `up`, `down`, `parked` or `closed`."""
        return self._hub.state

    @property
    def retry_in_s(self) -> float | None:
        """Return the seconds until the next connection attempt, None = none is due."""
        return self._hub.retry_in_s

    @property
    def row_bytes_max(self) -> int | None:
        """Return the largest packet that the peer takes, None = not known."""
        return self._hub.row_bytes_max

    @property
    def mqtt_version(self) -> str | None:
        """Return the version of MQTT that the hub's session uses, None = it is not connected."""
        return self._hub.mqtt_version

    @property
    def left_out_filters(self) -> tuple[str, ...]:
        """Return the suspended subscriptions of all sessions, the hub's among them."""
        own = [each for guard in self._guards.values() for each in guard.left_out]
        return (*self._hub.left_out_filters, *own)

    @property
    def relays(self) -> bool:
        """Return whether messages to devices are relayed."""
        return self._device_bound is not None

    def session(self, device_id: str) -> DeviceSession:
        """Return the session of a device, closed at first."""
        session = self._sessions.get(device_id)
        if session is None:
            if len(self._sessions) >= SESSIONS_KEPT:
                self._sessions = {
                    name: kept for name, kept in self._sessions.items() if not kept.is_idle
                }
            session = self._sessions[device_id] = DeviceSession(
                device_id,
                self._options,
                clock=self._clock,
                ended=self._session_ended,
                message=self._take,
                version=self._version,
            )
        return session

    async def open(self, device_id: str) -> None:
        """Open the session of a device, with its subscription if the device is subscribed here.

        Raises:
            SessionError: It cannot be opened.
        """
        async with self._openings:
            session = self.session(device_id)
            await session.open()
        if device_id in self._wanted:
            self._subscribe(device_id, session)
        if self._clients is not None:
            self._clients.session_is(device_id, True)

    # As `ClientSessions`.

    def carries(self, device_id: str) -> bool:
        """Return whether the session of a device is open, or may be opened now."""
        return self.may_open(device_id)

    @asynccontextmanager
    async def use(self, device_id: str) -> AsyncIterator[None]:
        """Keep the session of a device open, subscribed to what concerns twins and methods.

        Raises:
            EdgeHubError: It cannot be opened now, or refuses a subscription.
        """
        async with self.in_use(device_id):
            try:
                async with asyncio.timeout(self._options.connect_timeout_s):
                    await self.session(device_id).listen(*OWN_FILTERS)
            except TimeoutError as exc:
                raise SessionError("no answer to a subscription in time") from exc
            yield

    def publish(self, device_id: str, topic: str, body: bytes) -> None:
        """Publish over the session of a device with QoS 0; nothing while it is closed."""
        session = self.session(device_id)
        if not session.is_open:
            return
        try:
            session.publish(topic.encode(), body)
        except SessionError as error:
            log.warning("device.request_not_sent", device_id=device_id, reason=str(error))

    def set_attached(self, device_id: str, attached: bool) -> None:
        """Keep the session of a device open for what the peer sends about its twin and methods."""
        is_new = attached and device_id not in self._attached
        if attached:
            self._attached.add(device_id)
        else:
            self._attached.discard(device_id)
        self._listening_changed(device_id)
        if is_new and self._clients is not None and self.session(device_id).is_open:
            self._clients.session_is(device_id, True)

    def _listening_changed(self, device_id: str) -> None:
        self.listening(device_id, device_id in self._wanted or device_id in self._attached)

    # Twins of devices that are kept in them.

    async def twin(self, device_id: str) -> TwinAnswer:
        """Read a device's twin over its session.

        Raises:
            SessionError: There is no answer, or the session is not open.
        """
        return await self._twins.read(self.session(device_id))

    async def report(self, device_id: str, patch: bytes) -> TwinAnswer:
        """Merge a JSON object into what a device reports, over its session.

        Raises:
            SessionError: There is no answer, or the session is not open.
        """
        return await self._twins.report(self.session(device_id), patch)

    def open_sessions(self) -> int:
        """Count the open sessions of devices."""
        return sum(session.is_open for session in self._sessions.values())

    def wire_bytes(self, rows: Sequence[Row]) -> list[int]:
        """Return the bytes that each of `rows` takes on the link, for windows and limits."""
        # The rows are sent next, and building the topics is the most expensive part of it.
        self._topic_of = {row.offset: topic_of(row, self._topics) for row in rows}
        return [
            row.size
            if isinstance(topic, SendResult)
            else publish_bytes(len(topic), len(row.message.body))
            for row, topic in zip(rows, self._topic_of.values(), strict=True)
        ]

    def unsent_bytes(self) -> int:
        """Return the bytes that have not left this machine: ours plus the kernel's."""
        return self._hub.unsent_bytes() + sum([session.unsent_bytes() for session in self._busy])

    def send_batch(self, rows: Sequence[Row], settle: Settle) -> None:
        """Send rows without waiting; `settle` is called once per row, maybe at once."""
        of_hub: list[Row] = []
        for row in rows:
            device_id = row.message.device_id
            over_hub = self.over_hub(device_id)
            session = self._sessions.get(device_id)
            if over_hub:
                of_hub.append(row)
            elif over_hub is None or session is None or not session.is_open:
                settle(row, SendResult(FailureKind.UNREACHABLE, "the device's session is not open"))
            else:
                self._send(row, session, settle)
        if of_hub:
            self._hub.send_batch(of_hub, settle)

    async def run(self, listener: EndpointListener) -> None:
        """Keep the link until cancelled; reconnects by itself, with back-off."""
        try:
            await self._hub.run(_LinkListener(listener, self._link_up, self._link_down))
        finally:
            self._link_down()

    def retry_now(self) -> None:
        """Stop connect back-offs; suspended subscriptions are tried with the next sessions."""
        for guard in self._guards.values():
            guard.retry_now()
        self._version.forget()
        self._hub.retry_now()

    def retry_within(self, seconds: float) -> None:
        """Shorten a running connect back-off to `seconds`; harmless while up or parked."""
        self._hub.retry_within(seconds)

    async def close(self) -> None:
        """Close the link; rows still in flight are settled as disconnected."""
        self._link_down()
        await self._hub.close()

    def subscribe_device(self, device_id: str) -> None:
        """Take messages to a device that is subscribed here, over its session."""
        if not self.relays:
            return
        self._wanted.add(device_id)
        session = self._sessions.get(device_id)
        if session is not None and session.is_open:
            self._subscribe(device_id, session)
        self._listening_changed(device_id)

    def unsubscribe_device(self, device_id: str) -> None:
        """Take no messages to a device from its next session on; the peer keeps them."""
        self._wanted.discard(device_id)
        self._listening_changed(device_id)
        self._guards.pop(device_id, None)

    def _subscribe(self, device_id: str, session: DeviceSession) -> None:
        wanted = [device_filter(device_id)]
        guard = self._guards.setdefault(device_id, SubscriptionGuard(self.id, self._clock))
        if not guard.next(wanted):
            return
        guard.asks(wanted)

        def answered(answer: asyncio.Future[bytes]) -> None:
            if not answer.cancelled() and answer.exception() is None:
                guard.answered()

        session.subscribe(wanted[0]).add_done_callback(answered)

    def _send(self, row: Row, session: DeviceSession, settle: Settle) -> None:
        topic = self._topic_of.get(row.offset) or topic_of(row, self._topics)
        if isinstance(topic, SendResult):
            settle(row, topic)
            return
        size = publish_bytes(len(topic), len(row.message.body))
        limit = self.row_bytes_max
        if limit is not None and size > limit:
            settle(row, too_large("packet", size, limit))
            return

        def settled(row: Row, result: SendResult) -> None:
            if not session.in_flight:
                self._busy.discard(session)
            settle(row, result)

        self._busy.add(session)
        session.send(row, topic, settled)

    def _link_up(self) -> None:
        self.link_changed(True)
        if self._clients is not None:
            self._clients.attach(self)

    def _link_down(self) -> None:
        for session in self._sessions.values():
            if session.is_open:
                session.abort("the link is down")
        self.link_changed(False)
        if self._clients is not None:
            self._clients.detach(self)

    def _session_ended(self, device_id: str, end: SessionEnd, reason: str) -> None:
        self._busy.discard(self._sessions[device_id])
        if guard := self._guards.get(device_id):
            is_dropped = end in {SessionEnd.DROPPED, SessionEnd.DROPPED_LATE}
            guard.ended(0 if is_dropped else None)
            if guard.blamed:
                end, reason = SessionEnd.LOST, "closed by the peer over the device's subscription"
        self._twins.ended(device_id, reason)
        if self._clients is not None:
            self._clients.session_is(device_id, False)
        if end is not SessionEnd.CLOSED:
            self.ended(device_id, end, reason)

    def _take(self, device_id: str, packet: IncomingPublish) -> None:
        session, accept = self._sessions.get(device_id), self._device_bound
        if session is None:
            return
        if packet.topic is None:
            self._drop(session, packet, "malformed")
            return
        match = DEVICE_TOPIC.fullmatch(packet.topic)
        is_own = self._twins.take(device_id, packet)
        if not is_own and self._clients is not None and packet.topic.startswith(OWN):
            is_own = True
            if packet.body is not None:
                self._clients.take_from(device_id, packet.topic, packet.body)
        if is_own or accept is None or match is None or match.group(1) != device_id:
            session.acknowledge(packet)
            return
        done = session.acknowledgement(packet)
        if fault := accept_publish(accept, device_id, match.group(2), packet, done):
            self._drop(session, packet, fault)

    def _drop(self, session: DeviceSession, packet: IncomingPublish, reason: str) -> None:
        log.warning("device_bound.message_dropped", endpoint_id=self.id, reason=reason)
        session.acknowledge(packet)


class _LinkListener:
    """Closes the devices' sessions with the hub's link; implements `EndpointListener`."""

    def __init__(
        self, listener: EndpointListener, up: Callable[[], None], down: Callable[[], None]
    ) -> None:
        self._listener = listener
        self._up = up
        self._down = down

    def link_up(self, *, rows_max: int | None) -> None:
        """Record that rows can be sent; `rows_max` = unconfirmed rows that the peer allows."""
        self._listener.link_up(rows_max=rows_max)
        self._up()

    def link_down(self, reason: str, *, parked: bool) -> None:
        """Record that the hub's link is down; the sessions of devices are settled before."""
        self._down()
        self._listener.link_down(reason, parked=parked)

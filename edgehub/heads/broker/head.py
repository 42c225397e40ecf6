"""The broker head: a client of another MQTT broker, with a session that outlives the hub.

Owns the link, its back-off, and the subscriptions of the session. It calls the router and the local
topic space. Invariants: a message is acknowledged only after its commit; topics that no route needs
any more are unsubscribed from, also by the next start; between `drain` and `close` no message is
taken, and every message taken before is acknowledged.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from edgehub.endpoints.backoff import Backoff, RetryWait
from edgehub.endpoints.mqtt_link import connect
from edgehub.endpoints.subscription_guard import RETRY_S, SubscriptionGuard
from edgehub.heads.broker.dispatcher import SESSION, Dispatcher
from edgehub.heads.broker.ingress import BrokerIngress, Load
from edgehub.heads.broker.publisher import BrokerPublisher
from edgehub.heads.broker.senders import Senders
from edgehub.heads.broker.statistics import BrokerCounters, BrokerStatistics
from edgehub.heads.broker.subscriptions import Subscriptions, wanted_wires
from edgehub.mqtt.client import LinkError
from edgehub.mqtt.packets import LEVEL_5
from edgehub.mqtt.subscription_options import NO_LOCAL, REPLAY_IF_NEW_BITS, RETAIN_AS_PUBLISHED
from edgehub.storage.durable_files import replace_file
from edgehub.telemetry.log_limit import LogLimit

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable
    from pathlib import Path

    from edgehub.clock import Clock
    from edgehub.endpoints.mqtt_link import LinkOptions
    from edgehub.heads.broker.dispatcher import BrokerDependencies
    from edgehub.mqtt.client import Client
    from edgehub.mqtt.client_decoder import IncomingPublish
    from edgehub.mqtt.client_packets import RefusedPublish
    from edgehub.settings import BrokerSettings
    from edgehub.telemetry.losses import Loss

PARKED_RETRY_S: Final = 60.0

STABLE_S: Final = 5.0
"""The back-off is reset after a connection of this length, so that a broker that closes each
connection at once is not tried every second for ever."""

_OPTIONS: Final = 1 | RETAIN_AS_PUBLISHED | REPLAY_IF_NEW_BITS
"""MQTT 5: QoS 1; retained messages are sent if the session does not have the subscription yet."""

log = structlog.get_logger(__name__)


class BrokerHead:
    """The head; implements `Head`.

    Args:
        settings: Of the section `[broker]`.
        hub: Parts of the hub that it uses; the local topic space is not loaded yet.
        link: Address and client id of the connection.
        local_topics: Topic filters that broker and local topic space share.
        memory_file: Stores the subscriptions of the session at the broker.
        hub_id: Sender of messages whose topic matches no sender pattern.
        clock: Timers.
        rng: Randomness for jitter.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        hub: BrokerDependencies,
        *,
        link: LinkOptions,
        local_topics: tuple[str, ...],
        memory_file: Path,
        hub_id: str,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._settings = settings
        self._link = link
        self._local_topics = local_topics
        self._memory_file = memory_file
        self._clock = clock
        self._space = hub.space
        self._backoff = Backoff(rng)
        self._retry = RetryWait(clock)
        self._log = LogLimit(clock)
        self._counters = BrokerCounters()
        self._load = Load(self._emptied)
        self._subscriptions = Subscriptions((link.host, link.port, link.client_id, link.level))
        self._dispatcher = Dispatcher(
            hub,
            local_topics,
            hub_id=hub_id,
            senders=Senders(settings.devices, hub_id=hub_id),
            subscriptions=self._subscriptions,
            counters=self._counters,
            message_bytes_max=settings.message_bytes_max,
        )
        self._session = hub.space.carry(SESSION, local_topics)
        self._guard = SubscriptionGuard("broker", clock)
        self._route_filters: tuple[str, ...] = ()
        self._changed = asyncio.Event()
        self._refused_wires: tuple[str, ...] = ()
        self._state = "connecting"
        self._reason = ""
        self._logged = ""
        self._up_at: float | None = None
        self._session_kept: bool | None = None
        self._ingress: BrokerIngress | None = None
        self._publisher: BrokerPublisher | None = None
        self._draining = False
        self._idle = asyncio.Event()

    # Life cycle.

    async def open(self) -> None:
        """Read the subscriptions of the session at the broker, as this hub stored them."""
        try:
            text = await asyncio.to_thread(self._memory_file.read_bytes)
        except FileNotFoundError:
            return
        self._subscriptions.restore(text)

    async def run(self) -> None:
        """Keep the link until cancelled."""
        try:
            while True:
                wait_s = await self._keep_link()
                await self._retry.wait(wait_s, patient=self._state == "parked")
        finally:
            self._end_connection()

    async def drain(self) -> None:
        """Take no more messages and wait until all are settled; the caller sets the time limit."""
        self._draining = True
        self._state = "draining"
        if self._ingress is not None:
            self._ingress.stop()
        while self._load.count:
            self._idle.clear()
            await self._idle.wait()
        # The PUBACKs are written in the turn after that of the last commit.
        await asyncio.sleep(0)

    async def close(self) -> None:
        """End the connection to the broker."""
        self._end_connection()

    def follow_routes(self, filters: Iterable[str]) -> None:
        """Listen to the topic filters of the routes in force."""
        if self._draining:
            # Routes end with the hub; the broker keeps further messages for its session.
            return
        self._route_filters = tuple(filters)
        self._changed.set()

    def retry_now(self) -> None:
        """Retry the link at once if it is down, and subscriptions that were left out."""
        self._guard.retry_now()
        if self._state != "up":
            self._retry.end()

    def statistics(self) -> BrokerStatistics:
        """Return the counts of this moment."""
        counters = self._counters
        ingress = self._ingress
        return BrokerStatistics(
            state=self._state,
            reason=self._reason,
            retry_in_s=self._retry.remaining_s,
            session_kept=self._session_kept,
            holding=ingress is not None and ingress.is_holding,
            subscriptions=tuple(each.wire for each in self._subscriptions if each.established),
            refused_subscriptions=self._refused_wires,
            left_out_subscriptions=self._guard.left_out,
            connects_total=counters.connects_total,
            received_total=counters.received_total,
            redelivered_total=counters.redelivered_total,
            overlapping_total=counters.overlapping_total,
            acknowledged_total=counters.acknowledged_total,
            put_off_total=counters.put_off_total,
            dropped={reason.value: count for reason, count in counters.dropped.items()},
            waiting=self._load.count,
            waiting_bytes=self._load.bytes,
            published_total=counters.published_total,
            refused_publishes_total=counters.refused_publishes_total,
            unpublished=len(self._session),
        )

    def losses(self) -> list[Loss]:
        """Return what was dropped for good since the start; see `edgehub.telemetry.losses`."""
        return self._counters.losses()

    # One connection.

    async def _keep_link(self) -> float:
        # Returns the seconds to wait before the next try.
        if not self._draining:
            self._state = "connecting"
        up_at: float | None = None
        self._guard.begins()
        try:
            async with connect(
                self._link,
                clock=self._clock,
                on_confirmed=self._confirmed,
                on_messages=self._take,
                on_refused=self._refused_publishes,
            ) as connection:
                up_at = self._clock.monotonic()
                self._link_up(connection)
                return self._link_down(await self._use(connection), up_at, parked=False)
        except LinkError as error:
            return self._link_down(error.reason, up_at, parked=error.parked)
        finally:
            self._end_connection()

    def _link_up(self, connection: Client) -> None:
        self._counters.connects_total += 1
        self._session_kept = connection.connack.session_present
        if not self._session_kept:
            self._subscriptions.forget()
        elif self._link.level >= LEVEL_5:
            # With 3.1.1 retained messages would come again with each connection.
            self._subscriptions.doubt()
        self._ingress = BrokerIngress(
            connection,
            self._dispatcher,
            self._load,
            self._counters,
            clock=self._clock,
            log=self._log,
            backlog_bytes_max=self._settings.backlog_bytes_max,
        )
        self._ingress.takes = not self._draining
        self._publisher = BrokerPublisher(
            self._space,
            self._session,
            connection,
            self._counters,
            log=self._log,
            level=self._link.level,
        )
        self._state = "draining" if self._draining else "up"
        self._reason = self._logged = ""
        self._retry.forget()
        log.info("broker.link_up", session_kept=self._session_kept)
        connection.begin()
        if not self._guard.is_probing:
            self._publisher.attach()

    async def _use(self, connection: Client) -> str:
        async with asyncio.TaskGroup() as group:
            keeper = group.create_task(self._keep_subscriptions(connection), name="broker[filters]")
            reason = await connection.wait_closed()
            self._guard.ended(connection.unsent_at_close)
            keeper.cancel()
        return reason

    def _link_down(self, reason: str, up_at: float | None, *, parked: bool) -> float:
        self._end_connection()
        if up_at is not None and self._clock.monotonic() - up_at >= STABLE_S:
            self._backoff.reset()
        wait_s = PARKED_RETRY_S if parked else self._backoff.next_s()
        if self._guard.blamed:
            wait_s = min(wait_s, RETRY_S)
        if not self._draining:
            self._state = "parked" if parked else "down"
        self._reason = reason
        if reason != self._logged:
            # One line for each reason, not for each try.
            self._logged = reason
            log.warning("broker.link_down", reason=reason, retry_s=round(wait_s, 1))
        return wait_s

    def _end_connection(self) -> None:
        ingress, self._ingress = self._ingress, None
        publisher, self._publisher = self._publisher, None
        if ingress is not None:
            ingress.leave()
        if publisher is not None:
            publisher.detach()

    # Messages and acknowledgements.

    def _take(self, messages: list[IncomingPublish]) -> None:
        if self._ingress is not None:
            self._ingress.take(messages)

    def _confirmed(self, packet_ids: list[int]) -> None:
        self._backoff.reset()
        if self._publisher is not None:
            self._publisher.confirmed(packet_ids)

    def _refused_publishes(self, refused: list[RefusedPublish]) -> None:
        if self._publisher is not None:
            self._publisher.refused(refused)

    def _emptied(self) -> None:
        self._idle.set()
        if self._ingress is not None and self._ingress.is_putting_off:
            self._dispatcher.soon(self._bring_back)

    def _bring_back(self) -> None:
        if self._ingress is not None and self._ingress.bring_back():
            # The broker is not at fault, so there is no back-off.
            self._retry.end()

    # Subscriptions.

    async def _keep_subscriptions(self, connection: Client) -> None:
        publisher = self._publisher if self._guard.is_probing else None
        try:
            while True:
                self._changed.clear()
                await self._reconcile(connection)
                if publisher is not None:
                    # With messages in flight it would be unclear whether a SUBSCRIBE closed it.
                    publisher.attach()
                    publisher = None
                await self._guard.wait(self._changed)
        except LinkError as error:
            connection.abort(error.reason)

    async def _reconcile(self, connection: Client) -> None:
        subscriptions = self._subscriptions
        wanted = wanted_wires(
            self._route_filters, self._local_topics, share_group=self._settings.share_group
        )
        refused: list[str] = []
        changed = False
        guard = self._guard
        guard.keep_only(wanted)
        while wires := guard.next(
            [wire for wire in subscriptions.to_make(wanted) if wire not in refused]
        ):
            wire = wires[0]
            if not changed:
                # Before SUBSCRIBE: what the broker may have must be known after a crash.
                changed = True
                for each in subscriptions.to_make(wanted):
                    subscriptions.add(each)
                await self._store_subscriptions()
            guard.asks((wire,))
            granted = await self._subscribe(connection, wire)
            guard.answered()
            if granted:
                subscriptions.add(wire).established = True
            else:
                subscriptions.remove(wire)
                refused.append(wire)
        unwanted = subscriptions.to_give_up(wanted)
        if unwanted:
            changed = True
            # A message after UNSUBACK may be handled before this goes on.
            subscriptions.leave(unwanted)
            await self._store_subscriptions()
            await connection.unsubscribe(unwanted)
            for wire in unwanted:
                subscriptions.remove(wire)
        if refused and tuple(refused) != self._refused_wires:
            log.warning("broker.subscriptions_refused", filters=len(refused), first=refused[0])
        self._refused_wires = tuple(refused)
        if changed:
            await self._store_subscriptions()
            log.info(
                "broker.subscribed", filters=len(wanted) - len(refused), unsubscribed=len(unwanted)
            )

    async def _subscribe(self, connection: Client, wire: str) -> bool:
        if self._link.level < LEVEL_5:
            return not await connection.subscribe((wire,))
        subscription = self._subscriptions.add(wire)
        if subscription.shared and not connection.connack.shares:
            return False
        number = subscription.number if connection.connack.identifies else None
        # A shared subscription may not be "no local".
        no_local = 0 if subscription.shared else NO_LOCAL
        return not await connection.subscribe(
            (wire,), options=_OPTIONS | no_local, identifier=number
        )

    async def _store_subscriptions(self) -> None:
        file, text = self._memory_file, self._subscriptions.document()
        try:
            await asyncio.to_thread(replace_file, file, text)
        except OSError as error:
            # A full disk must not stop messages; the cost is a subscription too many.
            self._log.warning("broker.subscriptions_not_stored", reason=error.strerror)

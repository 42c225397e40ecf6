"""Entities and mapper in one hub: what comes on local topics goes through them into the queues.

Owns their life: loading before the first message, the timer, the outcome of creations. Invariants:
a local message is acknowledged once all that it causes is durable; a message that is refused has
changed nothing; what the mapper publishes itself is not handed back to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import structlog
from msgspec import to_builtins

from edgehub.clock import Clock, Timer, between_slices
from edgehub.entities.announcements import Announcements, cleared
from edgehub.entities.configured import local_topics, mapper_options
from edgehub.entities.effect_executor import EffectExecutor
from edgehub.entities.effects import Instant
from edgehub.hub.part import Part
from edgehub.message import Refusal
from edgehub.operations.entities import EntityDirectory, entity_operations
from edgehub.settings.derived import mapper_runs
from edgehub.telemetry.losses import Loss
from edgehub.telemetry.plural import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.entities.announcements import Announcement, Subject
    from edgehub.entities.mapper import Mapper
    from edgehub.entities.tables import EntityContents
    from edgehub.heads.mqtt.local.space import InnerSubscription, LocalSpace
    from edgehub.local_message import LocalMessage, Settle
    from edgehub.message import EndpointId, Row
    from edgehub.operations.operation import Operation
    from edgehub.router import Router
    from edgehub.settings import Settings
    from edgehub.store.store import Store

AT_ONCE: Final = 100
"""Retained messages that are handed in before others have their turn."""

PENDING_SHOWN: Final = 5

log = structlog.get_logger(__name__)


class EntitiesPart(Part):
    """Entities and mapper of one hub; the `DependencyTracker` of the pumps.

    Args:
        settings: Of entities and mapper.
        contents: What the tables hold.
        hub_id: Device id of the hub itself.
        store: Queues and tables.
        router: Says where rows go.
        space: The local topics.
        clock: For the timer.
        takes_qos0: Whether messages of QoS 0 are to be stored at present.

    Attributes:
        announcements: Which creations are on their way.
        directory: Of entities, None = there is no mapper.
    """

    name = "entities"

    def __init__(
        self,
        settings: Settings,
        contents: EntityContents,
        *,
        hub_id: str,
        store: Store,
        router: Router,
        space: LocalSpace,
        clock: Clock,
        takes_qos0: Callable[[], bool],
    ) -> None:
        self._filters = local_topics(settings)
        self._errors_topic = f"{settings.mapper.topic_root}/errors"
        self._store = store
        self._space = space
        self._clock = clock
        self._takes_qos0 = takes_qos0
        self._subscription: InnerSubscription | None = None
        self._timer = Timer(clock, self._tick)
        self._refused_total = 0
        self._qos0_offline_total = 0
        self.announcements = Announcements(contents.state)
        self._executor = EffectExecutor(
            hub_id=hub_id,
            store=store,
            router=router,
            space=space,
            announcements=self.announcements,
        )
        self._mapper: Mapper | None = None
        self.directory: EntityDirectory | None = None
        if not mapper_runs(settings):
            return
        # Loaded by hubs with a mapper only.
        from edgehub.entities.mapper import Mapper  # noqa: PLC0415

        mapper = self._mapper = Mapper(
            mapper_options(settings, hub_id=hub_id),
            contents,
            retained=self._retained_topics,
            known=space.known,
            hub_id=hub_id,
        )
        self.directory = EntityDirectory(
            mapper, self._executor, store, now=self.now, changed=self._arm, hub_id=hub_id
        )
        store.limits.count_other_tables(lambda: mapper.kept_bytes)

    async def open(self) -> None:
        """Take messages; the queues and the local space are open."""
        refused = await self._resume_announcements()
        mapper = self._mapper
        if mapper is None:
            return
        self._forget_refused()
        self._carry_out(mapper.start(self.now()))
        for subject in refused:
            if self._is_known(subject):
                self._carry_out(mapper.creation_refused(subject.topic_id, "it is a dead letter"))
        self._subscription = self._space.subscribe_inner(self._filters, self._deliver)
        await self._hand_in_retained(mapper)
        self._arm()
        statistics = mapper.statistics()
        log.info(
            "mapping.started",
            entities=statistics.entities,
            held=statistics.held,
            announcements=len(self.announcements),
        )

    async def close(self) -> None:
        """Take no more messages; what was taken goes its way."""
        if self._subscription is not None:
            self._subscription.follow(())
        self._timer.cancel()

    def now(self) -> Instant:
        """Return the moment in both times."""
        hub_ms = self._store.hub_time.now_ms()
        return Instant(hub_ms, self._store.utc_ms(hub_ms))

    # What becomes of creations; see `edgehub.pump.dependency_tracker`.

    @property
    def is_busy(self) -> bool:
        """Whether a creation is open."""
        return len(self.announcements) > 0

    def must_wait(self, endpoint_id: EndpointId, predecessor: int) -> bool:
        """Return whether a row waits for the creation at an offset."""
        return self.announcements.is_open(predecessor, endpoint_id)

    def next_of(self, predecessor: int) -> Announcement | None:
        """Return the creation that takes the place of one."""
        return self.announcements.stand_in(predecessor)

    def confirmed(self, row: Row) -> list[int]:
        """Record that a creation arrived; returns the offsets whose rows may leave."""
        known = self.announcements.stand_in(row.offset)
        over = self.announcements.confirmed(row.offset)
        self._executor.write(list(map(cleared, over)))
        if known is not None and self._mapper is not None and self._is_known(known.subject):
            self._carry_out(self._mapper.creation_confirmed(known.subject.topic_id))
        return over

    def dead(self, row: Row, reason: str) -> None:
        """Record that a row became a dead letter."""
        self._refused(row.offset, reason)

    def rows_changed(self, endpoint_id: EndpointId, are_removed: bool) -> None:
        """Record that an operator removed rows, or moved or requeued them."""
        waiting = {
            offset: queue.endpoint_id
            for queue in self._store.queues.all()
            for offset in queue.creations.offsets()
        }
        for known in self.announcements.of(endpoint_id):
            where = waiting.get(known.offset)
            if where == endpoint_id:
                self._executor.write(self.announcements.came_back(known.offset))
            elif where is not None:
                self._executor.write(self.announcements.moved(known.offset, where))
            elif are_removed:
                self._refused(known.offset, "removed from its queue")

    def watch(self, callback: Callable[[EndpointId], None]) -> None:
        """Notify a pump when rows of an endpoint may leave."""
        self.announcements.watch(callback)

    def unwatch(self, callback: Callable[[EndpointId], None]) -> None:
        """Stop notifying a pump."""
        self.announcements.unwatch(callback)

    # Messages.

    def _deliver(self, message: LocalMessage, settle: Settle, token: int) -> None:
        assert self._mapper is not None
        if self._executor.publishing or not self._mapper.concerns(message.topic):
            settle(token, None)
            return
        if self._is_offline_telemetry(message):
            self._qos0_offline_total += 1
            settle(token, None)
            return
        if not self._store.appender.has_room():
            # What the mapper has seen cannot be taken back, so it must not see this one.
            self._refused_total += 1
            settle(token, Refusal.LIMIT)
            return
        effects = self._mapper.handle(
            message.topic, message.body, self.now(), client=message.publisher
        )
        if self._executor.carry_out(effects, settle, token):
            self._arm()

    def _is_offline_telemetry(self, message: LocalMessage) -> bool:
        # What is said once, and not waited for; states stay what they are.
        if message.qos or message.retain or self._takes_qos0():
            return False
        return self._mapper is not None and self._mapper.is_telemetry(message.topic)

    def _carry_out(self, effects: Any) -> None:
        if self._executor.carry_out(effects, _no_sender, 0):
            self._arm()

    def _refused(self, offset: int, reason: str) -> None:
        changes, subject = self.announcements.refused(offset)
        self._executor.write(changes)
        if subject is not None:
            log.warning("mapping.creation_refused", topic_id=subject.topic_id, reason=reason)
            if self._mapper is not None and self._is_known(subject):
                self._carry_out(self._mapper.creation_refused(subject.topic_id, reason))

    def _is_known(self, subject: Subject) -> bool:
        # It may have been deregistered since, and registered under another id.
        entity = None if self._mapper is None else self._mapper.registry.get(subject.topic_id)
        return entity is not None and entity.external_id == subject.external_id

    def _arm(self) -> None:
        assert self._mapper is not None
        self._timer.cancel()
        due_ms = self._mapper.next_due_ms()
        if due_ms is not None:
            wait_ms = max(0, due_ms - self._store.hub_time.now_ms())
            self._timer.start(wait_ms / 1000)

    def _tick(self) -> None:
        assert self._mapper is not None
        if self._store.appender.has_room():
            self._carry_out(self._mapper.tick(self.now()))
            if not self._timer.is_running:
                self._arm()
        else:
            self._timer.start(1.0)

    # The start.

    async def _resume_announcements(self) -> list[Subject]:
        known = self.announcements
        if not len(known):
            return []
        waiting = {
            offset for queue in self._store.queues.all() for offset in queue.creations.offsets()
        }
        dead = await self._store.inspection.dead_among(known.offsets() - waiting)
        changes, refused = known.resume(waiting, dead)
        self._executor.write(changes)
        return refused

    def _forget_refused(self) -> None:
        """Forget refused creations for which nothing waits, or will."""
        known = self.announcements
        idle = known.endpoints() - {
            queue.endpoint_id for queue in self._store.queues.all() if queue.zones.depth
        }
        for endpoint_id in idle:
            for each in known.of(endpoint_id):
                # The rows of an entity that is registered are still to come, and must not leave.
                if not self._is_known(each.subject):
                    self._executor.write(known.forgotten(each.offset))

    def _retained_topics(self, topic_filter: str) -> list[str]:
        return [message.topic for message in self._space.retained(topic_filter)]

    async def _hand_in_retained(self, mapper: Mapper) -> None:
        topics: set[str] = set()
        for topic_filter in self._filters:
            for count, message in enumerate(self._space.retained(topic_filter), 1):
                topics.add(message.topic)
                self._carry_out(
                    mapper.redeliver(
                        message.topic, message.body, self.now(), client=message.publisher
                    )
                )
                if count % AT_ONCE == 0:
                    await between_slices()
        self._carry_out(mapper.forget_unpublished(topics))

    # What is shown of it.

    def status(self) -> dict[str, Any]:
        """Return figures of entities and mapper."""
        return {"entities": self._document()}

    def _document(self) -> dict[str, Any]:
        if self._mapper is None or self.directory is None:
            return {"enabled": False}
        refused = self.announcements.refused_count
        return {
            "enabled": True,
            **to_builtins(self._mapper.statistics()),
            "errors_topic": self._errors_topic,
            "refused_total": self._refused_total,
            "qos0_offline_total": self._qos0_offline_total,
            "creations_under_way": len(self.announcements) - refused,
            "creations_refused": refused,
            "pending": self.directory.pending(PENDING_SHOWN),
        }

    def losses(self) -> list[Loss]:
        """Return what could not be used or kept since the start."""
        if self._mapper is None:
            return []
        figures = self._mapper.statistics()
        return [
            Loss(
                key=("entities", "errors"),
                total=figures.errors_total,
                what="about entities could not be used",
                example=figures.newest_error,
                hint=f"edgehub listen {self._errors_topic}",
                event="mapper.message_unusable",
                fields={"newest": figures.newest_error},
            ),
            Loss(
                key=("entities", "held"),
                total=figures.evicted_total + figures.expired_total,
                what="of unregistered entities {was} given up",
                why="since {they} waited too long or for want of room",
                hint="edgehub entity pending",
            ),
        ]

    def warnings(self) -> list[str]:
        """List what stands in the way of entities."""
        if self._mapper is None or self.directory is None:
            return []
        warnings = [*self._mapper.statistics().warnings.values(), *self.directory.warnings()]
        if self.announcements.refused_count:
            warnings.append(
                "the cloud refused to create"
                f" {counted(self.announcements.refused_count, 'entity', 'entities')}; what came for"
                " them waits until they are registered again (edgehub queue dead list)"
            )
        return warnings

    def operations(self) -> list[Operation]:
        """Return what is asked of entities."""
        return entity_operations(self.directory)


def _no_sender(_token: int, _refusal: Refusal | None) -> None:
    """Stand in for a sender that waits for nothing."""

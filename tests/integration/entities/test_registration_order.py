"""Registrations and data of a tree in any order, with everything that goes wrong between."""

from __future__ import annotations

import os
import random
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgehub.clock import ManualClock
from edgehub.message import FailureKind, Order, Refusal, SendResult
from edgehub.store import Caps, Overflow, StoreOptions
from tests.support.gateway import LATER, Cloud, Gateway, gateway
from tests.support.stores import crash_copy

SOAK = bool(os.environ.get("EDGEHUB_SOAK"))
EXAMPLES = 800 if SOAK else 6

pytestmark = [pytest.mark.integration, pytest.mark.scaled, pytest.mark.timeout(60 + 2 * EXAMPLES)]

TREE = {
    "device/a//": ("A", None),
    "device/b//": ("B", "device/a//"),
    "device/c//": ("C", "device/b//"),
    "device/b/service/s": ("S", "device/b//"),
    "device/x//": ("X", None),
}
TOPICS = sorted(TREE)
STEPS = st.one_of(
    st.tuples(st.just("register"), st.sampled_from(TOPICS)),
    st.tuples(st.just("measure"), st.sampled_from(TOPICS)),
    st.tuples(st.just("measure"), st.sampled_from(TOPICS)),
    st.tuples(st.just("twin"), st.sampled_from(TOPICS)),
    st.tuples(st.just("alarm"), st.sampled_from(TOPICS)),
    st.tuples(st.just("cut"), st.none()),
    st.tuples(st.just("revive"), st.none()),
    st.tuples(st.just("refuse"), st.integers(1, 4)),
    st.tuples(st.just("quiet"), st.none()),
    st.tuples(st.just("wait"), st.sampled_from([1, 5, 70])),
    st.tuples(st.just("restart"), st.none()),
    st.tuples(st.just("crash"), st.none()),
)


@dataclass
class Story:
    """What was sent over all lives of a gateway, and what has become of it."""

    cloud: Cloud = field(default_factory=Cloud)
    clock: ManualClock = field(default_factory=ManualClock)
    sent: Counter[str] = field(default_factory=Counter)
    refusals: int = 0

    def answer(self, _row: object) -> SendResult | None:
        """Refuse as many as were asked for."""
        if self.refusals:
            self.refusals -= 1
            return LATER if self.refusals % 3 else SendResult(FailureKind.TIMEOUT, "slow")
        return None


async def step(hub: Gateway, story: Story, kind: str, argument: object) -> None:
    """Do one thing."""
    cloud = story.cloud
    if kind == "cut" and cloud.link_is_up:
        cloud.cut()
    elif kind == "revive" and not cloud.link_is_up:
        cloud.revive()
    elif kind == "quiet":
        await hub.quiet(rounds=1)
    elif isinstance(argument, str):
        publish(hub, story, kind, argument)
    elif isinstance(argument, int) and kind == "refuse":
        story.refusals += argument
    elif isinstance(argument, int):
        await hub.clock.advance(argument)


def publish(hub: Gateway, story: Story, kind: str, topic_id: str) -> None:
    """Publish a message of an entity."""
    if kind == "measure":
        story.sent[topic_id] += 1
        hub.measure(topic_id, story.sent[topic_id], client=topic_id)
        return
    external_id, parent = TREE[topic_id]
    type_ = "service" if "/service/" in topic_id else "child-device"
    registration = {"@id": external_id, "@type": type_}
    if parent is not None and type_ != "service":
        registration["@parent"] = parent
    suffix, document = {
        "register": ("", registration),
        "twin": ("/twin/t", {"n": str(story.sent[topic_id])}),
        "alarm": ("/a/hot", {"severity": "major", "text": "hot"}),
    }[kind]
    hub.send(f"te/{topic_id}{suffix}", document, retain=True)


async def play(
    folder: Path,
    script: list[tuple[str, object]],
    *,
    options: StoreOptions,
    priorities: dict[str, int],
    order: Order,
    refusal: Refusal | None = None,
) -> Story:
    """Play a script over as many lives as it asks for, then let everything drain.

    Args:
        folder: For the store.
        script: The steps.
        options: Of the store.
        priorities: Of the mapper's outputs.
        order: Of a sender's rows after a refusal.
        refusal: What clients may be refused with, None = nothing.
    """
    story = Story()
    path = folder / "q.db"
    rest = list(script)
    life = 0
    while True:
        cloud = Cloud()
        cloud.created, cloud.offered, cloud.rows, cloud.faults = (
            story.cloud.created,
            story.cloud.offered,
            story.cloud.rows,
            story.cloud.faults,
        )
        cloud.answer = story.answer
        story.cloud = cloud
        async with gateway(
            path, cloud, clock=story.clock, options=options, priorities=priorities, order=order
        ) as hub:
            ended = ""
            while rest and not ended:
                kind, argument = rest.pop(0)
                if kind in {"restart", "crash"}:
                    # Who was not acknowledged sends again; here nobody is left in that case.
                    await hub.store.writer.flush()
                    ended = kind
                else:
                    await step(hub, story, kind, argument)
            if ended == "crash":
                life += 1
                path = crash_copy(path, folder / f"life{life}")
            if not ended:
                story.refusals = 0
                # Once with what waits, and once more for those that had no room.
                for _ in range(2):
                    for topic_id in TOPICS:
                        await step(hub, story, "register", topic_id)
                    await step(hub, story, "revive", None)
                    await hub.drained()
                assert hub.store.statistics().rows == 0, hub.store.queues.all()
                assert not len(hub.mapping.announcements)
                assert set(hub.settled.values()) <= {None, refusal}
                return story


def priorities_of(seed: int) -> dict[str, int]:
    """Return each output some priority."""
    rng = random.Random(seed)
    names = ("inventory", "measurements", "alarms", "events", "twin", "health", "operations")
    return {name: rng.randrange(10) for name in names}


def is_in_order(offered: list[int]) -> bool:
    """Return whether rows were offered in order, whatever was offered again."""
    first = list(dict.fromkeys(offered))
    return first == sorted(first)


@settings(
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    script=st.lists(STEPS, min_size=25, max_size=60),
    seed=st.integers(0, 999),
    order=st.sampled_from(list(Order)),
)
async def test_parents_before_children_and_creations_before_data(
    script: list[tuple[str, object]], seed: int, order: Order
) -> None:
    """Whatever the order on the wire, the restarts, refusals and priorities; nothing is lost."""
    with tempfile.TemporaryDirectory() as folder:
        story = await play(
            Path(folder),
            script,
            options=StoreOptions(),
            priorities=priorities_of(seed),
            order=order,
        )
    cloud = story.cloud
    assert cloud.faults == []
    for topic_id, count in story.sent.items():
        device = TREE[topic_id][0]
        assert set(cloud.bodies(device)) == set(range(1, count + 1))
        if order is Order.STRICT:
            assert is_in_order(cloud.bodies_offered(device))
            # One that was in flight behind a refused row follows it once more.
            delivered = iter(cloud.bodies(device))
            assert all(number in delivered for number in range(1, count + 1))


@settings(
    max_examples=EXAMPLES // 2,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    script=st.lists(STEPS, min_size=25, max_size=60),
    seed=st.integers(0, 999),
    overflow=st.sampled_from([Overflow.BY_VALUE, Overflow.DROP_OLDEST]),
    rows=st.integers(6, 14),
)
async def test_order_holds_while_limits_take_rows(
    script: list[tuple[str, object]], seed: int, overflow: Overflow, rows: int
) -> None:
    """With room for a few rows data gives way, creations do not, and what is left is in order."""
    with tempfile.TemporaryDirectory() as folder:
        story = await play(
            Path(folder),
            script,
            options=StoreOptions(caps=Caps(rows=rows, overflow=overflow)),
            priorities=priorities_of(seed),
            order=Order.STRICT,
            refusal=Refusal.LIMIT if overflow is Overflow.BY_VALUE else None,
        )
    cloud = story.cloud
    assert cloud.faults == []
    assert cloud.created >= {"gw", "A", "B", "C", "S", "X"}
    for topic_id in story.sent:
        assert is_in_order(cloud.bodies_offered(TREE[topic_id][0]))

"""Store, checkpointers and pumps against a list model: random histories that hypothesis shrinks."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from edgehub.message import UPSTREAM, EndpointId, Order
from edgehub.store import Overflow
from tests.support.memory_folder import memory
from tests.support.model_world import FAULTS, KINDS, MANIFESTS, REFUSALS, Plan, World
from tests.support.stores import LAB

if TYPE_CHECKING:
    from collections.abc import Coroutine

SOAK = bool(os.environ.get("EDGEHUB_SOAK"))
HUNG_S = 15.0
"""One step takes milliseconds; the tests' own time-out cannot tell a hung step from many."""

SETTINGS = settings(
    max_examples=300 if SOAK else 4,
    stateful_step_count=60 if SOAK else 20,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
MARKS = [
    pytest.mark.integration,
    pytest.mark.scaled,
    pytest.mark.timeout(7200 if SOAK else 60),
]
ENDPOINTS = st.sampled_from([UPSTREAM, LAB])
PLACES = st.sampled_from([0, 0, 0, 1, 2, 5, 9])
DEVICES = st.sampled_from(["a", "b", "c"])
WORK = st.lists(
    st.one_of(
        st.tuples(
            st.just("append"),
            st.sampled_from(KINDS),
            DEVICES,
            st.sampled_from([1, 1, 2, 3, 5, 20, 40, 300, 1100]),  # how many
            st.sampled_from([12, 300]),  # bytes of each
        ),
        st.tuples(st.just("append"), st.sampled_from(KINDS), DEVICES, st.just(2), st.just(12)),
        st.tuples(st.just("answer"), ENDPOINTS, st.sampled_from([1, 3, 30, 1 << 30])),
        st.tuples(st.just("refuse"), ENDPOINTS, PLACES, st.sampled_from(REFUSALS)),
        st.tuples(st.just("deny"), ENDPOINTS, DEVICES, st.integers(1, 4)),
        st.tuples(st.just("insist"), ENDPOINTS, st.integers(2, 3)),
        st.tuples(st.just("change_link"), ENDPOINTS),
        st.tuples(st.just("wait_for_expiry")),
        st.tuples(st.just("turn"), st.sampled_from([1, 2, 3, 5, 8, 13, 21, 40])),
        st.tuples(st.just("settle")),
        st.tuples(st.just("advance"), st.sampled_from([0.02, 0.06, 1.1, 2.5, 7.0])),
    ),
    min_size=1,
    max_size=10,
)
"""What happens without pause: a method of `World` and its arguments."""


def _is_failing(machine: StoreAndPumpMachine) -> bool:
    return machine.world.is_failing


class StoreAndPumpMachine(RuleBasedStateMachine):
    """One history on one event loop; time stands still unless a rule lets it pass."""

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        # Crashes here are copies of the files, so it need not be a disk with its slow syncs.
        self._folder = tempfile.TemporaryDirectory(dir=memory())
        self._world: World | None = None

    @property
    def world(self) -> World:
        """The hub and its model."""
        assert self._world is not None
        return self._world

    @initialize(
        linger_ms=st.sampled_from([0, 0, 20, 1000]),
        cache_bytes=st.sampled_from([1, 40_000, 16 << 20]),
        entire_clean_up=st.booleans(),
        orders=st.tuples(st.sampled_from(Order), st.sampled_from(Order)),
        max_attempts=st.sampled_from([0, 0, 2]),
        overflow=st.sampled_from([None, None, *Overflow]),
        seed=st.integers(0, 1000),
    )
    def begin(self, **plan: object) -> None:
        """Start."""
        self._world = World(Path(self._folder.name), Plan(**plan))  # type: ignore[arg-type]
        self._run(self._world.start())

    @rule(work=WORK)
    def work(self, work: list[tuple[Any, ...]]) -> None:
        """Messages come, leave and are refused, links are lost and come back."""
        self._run(self._work(work))

    @rule(endpoint=ENDPOINTS, delivers=st.booleans())
    def change_endpoint(self, endpoint: EndpointId, delivers: bool) -> None:
        """An endpoint answers from now on at once, or when told to."""
        self.world.delivers[endpoint] = delivers

    @rule(seconds=st.sampled_from([1.1, 6.0, 7.0, 20.0, 80.0]))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self._run(self.world.advance(seconds))

    @rule()
    def rest(self) -> None:
        """Everything that was handed in is stored."""
        self._run(self.world.rest())

    @rule(number=st.integers(0, len(MANIFESTS) - 1))
    def change_manifest(self, number: int) -> None:
        """Another manifest comes into force."""
        self.world.choose_manifest(number)

    @rule(work=WORK)
    def crash(self, work: list[tuple[Any, ...]]) -> None:
        """The process dies in the midst of its work, and starts again."""
        self._run(self._work(work))
        self._run(self.world.crash())

    @rule()
    def restart(self) -> None:
        """The process stops in order and starts again."""
        self._run(self.world.restart())

    @invariant()
    def check(self) -> None:
        """All is as the model says."""
        self._run(self.world.check())

    def teardown(self) -> None:
        """Everything that still may be delivered is."""
        try:
            if self._world is not None:
                self._run(self._world.drain())
                self._run(self._world.close())
        finally:
            self._runner.close()
            self._folder.cleanup()

    async def _work(self, work: list[tuple[Any, ...]]) -> None:
        for name, *arguments in work:
            await getattr(self.world, name)(*arguments)

    def _run(self, work: Coroutine[object, object, None]) -> None:
        try:
            self._runner.run(_bounded(work))
        except BaseException:
            # What has failed can be neither drained nor closed in order.
            world, self._world = self._world, None
            if world is not None:
                self._runner.run(_bounded(world.abandon()))
            raise


class FailingDiskMachine(StoreAndPumpMachine):
    """The same on a disk that fails now and then."""

    @rule(fault=st.sampled_from(FAULTS), times=st.integers(1, 6), work=WORK)
    def fail(self, fault: tuple[str, str], times: int, work: list[tuple[Any, ...]]) -> None:
        """The disk begins to fail."""
        self.world.fail(*fault, times)
        self._run(self._work(work))

    @precondition(_is_failing)
    @rule()
    def heal(self) -> None:
        """The disk works again."""
        self._run(self.world.heal())


async def _bounded(work: Coroutine[object, object, None]) -> None:
    async with asyncio.timeout(HUNG_S):
        await work


TestStoreAndPump = StoreAndPumpMachine.TestCase
TestStoreAndPump.settings = SETTINGS
TestStoreAndPump.pytestmark = MARKS
TestFailingDisk = FailingDiskMachine.TestCase
TestFailingDisk.settings = SETTINGS
TestFailingDisk.pytestmark = MARKS

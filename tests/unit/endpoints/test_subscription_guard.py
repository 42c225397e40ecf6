"""Topic filters over which a peer closes: which are asked for, one by one, and when again."""

from __future__ import annotations

from edgehub.clock import ManualClock
from edgehub.endpoints.subscription_guard import (
    CLOSES_MAX,
    LEFT_OUT_MAX,
    LEFT_OUT_S,
    SubscriptionGuard,
)


class Session:
    """A guard, and a peer that closes over some filters."""

    def __init__(self, *wanted: str, forbidden: set[str]) -> None:
        self.clock = ManualClock()
        self.guard = SubscriptionGuard("upstream", self.clock)
        self.wanted = list(wanted)
        self.forbidden = forbidden
        self.granted: list[str] = []

    def connects(self, *, unsent: int = 0) -> bool:
        """Ask as a connection does; returns whether the peer has granted all it was asked for."""
        guard = self.guard
        guard.begins()
        self.granted = []
        while asked := guard.next([each for each in self.wanted if each not in self.granted]):
            guard.asks(asked)
            if not self.forbidden.isdisjoint(asked):
                guard.ended(unsent)
                return False
            guard.answered()
            self.granted += asked
        return True

    def closes_until_up(self) -> int:
        """Connect until the session stands; returns how often the peer closed."""
        closes = 0
        while not self.connects():
            closes += 1
        return closes


def test_a_filter_is_left_out_after_three_closes() -> None:
    """The first one with all filters tells only that one of them is it."""
    session = Session("a", "b", "c", forbidden={"b"})
    assert session.closes_until_up() == 1 + CLOSES_MAX
    assert session.granted == ["a", "c"]
    assert session.guard.left_out == ("b",)
    assert not session.guard.is_probing


def test_closes_of_other_causes_leave_nothing_out() -> None:
    """Our own closes, a peer that closes while nothing is outstanding, and two in passing."""
    guard = SubscriptionGuard("upstream", ManualClock())
    for _ in range(10):
        guard.begins()
        guard.asks(["a"])
        guard.ended(None)
        assert not guard.blamed
        guard.begins()
        guard.ended(0)
        assert not guard.blamed
    assert guard.next(["a"]) == ["a"]
    for _ in range(10):
        for _ in range(CLOSES_MAX - 1):
            guard.asks(["a"])
            guard.ended(0)
            assert guard.blamed
        guard.asks(["a"])
        guard.answered()
    assert guard.left_out == ()


def test_what_had_not_left_counts_only_as_a_doubt() -> None:
    """The SUBSCRIBE may still have been here: next time it goes before everything else."""
    session = Session("a", forbidden={"a"})
    for _ in range(10):
        assert not session.connects(unsent=1)
    assert session.guard.is_probing
    assert session.guard.left_out == ()
    assert session.closes_until_up() == CLOSES_MAX


async def test_it_is_tried_again_rarely_one_at_a_time() -> None:
    """Each try costs one close, however many are left out; a grant goes on to the next at once."""
    names = [f"f{number}" for number in range(20)]
    session = Session("good", *names, "late", forbidden=set(names))
    assert session.closes_until_up() <= 1 + CLOSES_MAX + LEFT_OUT_MAX
    assert set(session.guard.left_out) == {*names, "late"}
    assert session.granted == ["good"]
    for _ in range(20):
        await session.clock.advance(LEFT_OUT_S - 1)
        assert session.connects()
        await session.clock.advance(1)
        assert session.closes_until_up() == 1
    assert session.granted == ["good", "late"]
    session.forbidden = {"f3"}
    await session.clock.advance(LEFT_OUT_S)
    assert session.closes_until_up() <= 1
    session.forbidden.clear()
    await session.clock.advance(LEFT_OUT_S)
    assert session.connects()
    assert set(session.granted) == {"good", *names, "late"}
    assert session.guard.left_out == ()


def test_an_operator_has_it_tried_at_once() -> None:
    """And what nobody wants any more is forgotten."""
    session = Session("a", "b", forbidden={"a"})
    session.closes_until_up()
    session.forbidden.clear()
    assert session.connects()
    assert session.granted == ["b"]
    session.guard.retry_now()
    assert session.connects()
    assert session.granted == ["b", "a"]
    session.forbidden = {"a"}
    session.closes_until_up()
    session.guard.keep_only(["b"])
    assert not session.guard.suspects_any


def test_with_several_left_out_a_filter_that_was_granted_before_is_not_asked_again() -> None:
    """The peer closes over two that it took until now: they wait with the others at once."""
    forbidden = {"a", "b", "c", "d"}
    session = Session("x", "y", "a", "b", "c", "d", forbidden=forbidden)
    session.closes_until_up()
    assert session.granted == ["x", "y"]
    assert len(session.guard.left_out) == LEFT_OUT_MAX
    forbidden |= {"x", "y"}
    assert session.closes_until_up() == 1
    assert session.granted == []

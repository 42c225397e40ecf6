"""What is subscribed to, and which copy of a message counts."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from edgehub.heads.broker.subscriptions import Subscriptions, wanted_wires
from edgehub.mqtt.topic_filter import covers, matches

IDENTITY = ("broker", 1883, "gw-broker", 5)

levels = st.sampled_from(["a", "b", "+"])
filters = st.builds(
    lambda parts, rest: "/".join([*parts, *rest]),
    st.lists(levels, min_size=1, max_size=3),
    st.sampled_from([[], ["#"]]),
)
topics = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=4).map("/".join)


def subscribed(wires: list[str]) -> Subscriptions:
    """Make a list in which the broker granted all."""
    subscriptions = Subscriptions(IDENTITY)
    for wire in wires:
        subscriptions.add(wire).established = True
    return subscriptions


@given(st.lists(filters, max_size=6), topics)
def test_every_wanted_topic_is_subscribed_to_and_none_twice_over(
    wanted: list[str], topic: str
) -> None:
    """What a route takes some subscription takes, nothing else, and none covers another."""
    wires = wanted_wires(wanted, (), share_group=None)
    assert any(matches(each, topic) for each in wires) == any(
        matches(each, topic) for each in wanted
    )
    assert not [(a, b) for a in wires for b in wires if a != b and covers(a, b)]


@given(st.lists(filters, min_size=1, max_size=6), topics)
def test_one_copy_of_a_message_is_taken(wanted: list[str], topic: str) -> None:
    """Whether the broker sends a copy for each subscription, or one for all of them."""
    subscriptions = subscribed(wanted_wires(wanted, (), share_group=None))
    numbers = [each.number for each in subscriptions if matches(each.filter, topic)]
    if numbers:
        taken = [n for n in numbers if not subscriptions.is_further_copy(topic, [n])]
        assert len(taken) == 1
        assert not subscriptions.is_further_copy(topic, numbers)


@given(st.lists(filters, min_size=1, max_size=4), st.lists(filters, max_size=4), topics)
def test_no_message_is_lost_when_subscriptions_change(
    before: list[str], after: list[str], topic: str
) -> None:
    """Copies that waited under other subscriptions: at least one of each message is taken."""
    subscriptions = subscribed(wanted_wires(before, (), share_group=None))
    waiting = [each.number for each in subscriptions if matches(each.filter, topic)]
    wanted = wanted_wires(after, (), share_group=None)
    for wire in subscriptions.to_make(wanted):
        subscriptions.add(wire).established = True
    half_way = [n for n in waiting if not subscriptions.is_further_copy(topic, [n])]
    gone = subscriptions.to_give_up(wanted)
    subscriptions.leave(gone)
    # While UNSUBACK is on its way the broker sends copies of what stays alone.
    staying = [s.number for s in subscriptions if s.wire in wanted and matches(s.filter, topic)]
    leaving = [n for n in waiting if not subscriptions.is_further_copy(topic, [n])]
    assert not staying or any(not subscriptions.is_further_copy(topic, [n]) for n in staying)
    for wire in gone:
        subscriptions.remove(wire)
    done = [n for n in waiting if not subscriptions.is_further_copy(topic, [n])]
    if waiting:
        assert half_way
        assert leaving
        assert done


def test_a_copy_of_an_unknown_subscription_is_taken() -> None:
    """Whoever made it, the message waits for its PUBACK."""
    assert not subscribed(["a/#"]).is_further_copy("a/b", [77])


def test_what_is_written_down_is_read_back() -> None:
    """In order, with what the broker has granted; of another session nothing counts."""
    before = subscribed(["$share/g/a/#", "b"])
    before.add("c")
    after = Subscriptions(IDENTITY)
    after.restore(before.document())
    assert [(s.wire, s.filter, s.shared, s.established) for s in after] == [
        ("$share/g/a/#", "a/#", True, True),
        ("b", "b", False, True),
        ("c", "c", False, False),
    ]
    assert after.to_make(["b", "c", "d"]) == ["c", "d"]
    assert after.to_give_up(["c"]) == ["$share/g/a/#", "b"]
    other = Subscriptions(("broker", 1883, "another", 5))
    other.restore(before.document())
    assert list(other) == []


@given(st.binary(max_size=60))
@example(b"[" * 100_000)
def test_a_damaged_list_counts_as_none(text: bytes) -> None:
    """A start goes on, and subscribes anew."""
    subscriptions = Subscriptions(IDENTITY)
    subscriptions.restore(text)
    assert list(subscriptions) == []


def test_shared_topics_are_in_no_group() -> None:
    """Local topics reach each hub that wants them; a route below them needs no own subscription."""
    wires = wanted_wires(["te/device/#", "plant/#", "plant/1"], ["te/#"], share_group="hubs")
    assert wires == ["te/#", "$share/hubs/plant/#"]


def test_what_every_hub_gets_does_not_come_by_the_group_too() -> None:
    """A route of the API shares all topics; local ones among them come by their own filter."""
    subscriptions = subscribed(wanted_wires(["#"], ["te/#"], share_group="hubs"))
    own, shared = [each.number for each in subscriptions]
    assert subscriptions.is_further_copy("te/a", [shared])
    assert not subscriptions.is_further_copy("te/a", [own])
    assert not subscriptions.is_further_copy("a", [shared])

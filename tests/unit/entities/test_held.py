"""What clients hold, and who holds most."""

import time
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from edgehub.entities.effects import Instant
from edgehub.entities.held import ClientShares, HeldMessage
from edgehub.entities.topics import TopicScheme
from tests.support.entities import MapperBench

SCHEME = TopicScheme("te")
STEPS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.integers(0, 40), st.booleans(), st.integers(0, 5)),
    min_size=30,
    max_size=80,
)


def held_by(client, number, size, *, is_telemetry=True):
    """Make a held message."""
    topic = SCHEME.parse("te/device/x///m/" if is_telemetry else "te/device/x///twin/k")
    return HeldMessage(number, topic, b"x" * size, client, Instant(0, 0), anonymous=True)


@given(steps=STEPS, looks=st.integers(1, 9))
def test_the_largest_share_is_the_largest(steps, looks):
    """After any additions and removals, however seldom it is asked for."""
    shares = ClientShares()
    known = {}
    for number, (client, size, is_telemetry, drops) in enumerate(steps):
        held = held_by(client, number, size, is_telemetry=is_telemetry)
        shares.add(held, is_telemetry=is_telemetry)
        known.setdefault(client, []).append((held, is_telemetry))
        for _ in range(drops if known else 0):
            if known.get(client):
                gone, was_telemetry = known[client].pop(drops % len(known[client]))
                shares.drop(gone, is_telemetry=was_telemetry)
        known = {name: held for name, held in known.items() if held}
        assert {name for name in "abcd" if shares.get(name) is not None} == set(known)
        if known and number % looks == 0:
            sizes = {name: sum(each.size for each, _ in held) for name, held in known.items()}
            assert shares.most_bytes().bytes == max(sizes.values())
            assert len(shares.most_messages()) == max(map(len, known.values()))


def test_the_oldest_telemetry_of_a_share_goes_before_all_else():
    """Whatever came first."""
    shares = ClientShares()
    state, first, second = (held_by("a", n, 0, is_telemetry=n > 0) for n in range(3))
    shares.add(state, is_telemetry=False)
    shares.add(first, is_telemetry=True)
    shares.add(second, is_telemetry=True)
    share = shares.most_bytes()
    assert share.oldest() is first
    shares.drop(first, is_telemetry=True)
    shares.drop(second, is_telemetry=True)
    assert share.oldest() is state


def test_clients_that_come_and_go_leave_nothing():
    """Ever new names, one at a time, while one holds most: no memory of those that went."""
    shares = ClientShares()
    shares.add(held_by("most", 0, 10_000), is_telemetry=True)
    tracemalloc.start()
    try:
        for number in range(1, 10_000):
            held = held_by(f"c{number}", number, 0)
            shares.add(held, is_telemetry=True)
            shares.drop(held, is_telemetry=True)
        assert tracemalloc.get_traced_memory()[0] < 2**20
    finally:
        tracemalloc.stop()
    assert shares.most_bytes() is shares.get("most")


def test_ever_new_clients_cost_no_more_than_one():
    """At the bound of all messages, each of a sender of its own; a scan would cost 200 times."""

    def cost_s(client_of):
        bench = MapperBench(pending_max=5000)
        for number in range(6000):
            if number == 5000:
                began = time.perf_counter()
            topic = f"te/device/r{number}///m/"
            bench.mapper.handle(topic, b'{"v":1}', bench.now, client=client_of(number))
        return time.perf_counter() - began

    assert cost_s("c{}".format) < 30 * cost_s(lambda _number: "c")

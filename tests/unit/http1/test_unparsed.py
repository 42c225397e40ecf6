"""Bytes that wait to be parsed come out whole, in their order, in small pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgehub.http1.unparsed import PIECE_BYTES, Unparsed

ADDED = st.integers(0, 3 * PIECE_BYTES)
TAKES = st.integers(0, 4)


@given(st.lists(st.tuples(ADDED, TAKES), max_size=10))
def test_pieces_are_the_stream(steps: list[tuple[int, int]]) -> None:
    """However adding and taking alternate, nothing is lost, doubled or out of place."""
    unparsed, sent, taken = Unparsed(), b"", b""
    for number, (size, takes) in enumerate(steps):
        data = bytes([number]) * size
        unparsed.add(data)
        sent += data
        for _ in range(takes):
            piece = unparsed.take()
            assert len(piece) <= PIECE_BYTES
            taken += piece
        assert bool(unparsed) is (len(taken) < len(sent))
    while unparsed:
        taken += unparsed.take()
    assert taken == sent


def test_what_is_left_may_be_dropped() -> None:
    """As where the connection ends; later bytes count anew."""
    unparsed = Unparsed()
    unparsed.add(bytes(PIECE_BYTES + 1))
    unparsed.take()
    unparsed.clear()
    assert not unparsed
    unparsed.add(b"x")
    assert unparsed.take() == b"x"

"""What messages to people have in common."""

from edgehub.routes.hints import clipped, near_miss


def test_near_misses_are_found_and_far_ones_are_not():
    """A letter too few is a near miss; another word, or a whole novel, is none."""
    known = ["timeToLiveSecs", "priority"]
    assert near_miss("prioritty", known) == "priority"
    assert near_miss("colour", known) == ""
    assert near_miss("priority" * 1_000, known) == ""


def test_long_messages_are_cut():
    """A message does not repeat a whole text."""
    assert clipped("short") == "short"
    assert len(clipped("x" * 10_000)) < 400

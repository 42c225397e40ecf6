"""Arguments of commands: what is wrong is said, what is right comes through."""

from __future__ import annotations

import pytest

from edgehub.message import DEFAULT_PRIORITY, queue_id
from edgehub.operations.arguments import ArgumentError, optional_text, text, whole, wholes
from edgehub.operations.queues import parse_queue_id


@pytest.mark.parametrize("value", [None, "", 5, ["x"], True])
def test_a_text_must_be_one(value: object) -> None:
    """Absent, empty and other types are refused with the argument's name."""
    with pytest.raises(ArgumentError, match="want `queue`"):
        text({"queue": value}, "queue")


def test_an_optional_text_may_be_absent() -> None:
    """None stands for absent, an empty text does not."""
    assert optional_text({}, "queue") is None
    with pytest.raises(ArgumentError):
        optional_text({"queue": ""}, "queue")


@pytest.mark.parametrize("value", [-1, 1.5, "3", True, 11])
def test_a_whole_number_keeps_its_bounds(value: object) -> None:
    """A boolean is none, either."""
    with pytest.raises(ArgumentError, match="from 0 to 10"):
        whole({"limit": value}, "limit", default=1, maximum=10)
    assert whole({}, "limit", default=1, maximum=10) == 1


@pytest.mark.parametrize("value", [None, 5, [1, "2"], [True], [-1], [1, 2, 3]])
def test_a_list_of_numbers_keeps_its_bounds(value: object) -> None:
    """Its length and each of its members."""
    with pytest.raises(ArgumentError):
        wholes({"ids": value}, "ids", count_max=2)
    assert wholes({"ids": [2, 1]}, "ids", count_max=2) == [2, 1]


@pytest.mark.parametrize(
    ("name", "endpoint", "priority"),
    [
        ("upstream", "upstream", DEFAULT_PRIORITY),
        ("upstream_Pri0", "upstream", 0),
        ("modules/a/inputs/b_Pri9", "modules/a/inputs/b", 9),
        ("lab_Pri10", "lab_Pri10", DEFAULT_PRIORITY),
    ],
)
def test_a_queues_name_gives_endpoint_and_priority(name: str, endpoint: str, priority: int) -> None:
    """As the seed writes them; and back."""
    found = parse_queue_id(name)
    assert found == (endpoint, priority)
    assert queue_id(*found) == name

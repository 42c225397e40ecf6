"""Arguments of commands: what is wrong is said, what is right comes through."""

from __future__ import annotations

from typing import Any

import pytest

from edgehub.message import DEFAULT_PRIORITY, queue_id
from edgehub.operations.arguments import flag, seconds, tenant, text, whole, wholes
from edgehub.operations.operation import ArgumentError, Operation
from edgehub.operations.queues import parse_queue_id
from edgehub.routes.tenant import Tenant


@pytest.mark.parametrize("value", [None, "", 5, ["x"], True])
def test_a_text_must_be_one(value: object) -> None:
    """Absent, empty and other types are refused with the argument's name."""
    with pytest.raises(ArgumentError, match="`queue`: want a text that is not empty"):
        text("queue", "", required=True).check(value)


def test_an_optional_text_may_be_absent() -> None:
    """None stands for absent, an empty text does not."""
    assert text("queue", "").check(None) is None
    with pytest.raises(ArgumentError):
        text("queue", "").check("")


@pytest.mark.parametrize("value", [-1, 1.5, "3", True, 11])
def test_a_whole_number_keeps_its_bounds(value: object) -> None:
    """A boolean is none, either."""
    limit = whole("limit", "", default=1, maximum=10)
    with pytest.raises(ArgumentError, match="from 0 to 10"):
        limit.check(value)
    assert limit.check(10) == 10


@pytest.mark.parametrize("value", [None, 5, [1, "2"], [True], [-1], [1, 2, 3]])
def test_a_list_of_numbers_keeps_its_bounds(value: object) -> None:
    """Its length and each of its members."""
    ids = wholes("ids", "", required=True, maximum=2)
    with pytest.raises(ArgumentError):
        ids.check(value)
    assert ids.check([2, 1]) == [2, 1]


def test_a_choice_is_one_of_those_declared() -> None:
    """Another text is refused with all that there are."""
    kind = text("type", "", choices=("device", "service"))
    assert kind.check("service") == "service"
    with pytest.raises(ArgumentError, match="one of device, service"):
        kind.check("pump")


@pytest.mark.parametrize("value", [0, -1, True, "3", float("nan"), float("inf"), 30.5])
def test_seconds_are_above_zero_and_bounded(value: object) -> None:
    """Whole or not."""
    timeout = seconds("timeout_s", "", default=5.0, maximum=30)
    with pytest.raises(ArgumentError, match="above 0, at most 30"):
        timeout.check(value)
    assert timeout.check(0.5) == 0.5


def test_a_tenant_is_parsed() -> None:
    """What is no tenant is refused with the form of one."""
    assert tenant("tenant", "").check("acme/press") == Tenant("acme", "press")
    assert tenant("tenant", "").check(None) is None
    for value in ("acme", 7):
        with pytest.raises(ArgumentError, match="organisation/application"):
            tenant("tenant", "").check(value)


async def test_an_operation_gets_its_arguments_checked_and_with_defaults() -> None:
    """What is absent and has no default stays absent; what is not declared is refused."""

    async def handler(**arguments: Any) -> dict[str, Any]:
        return arguments

    arguments = (text("queue", ""), whole("limit", "", default=10), flag("payload", ""))
    operation = Operation(
        name="queue peek",
        about="",
        handler=handler,
        result="edgehub.operations.results.journal:Nothing",
        arguments=arguments,
    )
    assert await operation({}) == {"limit": 10, "payload": False}
    assert await operation({"queue": "q", "limit": None, "payload": True}) == {
        "queue": "q",
        "limit": 10,
        "payload": True,
    }
    with pytest.raises(ArgumentError, match="queue peek has no argument `depth`; it takes queue,"):
        await operation({"depth": 1})
    with pytest.raises(ArgumentError, match="`payload`: want true or false"):
        await operation({"payload": 1})


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

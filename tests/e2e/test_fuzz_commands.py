"""Commands of the control socket with arguments of any kind: an answer, and no fault of the hub."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgehub.cli.refusal import CommandError
from tests.support.daemon import Daemon
from tests.support.devices import Device
from tests.support.fuzzing import fuzzer

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

CONFIG = """
    data_dir = "data"
    [mqtt]
    port = 0
    [affinity]
    coordinator = "in-process"
    [mapper]
    enabled = true
    [upstream]
    type = "mqtt"
    host = "127.0.0.1"
    port = 9
    topic = "cumulocity"
    [log]
    format = "json"
"""
NAMES = [
    *("after", "body", "close", "dead_letter", "dead_letters", "deduplication", "device_id"),
    *("document", "dry_run", "expected_revision", "file", "from_offset", "gateway_id", "id"),
    *("if_match", "keep_alive_s", "limit", "message", "payload", "queue", "repair", "segments"),
    *("target", "tenant", "text", "through", "to", "topic_id", "wait"),
]
TEXTS = [
    "",
    "upstream",
    "upstream_Pri0",
    "d1",
    "default/default/r",
    "device/main//",
    "\0",
    "é" * 300,
]
TEXTS += ["FROM /messages/* INTO $upstream", "1", "*", "../../etc", '{"routes":{}}']
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(TEXTS),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4)
    ),
    max_leaves=6,
)


@pytest.fixture(scope="module", name="hub")
def fixture_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A hub with some rows."""
    daemon = Daemon(tmp_path_factory.mktemp("hub"), CONFIG).start()
    device = Device("d1", daemon.mqtt_port)
    for number in range(20):
        device.publish("bulk", number)
    assert device.wait_in_flight_below(1, 10)
    device.close()
    yield daemon
    assert daemon.stop() == 0


@pytest.fixture(scope="module", name="commands")
def fixture_commands(hub: Daemon) -> list[str]:
    """All commands that the hub knows."""
    with pytest.raises(CommandError) as refused:
        hub.call("?")
    known = re.search(r"known: (.*)\)", str(refused.value))
    assert known is not None
    commands = known[1].split(", ")
    assert len(commands) > 25
    return commands


@fuzzer
@given(data=st.data())
def test_any_arguments_are_used_or_refused(hub: Daemon, commands: list[str], data: st.DataObject):
    """Whatever a program sends: the error says what is wanted, and none is a fault of the hub."""
    command = data.draw(st.sampled_from(commands))
    arguments = data.draw(st.dictionaries(st.sampled_from(NAMES), values, max_size=5))
    with suppress(CommandError):
        hub.call(command, **arguments)
    assert [line for line in hub.log if line["event"] == "control.command_failed"] == []

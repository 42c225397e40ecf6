"""What a session upstream carries of twins and methods, towards a hub and towards Azure IoT Hub."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from edgehub.endpoints.client_uplink import ClientUplink
from edgehub.mqtt.client_topics import GET_TWIN, METHOD_RESULT, ClientPath
from edgehub.mqtt.packets import LEVEL_3_1_1, LEVEL_5

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Connection:
    """A connection that records what is written."""

    def __init__(self, level: int) -> None:
        self.level = level
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Record bytes."""
        self.written.append(data)

    def topics(self) -> list[str]:
        """Return the topics of the PUBLISHes, each short enough for one byte of length."""
        return [data[4 : 4 + int.from_bytes(data[2:4], "big")].decode() for data in self.written]


class Bench:
    """An uplink of the hub `gw`, whose client id at the peer is `child`."""

    def __init__(self, *, for_all: bool, level: int = LEVEL_5) -> None:
        self.uplink = ClientUplink("gw")
        self.taken: list[tuple[str, ClientPath, bytes]] = []
        self.changes: list[bool] = []
        self.connection: Any = Connection(level)
        for family in ("twin", "methods"):
            self.uplink.serve(family, lambda *what: self.taken.append(what))
        self.uplink.changed.append(self.changes.append)
        self.uplink.begin(self.connection, "child", for_all=for_all)


def test_a_hub_speaks_for_all() -> None:
    """Each client has its own topics, the hub itself under its id at the peer."""
    bench = Bench(for_all=True)
    bench.uplink.send("d/m", GET_TWIN, rid="1", version="3,7")
    bench.uplink.send("gw", METHOD_RESULT, "200", b"{}", rid="2")
    assert bench.connection.topics() == [
        "$edge/clients/d/m/twin/GET/?$rid=1&$version=3,7",
        "$edge/clients/child/methods/res/200/?$rid=2",
    ]
    bench.uplink.take("$edge/clients/child/twin/res/200/?$rid=1", b"own")
    bench.uplink.take("$edge/clients/d/methods/POST/reboot/?$rid=2", b"call")
    assert [(whose, path.path, body) for whose, path, body in bench.taken] == [
        ("gw", "twin/res", b"own"),
        ("d", "methods/POST", b"call"),
    ]


@pytest.mark.parametrize("level", [LEVEL_3_1_1, LEVEL_5])
def test_towards_azure_it_speaks_for_itself(level: int) -> None:
    """On the topics of a device; nothing about another client goes either way."""
    bench = Bench(for_all=False, level=level)
    assert bench.uplink.speaks_for("gw")
    assert not bench.uplink.speaks_for("d")
    bench.uplink.send("gw", GET_TWIN, rid="1")
    assert bench.connection.topics() == ["$iothub/twin/GET/?$rid=1"]
    # MQTT 5 has the length of the properties behind the topic.
    assert bench.connection.written[0].endswith(b"\0" if level == LEVEL_5 else b"=1")
    bench.uplink.take("$iothub/twin/PATCH/properties/desired/?$version=2", b"{}")
    bench.uplink.take("$edge/clients/d/twin/PATCH/properties/desired/?$version=2", b"{}")
    bench.uplink.take("$iothub/anything/else", b"")
    assert [whose for whose, _, _ in bench.taken] == ["gw"]


def test_nothing_is_sent_without_a_link() -> None:
    """What depends on the link is notified of both ends of it, each once."""
    bench = Bench(for_all=True)
    bench.uplink.end()
    bench.uplink.end()
    bench.uplink.send("d", GET_TWIN, rid="1")
    bench.uplink.take("$edge/clients/d/twin/res/200/?$rid=1", b"")
    assert bench.connection.written == []
    assert bench.taken == []
    assert not bench.uplink.speaks_for("d")
    assert bench.changes == [True, False]


class Sessions:
    """Sessions of devices that record what is done with them."""

    def __init__(self) -> None:
        self.open = {"d"}
        self.used: list[str] = []
        self.published: list[tuple[str, str]] = []
        self.attached: list[tuple[str, bool]] = []

    def carries(self, device_id: str) -> bool:
        """Return whether there is a session."""
        return device_id in self.open

    @contextlib.asynccontextmanager
    async def use(self, device_id: str) -> AsyncIterator[None]:
        """Record it."""
        self.used.append(device_id)
        yield

    def publish(self, device_id: str, topic: str, _body: bytes) -> None:
        """Record it."""
        self.published.append((device_id, topic))

    def set_attached(self, device_id: str, attached: bool) -> None:
        """Record it."""
        self.attached.append((device_id, attached))


async def test_devices_have_sessions_of_their_own() -> None:
    """Each speaks for its device alone, and for none of its modules."""
    bench, sessions = Bench(for_all=False), Sessions()
    bench.uplink.attach(sessions)
    assert bench.changes == [True, True]
    assert [bench.uplink.speaks_for(each) for each in ("gw", "d", "d/m", "e")] == [1, 1, 0, 1]
    assert [bench.uplink.carries(each) for each in ("gw", "d", "d/m", "e")] == [1, 1, 0, 0]
    async with bench.uplink.reach("d"), bench.uplink.reach("gw"):
        bench.uplink.send("d", GET_TWIN, rid="1", version="3,7")
        bench.uplink.send("gw", GET_TWIN, rid="2")
    assert sessions.used == ["d"]
    assert sessions.published == [("d", "$iothub/twin/GET/?$rid=1")]
    assert bench.connection.topics() == ["$iothub/twin/GET/?$rid=2"]
    bench.uplink.take_from("d", "$iothub/methods/POST/reboot/?$rid=1", b"")
    bench.uplink.take_from("d", "$edge/clients/e/methods/POST/reboot/?$rid=1", b"")
    assert [whose for whose, _, _ in bench.taken] == ["d"]
    bench.uplink.detach(sessions)
    assert not bench.uplink.speaks_for("d")
    assert not bench.uplink.carries("d")


def test_a_session_is_kept_for_what_a_device_listens_to() -> None:
    """Whether it began before the sessions were there or not, and until it listens to nothing."""
    bench, sessions = Bench(for_all=False), Sessions()
    bench.uplink.set_listening("d", "twin", True)
    bench.uplink.set_listening("d/m", "twin", True)
    bench.uplink.set_listening("gw", "twin", True)
    assert not bench.uplink.is_attached("d")
    bench.uplink.attach(sessions)
    assert bench.uplink.is_attached("d")
    bench.uplink.set_listening("d", "methods", True)
    bench.uplink.set_listening("d", "twin", False)
    bench.uplink.set_listening("d", "methods", False)
    assert sessions.attached == [("d", True), ("d", True), ("d", True), ("d", False)]
    assert not bench.uplink.is_attached("d")

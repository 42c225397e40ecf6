"""What a session upstream carries of twins and methods, towards a hub and towards Azure IoT Hub."""

from __future__ import annotations

from typing import Any

import pytest

from edgehub.endpoints.client_uplink import ClientUplink
from edgehub.mqtt.client_topics import GET_TWIN, METHOD_RESULT, ClientPath
from edgehub.mqtt.packets import LEVEL_3_1_1, LEVEL_5


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

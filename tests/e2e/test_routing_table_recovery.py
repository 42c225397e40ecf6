"""Daemons whose Redis loses its data: messages are routed on, and the table is put back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from edgehub.cli.main import main
from tests.e2e.test_routing_table import ALARM, ids, manifest, shared, table, waiting
from tests.support.devices import Device
from tests.support.redis import RedisServer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.daemon import Daemon

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]

OUT = '[endpoints.out]\ntype = "file"\npath = "out"\n'
MESSAGES = 600


def test_messages_are_routed_while_the_server_loses_its_data(
    make_daemon: Callable[..., Daemon], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each acknowledged one is delivered once, by routes that no hub ever let go of."""
    with RedisServer(tmp_path) as redis:
        hubs = [
            make_daemon(extra=shared(redis) + OUT, top='manifest = "manifest.json"', rate=4)
            for _ in range(3)
        ]
        for hub in hubs:
            manifest(hub)
            hub.start()
        one, two, three = hubs
        # Only the table has it: a hub that fell back to its manifest would route nothing.
        body = {"route": 'FROM /messages/* INTO Endpoint("out")', "priority": 1}
        added = one.call("route put", body=body, id="all", wait=True)
        assert added["applied"]["result"] == "complete"
        epoch = table(one)["epoch"]
        devices = [Device(f"d{number}", hub.mqtt_port) for number, hub in enumerate((one, two))]
        for number in range(MESSAGES):
            if number == MESSAGES // 3:
                redis.stop(forget=True)
            if number == MESSAGES // 2:
                redis.start()
                assert three.stop() == 0
                three.start()
            for device in devices:
                device.publish("load", number)
            if number % 20 == 0:
                assert all(device.wait_in_flight_below(10, 10) for device in devices)
        for hub in hubs:
            hub.wait_until(lambda hub=hub: table(hub)["epoch"] > epoch and not stale(hub), 15)
            assert ids(hub) == {"all": "running"}
        for device, hub in zip(devices, (one, two), strict=True):
            assert device.wait_in_flight_below(1, 20)
            device.close()
            assert hub.call("status")["unrouted"] == 0
            hub.wait_until(lambda hub=hub: not waiting(hub), 20)
            assert sorted(delivered(hub)) == list(range(MESSAGES))
        assert sum(table(hub)["restored_total"] for hub in hubs) == 1
        told = [each for hub in hubs for each in hub.call("status")["warnings"]]
        assert any("had lost the routing table" in each for each in told)
        check_drift(hubs, capsys)
        later = two.call("route put", body=ALARM, id="later", wait=True)
        assert later["revision"] > added["revision"]
        assert [hub.stop() for hub in hubs] == [0, 0, 0]


def check_drift(hubs: list[Daemon], capsys: pytest.CaptureFixture[str]) -> None:
    """The hub that put the table back says so once when it is asked for drift."""
    codes, lines = [], []
    for hub in hubs:
        with pytest.raises(SystemExit) as ended:
            main(["--config", str(hub.config), "route", "drift"])
        codes.append(ended.value.code)
        lines += capsys.readouterr().out.splitlines()
    assert sorted(codes) == [0, 0, 1]
    assert sum("put back 2 rows that the storage had lost" in line for line in lines) == 1


def stale(hub: Daemon) -> bool:
    """Return whether a hub's table may be old."""
    return bool(table(hub)["stale"])


def delivered(hub: Daemon) -> list[int]:
    """Return the numbers of the messages that the endpoint has written."""
    return [
        int(json.loads(line)["body"].split("|")[2])
        for file in hub.folder.glob("out*")
        if file.is_file()
        for line in file.read_text("utf-8").splitlines()
    ]

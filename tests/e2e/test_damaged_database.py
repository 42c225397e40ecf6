"""The daemon after its database has lost the list of tables: a real broker gets what waited."""

from __future__ import annotations

import json
import os
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.support.database_damage import PAGE_BYTES, spoil
from tests.support.devices import Collector, Device
from tests.support.link_thread import LinkThread

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.daemon import Daemon
    from tests.support.mosquitto import Mosquitto

pytestmark = pytest.mark.e2e

MANIFEST = {
    "schemaVersion": "1.1",
    "routes": {
        "alarm": {"route": "FROM /messages/* WHERE kind = 'alarm' INTO $upstream", "priority": 0},
        "rest": "FROM /messages/* INTO $upstream",
    },
    "storeAndForwardConfiguration": {"timeToLiveSecs": 7200},
}
DELIVERED = 400
WAITING = 300


def depths(daemon: Daemon) -> dict[str, int]:
    """Return how many rows wait, by queue."""
    return {queue["id"]: queue["depth"] for queue in daemon.call("queue list")["queues"]}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("killed", [False, True])
def test_what_waits_is_delivered_without_the_list_of_tables(
    broker: Mosquitto, make_daemon: Callable[..., Daemon], *, killed: bool
) -> None:
    """R-09: the first page is gone, after a stop or a kill; each row comes once, alarms first."""
    with LinkThread(broker.port) as link, closing(Collector(broker.port)) as collector:
        daemon = make_daemon(upstream=link.port, top='manifest = "manifest.json"')
        (daemon.folder / "manifest.json").write_text(json.dumps(MANIFEST), "utf-8")
        daemon.start()
        with closing(Device("press-1", daemon.mqtt_port)) as device:
            for number in range(DELIVERED):
                device.publish("status", number)
            wanted = {("press-1", *key) for key in device.published}
            assert collector.wait_for(wanted, 15) == set()
            # Those that are acknowledged are in the file, or were confirmed.
            assert device.wait_in_flight_below(1, 15)
            daemon.wait_until(lambda: sum(depths(daemon).values()) == 0, 10)
            link.cut()
            for number in range(DELIVERED, DELIVERED + WAITING):
                device.publish("status", number)
                device.publish("alarm", number)
            assert device.wait_in_flight_below(1, 15)
            wanted = {("press-1", *key) for key in device.published}
        if killed:
            daemon.kill()
        else:
            assert daemon.stop() == 0
        path = daemon.folder / "data" / "queue.db"
        spoil(path, 1, os.urandom(PAGE_BYTES))
        daemon.start()
        status = daemon.call("status")
        assert status["degraded"]
        assert f"{2 * WAITING} messages saved, 0 lost" in status["warnings"][0]
        damage = status["store"]["damage"]
        assert (damage["salvaged_rows"], damage["lost"], damage["is_exact"]) == (600, [], True)
        assert (path.parent / damage["file"]).exists()
        assert depths(daemon) == {"upstream": WAITING, "upstream_Pri0": WAITING}
        link.restore()
        assert collector.wait_for(wanted, 20) == set()
        daemon.wait_until(lambda: sum(depths(daemon).values()) == 0, 10)
        assert daemon.stop() == 0
    numbers = list(range(DELIVERED, DELIVERED + WAITING))
    arrivals = [(each.kind, each.number) for each in collector.arrivals[DELIVERED:]]
    assert arrivals == [(kind, number) for kind in ("alarm", "status") for number in numbers]

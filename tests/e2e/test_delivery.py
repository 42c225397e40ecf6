"""The daemon between real devices and a real broker: outage, priorities, restart, a thin link."""

from __future__ import annotations

import json
import math
import os
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.devices import Collector, Device
from tests.support.link_thread import LinkThread

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.daemon import Daemon
    from tests.support.mosquitto import Mosquitto

pytestmark = pytest.mark.e2e

SOAK = bool(os.environ.get("EDGEHUB_SOAK"))
MANIFEST = {
    "schemaVersion": "1.1",
    "routes": {
        "alarm": {"route": "FROM /messages/* WHERE kind = 'alarm' INTO $upstream", "priority": 0},
        "status": {"route": "FROM /messages/* WHERE kind = 'status' INTO $upstream", "priority": 2},
        "bulk": {"route": "FROM /messages/* WHERE kind = 'bulk' INTO $upstream", "priority": 7},
        "rest": "FROM /messages/* INTO $upstream",
    },
    "storeAndForwardConfiguration": {"timeToLiveSecs": 7200},
}
TOP = 'manifest = "manifest.json"'


def _with_manifest(daemon: Daemon, manifest: object = MANIFEST) -> Daemon:
    (daemon.folder / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    return daemon


def _depths(daemon: Daemon) -> dict[str, int]:
    return {queue["id"]: queue["depth"] for queue in daemon.call("queue list")["queues"]}


def _wanted(device: Device) -> set[tuple[str, str, int]]:
    return {(device.device_id, *key) for key in device.published}


@pytest.mark.timeout(90)
def test_a_backlog_drains_by_itself_best_priority_first(
    broker: Mosquitto, make_daemon: Callable[..., Daemon]
) -> None:
    """L-04, L-08, O-06: link-up alone starts the drain, and alarms leave first."""
    with LinkThread(broker.port) as link:
        link.cut()
        daemon = _with_manifest(make_daemon(upstream=link.port, top=TOP)).start()
        collector = Collector(broker.port)
        device = Device("press-1", daemon.mqtt_port)
        for number in range(300):
            for kind in ("bulk", "status", "other", "alarm"):
                device.publish(kind, number)
        assert device.wait_in_flight_below(1, 20), "a PUBACK needs no upstream"
        status = daemon.call("status")
        assert status["summary"].startswith("collecting, not sending")
        assert _depths(daemon) == {
            "upstream_Pri0": 300,
            "upstream_Pri2": 300,
            "upstream_Pri7": 300,
            "upstream": 300,
        }
        link.restore()
        assert collector.wait_for(_wanted(device), 30) == set()
        device.close()
        collector.close()
        assert daemon.stop() == 0
    order = [arrival.kind for arrival in collector.arrivals]
    # The first few may be of the batch chosen before the better rows were seen; none is here.
    assert order == ["alarm"] * 300 + ["status"] * 300 + ["bulk"] * 300 + ["other"] * 300


@pytest.mark.timeout(60)
def test_a_restart_loses_nothing_and_repeats_nothing(
    broker: Mosquitto, make_daemon: Callable[..., Daemon]
) -> None:
    """R-04, R-05, D-03: an orderly stop keeps what waits; what was delivered stays delivered."""
    with LinkThread(broker.port) as link:
        daemon = _with_manifest(make_daemon(upstream=link.port, top=TOP)).start()
        collector = Collector(broker.port)
        device = Device("press-1", daemon.mqtt_port)
        for number in range(500):
            device.publish("bulk", number)
        assert collector.wait_for(_wanted(device), 15) == set()
        # Those that are acknowledged are in the file, or were confirmed.
        assert device.wait_in_flight_below(1, 15)
        daemon.wait_until(lambda: sum(_depths(daemon).values()) == 0, 10)
        link.cut()
        for number in range(500, 900):
            device.publish("bulk", number)
        assert device.wait_in_flight_below(1, 15)
        assert daemon.stop() == 0
        daemon.start()
        assert _depths(daemon) == {"upstream_Pri7": 400}
        link.restore()
        assert collector.wait_for(_wanted(device), 30) == set()
        device.close()
        assert daemon.stop() == 0
        collector.close()
    assert [arrival.number for arrival in collector.arrivals] == list(range(900))


@pytest.mark.scaled
@pytest.mark.timeout(600 if SOAK else 150)
def test_an_alarm_overtakes_a_backlog_on_a_thin_link(
    broker: Mosquitto, make_daemon: Callable[..., Daemon]
) -> None:
    """Behind 100 000 bulk rows on 64 kbit/s an alarm arrives within 1.5 s; the link stays full."""
    rows = 100_000 if SOAK else 1_500
    alarms = 60 if SOAK else 6
    with LinkThread(broker.port, bit_s=64_000, delay_s=0.05) as link:
        link.cut()
        daemon = _with_manifest(make_daemon(upstream=link.port, top=TOP)).start()
        collector = Collector(broker.port)
        bulk = Device("bulk-1", daemon.mqtt_port, in_flight_max=1000)
        for number in range(rows):
            # paho's own queue grows slow with its length.
            assert bulk.wait_in_flight_below(500, 10)
            bulk.publish("bulk", number)
        assert bulk.wait_in_flight_below(1, 60)
        link.restore()
        assert collector.wait_for({("bulk-1", "bulk", 20)}, 30) == set()
        alarm = Device("alarm-1", daemon.mqtt_port)
        began, carried = time.monotonic(), link.bytes_passed
        waits = []
        for number in range(alarms):
            sent = time.monotonic()
            alarm.publish("alarm", number)
            assert collector.wait_for({("alarm-1", "alarm", number)}, 10) == set()
            waits.append(time.monotonic() - sent)
            # A moment of bulk between the alarms, so that each finds a full link.
            number_of_bulk = len(collector.arrivals) + 30
            with collector.changed:
                assert collector.changed.wait_for(
                    lambda n=number_of_bulk: len(collector.arrivals) >= n, 10
                )
        seconds = time.monotonic() - began
        used = (link.bytes_passed - carried) / (seconds * 8000)
        worst = sorted(waits)[math.ceil(len(waits) * 0.99) - 1]
        print(
            f"alarm p50 {sorted(waits)[len(waits) // 2]:.2f} s, p99 {worst:.2f} s, link {used:.0%}"
        )
        for client in (bulk, alarm, collector):
            client.close()
        daemon.signal(15)
        assert daemon.wait() == 0
    assert worst < 1.5
    assert used > 0.9

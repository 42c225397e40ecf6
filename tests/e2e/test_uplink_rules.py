"""The daemon's uplink with rules: how long a backlog takes, a cap, connection windows."""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.devices import Collector, Device
from tests.support.link_thread import LinkThread

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.daemon import Daemon
    from tests.support.mosquitto import Mosquitto

    MakeDaemon = Callable[..., Daemon]

pytestmark = pytest.mark.e2e

SOAK = bool(os.environ.get("EDGEHUB_SOAK"))
ROWS = 15_000 if SOAK else 1_000
ROW_BYTES = 3_500
LINK_BIT_S = 2_000_000
MANIFEST = {
    "schemaVersion": "1.1",
    "routes": {
        "alarm": {"route": "FROM /messages/* WHERE kind = 'alarm' INTO $upstream", "priority": 0},
        "rest": "FROM /messages/* INTO $upstream",
    },
    "storeAndForwardConfiguration": {"timeToLiveSecs": 7200},
}


def _started(make_daemon: MakeDaemon, upstream: int, extra: str = "", *, rate: int = 1) -> Daemon:
    top = 'manifest = "manifest.json"'
    daemon = make_daemon(upstream=upstream, top=top, extra=extra, rate=rate)
    (daemon.folder / "manifest.json").write_text(json.dumps(MANIFEST), "utf-8")
    return daemon.start()


def _upstream(daemon: Daemon) -> dict[str, Any]:
    (document,) = daemon.call("status")["endpoints"]
    return document


def _fill(daemon: Daemon, rows: int, size: int) -> None:
    device = Device("bulk-1", daemon.mqtt_port, in_flight_max=500)
    for number in range(rows):
        # paho's own queue grows slow with its length.
        assert device.wait_in_flight_below(400, 30)
        device.publish("bulk", number, size=size)
    assert device.wait_in_flight_below(1, 60)
    device.close()


@pytest.mark.scaled
@pytest.mark.timeout(1800 if SOAK else 90)
def test_a_backlog_drains_at_the_links_rate_and_says_when_it_is_gone(
    broker: Mosquitto, make_daemon: MakeDaemon
) -> None:
    """P-07: 3.5 kB rows over 2 Mbit/s with live traffic: nothing but the link is the limit."""
    with LinkThread(broker.port, bit_s=LINK_BIT_S, delay_s=0.02) as link:
        link.cut()
        daemon = _started(make_daemon, link.port)
        _fill(daemon, ROWS, ROW_BYTES)
        assert _upstream(daemon)["drain_eta_seconds"] is None
        collector = Collector(broker.port)
        link.restore()
        daemon.wait_until(lambda: _upstream(daemon)["state"] == "up", 30)
        live = Device("live-1", daemon.mqtt_port)
        began = time.monotonic()
        foretold: list[tuple[float, float]] = []
        while len(collector.arrivals) < ROWS:
            live.publish("status", len(foretold))
            eta_s = _upstream(daemon)["drain_eta_seconds"]
            if eta_s:
                foretold.append((time.monotonic(), eta_s))
            time.sleep(0.2)
            assert time.monotonic() - began < ROWS * 0.1
        ended = time.monotonic()
        live.close()
        collector.close()
        assert daemon.stop() == 0
    bare_s = ROWS * ROW_BYTES * 8 / LINK_BIT_S
    assert ended - began < bare_s * 1.25 + 2
    # The live rows at the end are not in the figure, nor is the whole of a second here or there.
    for said_at, eta_s in (foretold[0], foretold[len(foretold) // 2]):
        assert eta_s == pytest.approx(ended - said_at, rel=0.2, abs=1)


@pytest.mark.timeout(60)
def test_a_cap_holds_on_a_fast_link_and_can_be_taken_away(
    broker: Mosquitto, make_daemon: MakeDaemon
) -> None:
    """50 kB/s on loopback; a reload without the cap lets the rest go at once."""
    rows, size, cap = 600, 1000, 50_000
    daemon = _started(make_daemon, broker.port, f"rate_bytes_s_max = {cap}\n")
    collector = Collector(broker.port)
    _fill(daemon, rows, size)
    assert _upstream(daemon)["rate_bytes_s_max"] == cap
    seen, began = len(collector.arrivals), time.monotonic()
    assert collector.wait_for({("bulk-1", "bulk", seen + 150)}, 20) == set()
    sent = (len(collector.arrivals) - seen) * size / (time.monotonic() - began)
    assert sent < cap * 1.1
    text = daemon.config.read_text("utf-8")
    daemon.config.write_text(text.replace(f"rate_bytes_s_max = {cap}\n", ""), "utf-8")
    daemon.call("config reload")
    assert collector.wait_for({("bulk-1", "bulk", rows - 1)}, 5) == set()
    assert _upstream(daemon)["rate_bytes_s_max"] is None
    collector.close()
    assert daemon.stop() == 0


@pytest.mark.timeout(60)
def test_outside_of_its_windows_a_hub_collects_until_an_alarm_comes(
    broker: Mosquitto, make_daemon: MakeDaemon
) -> None:
    """The next window is half a year away; an alarm opens the link, and the rest goes along."""
    moment = datetime.now(UTC) + timedelta(days=180)
    windows = f'open_at = ["0 0 {min(moment.day, 28)} {moment.month} *"]\nopen_for_s = 60\n'
    extra = windows + '[clock]\ntrust = "always"\n'
    daemon = _started(make_daemon, broker.port, extra, rate=5)
    collector = Collector(broker.port)
    device = Device("press-1", daemon.mqtt_port)
    device.publish("bulk", 1)
    assert device.wait_in_flight_below(1, 10)
    document = _upstream(daemon)
    assert document["state"] == "closed"
    assert document["backoff_remaining_s"] > 100 * 86_400
    assert collector.arrivals == []
    device.publish("alarm", 1)
    wanted = {("press-1", "bulk", 1), ("press-1", "alarm", 1)}
    assert collector.wait_for(wanted, 15) == set()
    assert [arrival.kind for arrival in collector.arrivals] == ["alarm", "bulk"]
    daemon.wait_event("endpoint.window_closed", 30)
    assert _upstream(daemon)["state"] == "closed"
    device.close()
    collector.close()
    assert daemon.stop() == 0

"""Limits of the queues as devices and operators meet them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sqlite3
import subprocess
from typing import TYPE_CHECKING

import paho.mqtt.client as paho
import pytest

from edgehub.message import queue_id
from tests.support.devices import Collector, Device
from tests.support.http_collector import HttpDevice, batch_of
from tests.support.http_head import BATCH
from tests.support.ports import free_port
from tests.support.web import Api

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.daemon import Daemon
    from tests.support.mosquitto import Mosquitto

pytestmark = pytest.mark.e2e

MANIFEST = {
    "schemaVersion": "1.3",
    "routes": {
        "bulk": {"route": "FROM /messages/* INTO $upstream", "priority": 7, "timeToLiveSecs": 900}
    },
    "storeAndForwardConfiguration": {"timeToLiveSecs": 7200},
}
BY_KIND = {
    "schemaVersion": "1.3",
    "routes": {
        f"k{n}": {"route": f"FROM /messages/* WHERE kind = 'k{n}' INTO $upstream", "priority": n}
        for n in range(4)
    },
    "storeAndForwardConfiguration": {"timeToLiveSecs": 7200},
}


@pytest.mark.timeout(60)
def test_what_the_peer_can_never_take_is_refused_at_once(
    broker: Mosquitto, make_daemon: Callable[..., Daemon]
) -> None:
    """P-10: a packet beyond the peer's limit is dropped with its size; the rows after it flow."""
    daemon = make_daemon(upstream=broker.port, extra="row_bytes_max = 131072", rate=5).start()
    collector = Collector(broker.port)
    device = Device("press-1", daemon.mqtt_port)
    topic = "devices/press-1/messages/events/kind=" + "k" * 43
    device.publish_raw(topic, b"x" * 131_000).wait_for_publish(10)
    for number in range(10):
        device.publish("bulk", number)
    wanted = {("press-1", *key) for key in device.published}
    assert collector.wait_for(wanted, 15) == set()
    told = daemon.wait_event("router.message_too_large", 10)
    assert re.fullmatch(
        r"too_large: packet of 131\d\d\d bytes, upstream takes 131072", told["reason"]
    )
    assert daemon.call("dead list")["total"] == 0
    device.close()
    collector.close()
    assert daemon.stop() == 0


def test_a_limit_is_reported_to_the_sender_and_shown_to_the_operator(
    make_daemon: Callable[..., Daemon],
) -> None:
    """S-12: the 1001st message gets a reason; status says which cap, which queue, since when."""
    port, web = free_port(), free_port()
    store = '[store]\nqueue_rows_max = 1000\noverflow = "reject_new"\n'
    extra = f"[http]\nport = {port}\n[web]\nport = {web}\n{store}"
    daemon = make_daemon(extra=extra, top='manifest = "m.json"')
    (daemon.folder / "m.json").write_text(json.dumps(MANIFEST), "utf-8")
    daemon.start()
    daemon.wait_event("web.listening")
    api = Api(web)
    device = HttpDevice(port)

    def post(count: int) -> int:
        body = batch_of([str(number) for number in range(count)])
        return device.post("dev-1", body, headers={"Content-Type": BATCH})[0]

    for _ in range(10):
        assert post(100) == 204
    assert daemon.call("status")["degraded"] is False
    assert post(1) == 507
    status = daemon.call("status")
    assert status["degraded"] is True
    (reached,) = status["store"]["limits"]
    assert (reached["cap"], reached["queue"]) == ("queue rows", "upstream_Pri7")
    assert (reached["refused"], reached["overflow"]) == (1, "reject_new")
    assert any("the limit of queue rows of upstream_Pri7" in text for text in status["warnings"])
    logged = daemon.wait_event("store.limit_reached")
    assert (logged["cap"], logged["queue"]) == ("queue rows", "upstream_Pri7")
    labels = '{cap="queue rows",queue="upstream_Pri7"}'
    found = api.metrics()
    assert found["edgehub_degraded"] == 1
    assert found[f"edgehub_store_limit_refused{labels}"] == 1
    assert 0 <= found[f"edgehub_store_limit_reached_seconds{labels}"] < 10

    text = daemon.config.read_text("utf-8")
    daemon.config.write_text(text.replace("reject_new", "drop_oldest"), "utf-8")
    assert daemon.call("config reload")["applied"] == ["store.overflow"]
    assert post(30) == 204
    (queue,) = daemon.call("queue list")["queues"]
    assert (queue["depth"], queue["dropped"]) == (1000, 30)
    assert api.metrics()[f"edgehub_store_limit_dropped{labels}"] == 30
    device.close()
    assert daemon.stop() == 0


def test_the_limit_that_is_hit_first_is_named(make_daemon: Callable[..., Daemon]) -> None:
    """S-20: 3 000 rows and 1 MB hold together; of 2 000 with 700 bytes each the bytes stop some."""
    port, web = free_port(), free_port()
    store = '[store]\nqueue_rows_max = 3000\nqueue_bytes_max = 1000000\noverflow = "reject_new"\n'
    extra = f"[http]\nport = {port}\n[web]\nport = {web}\n{store}"
    daemon = make_daemon(extra=extra, top='manifest = "m.json"')
    (daemon.folder / "m.json").write_text(json.dumps(MANIFEST), "utf-8")
    daemon.start()
    daemon.wait_event("web.listening")
    api, device = Api(web), HttpDevice(port)
    large = batch_of(["x" * 700] * 10)
    codes = [device.post("dev-1", large, headers={"Content-Type": BATCH})[0] for _ in range(200)]
    assert set(codes) == {204, 507}
    (queue,) = daemon.call("queue list")["queues"]
    assert 1_000_000 - 8_000 < queue["bytes"] <= 1_000_000
    assert queue["depth"] < 3000
    of_bytes = '{cap="queue bytes",queue="upstream_Pri7"}'
    found = api.metrics()
    assert found[f"edgehub_store_limit_refused{of_bytes}"] >= codes.count(507)
    assert not [name for name in found if "queue rows" in name]
    device.close()
    assert daemon.stop() == 0


def stored_rows(daemon: Daemon) -> dict[str, int]:
    """Count the rows of each queue in the file of a hub that has ended."""
    file = sqlite3.connect(daemon.folder / "data" / "queue.db")
    with contextlib.closing(file):
        queues = file.execute("SELECT number, endpoint_id, priority FROM queue").fetchall()
        sql = "SELECT count(*) FROM q_{}"
        return {
            queue_id(endpoint_id, priority): file.execute(sql.format(number)).fetchone()[0]
            for number, endpoint_id, priority in queues
        }


@pytest.mark.timeout(60)
def test_a_limit_holds_whoever_sends_and_whatever_the_link_does(
    broker: Mosquitto, make_daemon: Callable[..., Daemon]
) -> None:
    """S-14, O-01: of 500 messages 100 are stored and 400 counted; gauges are the file's rows."""
    port, nobody = free_port(), free_port()
    store = '[store]\nqueue_rows_max = 100\noverflow = "drop_newest"\n'
    extra = f"[http]\nport = {port}\n{store}"
    daemon = make_daemon(upstream=nobody, extra=extra, top='manifest = "m.json"')
    (daemon.folder / "m.json").write_text(json.dumps(BY_KIND), "utf-8")
    daemon.start()
    device = Device("press-1", daemon.mqtt_port)
    for number in range(500):
        device.publish("k1", number)
    plain = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="press-2")
    plain.connect("127.0.0.1", daemon.mqtt_port)
    plain.loop_start()
    topic = "devices/press-2/messages/events/kind=k2"
    for number in range(500):
        plain.publish(topic, f"press-2|k2|{number}|", qos=0)
    plain.publish(topic, "press-2|k2|500|", qos=1).wait_for_publish(10)
    plain.disconnect()
    plain.loop_stop()
    web = HttpDevice(port)
    for part in range(5):
        body = batch_of([f"web-1|k3|{part * 100 + n}|" for n in range(100)], kind="k3")
        assert web.post("web-1", body, headers={"Content-Type": BATCH})[0] == 204
    assert device.wait_in_flight_below(1, 10)
    assert len(device.acked) == 500
    figures = {q["id"]: (q["depth"], q["dropped"]) for q in daemon.call("queue list")["queues"]}
    assert figures == {
        "upstream_Pri1": (100, 400),
        "upstream_Pri2": (100, 401),
        "upstream_Pri3": (100, 400),
    }
    daemon.kill()
    assert stored_rows(daemon) == dict.fromkeys(figures, 100)
    text = daemon.config.read_text("utf-8")
    daemon.config.write_text(text.replace(str(nobody), str(broker.port)), "utf-8")
    collector = Collector(broker.port)
    daemon.start()
    senders = {"press-1": "k1", "press-2": "k2", "web-1": "k3"}
    wanted = {(sender, kind, n) for sender, kind in senders.items() for n in range(100)}
    assert collector.wait_for(wanted, 15) == set()
    web.close()
    device.close()
    assert daemon.stop() == 0
    collector.close()
    assert len(collector.arrivals) == 300


@pytest.mark.timeout(60)
def test_a_limit_of_one_lets_one_through(
    broker: Mosquitto, make_daemon: Callable[..., Daemon]
) -> None:
    """S-15: with 20 places in flight and each of the policies, one of 21 is stored and arrives."""
    port, nobody = free_port(), free_port()
    store = '[store]\nqueue_rows_max = 1\noverflow = "by_value"\n'
    extra = f"in_flight_max = 20\n[http]\nport = {port}\n{store}"
    daemon = make_daemon(upstream=nobody, extra=extra, top='manifest = "m.json"')
    (daemon.folder / "m.json").write_text(json.dumps(BY_KIND), "utf-8")
    daemon.start()
    device = HttpDevice(port)
    # What is stored of 21, and how many senders hear that theirs is not.
    outcomes = {"by_value": (20, 0), "drop_oldest": (20, 0), "drop_newest": (0, 0)}
    outcomes["reject_new"] = (0, 20)
    for priority, (overflow, (_, refused)) in enumerate(outcomes.items()):
        text = re.sub(r'overflow = "\w+"', f'overflow = "{overflow}"', daemon.config.read_text())
        daemon.config.write_text(text, "utf-8")
        daemon.call("config reload")
        codes = []
        for number in range(21):
            headers = {"iothub-app-kind": f"k{priority}"}
            body = f"web-1|k{priority}|{number}|"
            codes.append(device.post("web-1", body, headers=headers)[0])
        assert codes.count(507) == refused
        assert codes.count(204) == 21 - refused
    assert [queue["depth"] for queue in daemon.call("queue list")["queues"]] == [1, 1, 1, 1]
    collector = Collector(broker.port)
    daemon.config.write_text(text.replace(str(nobody), str(broker.port)), "utf-8")
    daemon.call("config reload")
    wanted = {("web-1", f"k{n}", kept) for n, (kept, _) in enumerate(outcomes.values())}
    assert collector.wait_for(wanted, 15) == set()
    device.close()
    assert daemon.stop() == 0
    collector.close()
    assert len(collector.arrivals) == 4


@pytest.mark.timeout(60)
def test_what_is_stored_counts_after_a_restart(make_daemon: Callable[..., Daemon]) -> None:
    """S-06: filled to 98 %, stopped, started, a fifth more: the limit holds, the oldest went."""
    port, limit = free_port(), 500_000
    store = f'[store]\nbytes_max = {limit}\noverflow = "drop_oldest"\n'
    extra = f"[http]\nport = {port}\n[journal]\nenabled = false\n{store}"
    daemon = make_daemon(extra=extra).start()

    def post(count: int) -> None:
        device = HttpDevice(port)
        for _ in range(count):
            body = batch_of(["x" * 900] * 50)
            assert device.post("web-1", body, headers={"Content-Type": BATCH})[0] == 204
            (queue,) = daemon.call("queue list")["queues"]
            assert queue["bytes"] <= limit
        device.close()

    post(10)
    (queue,) = daemon.call("queue list")["queues"]
    assert (queue["depth"], queue["dropped"]) == (500, 0)
    each = queue["bytes"] // 500
    assert queue["bytes"] > limit * 95 // 100
    assert daemon.stop() == 0
    daemon.start()
    post(2)
    (queue,) = daemon.call("queue list")["queues"]
    assert queue["bytes"] > limit - each
    assert queue["dropped"] == 600 - limit // each
    assert daemon.stop() == 0
    assert stored_rows(daemon) == {"upstream": limit // each}


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
@pytest.mark.timeout(90)
def test_a_full_volume_is_lived_through(
    broker: Mosquitto, make_daemon: Callable[..., Daemon]
) -> None:
    """S-11: no byte free, two restarts; 400 rows stay, and leave once the link is there."""
    nobody = free_port()
    store = "[store]\nfree_bytes_min = 0\n"
    daemon = make_daemon(upstream=nobody, extra=store, top='manifest = "m.json"')
    (daemon.folder / "m.json").write_text(json.dumps(MANIFEST), "utf-8")
    disk = daemon.folder / "data"
    disk.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m,mode=700", "tmpfs", disk], check=True)
    try:
        daemon.start()
        device = Device("press-1", daemon.mqtt_port)
        for number in range(400):
            device.publish("bulk", number)
        assert device.wait_in_flight_below(1, 10)
        device.close()
        foreign = disk / "foreign"
        for _ in range(2):
            with contextlib.suppress(OSError), foreign.open("ab", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
            assert shutil.disk_usage(disk).free == 0
            daemon.kill()  # an orderly stop tries for 10 s to store what it knows
            daemon.start()
            assert daemon.call("status")["store"]["rows"] == 400
        foreign.unlink()
        collector = Collector(broker.port)
        text = daemon.config.read_text("utf-8")
        daemon.config.write_text(text.replace(str(nobody), str(broker.port)), "utf-8")
        daemon.call("config reload")
        wanted = {("press-1", "bulk", number) for number in range(400)}
        assert collector.wait_for(wanted, 20) == set()
        daemon.wait_until(lambda: daemon.call("status")["store"]["rows"] == 0, 10)
        assert daemon.stop() == 0
        collector.close()
        assert len(collector.arrivals) == 400
    finally:
        daemon.close()
        subprocess.run(["umount", disk], check=True)

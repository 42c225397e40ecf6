"""Limits of the queues as devices and operators meet them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.support.devices import Collector, Device
from tests.support.http_collector import HttpDevice, batch_of
from tests.support.http_head import BATCH
from tests.support.ports import free_port

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


@pytest.mark.timeout(60)
def test_what_the_peer_can_never_take_is_refused_at_once(
    broker: Mosquitto, make_daemon: Callable[..., Daemon]
) -> None:
    """P-10: a packet beyond the peer's limit is dropped with its size; the rows after it flow."""
    daemon = make_daemon(upstream=broker.port, extra="row_bytes_max = 131072").start()
    collector = Collector(broker.port)
    device = Device("press-1", daemon.mqtt_port)
    topic = "devices/press-1/messages/events/kind=" + "k" * 43
    device.publish_raw(topic, b"x" * 131_000).wait_for_publish(10)
    for number in range(10):
        device.publish("bulk", number)
    wanted = {("press-1", *key) for key in device.published}
    assert collector.wait_for(wanted, 15) == set()
    told = daemon.wait_event("router.message_too_large", 3)
    assert re.fullmatch(
        r"too_large: packet of 131\d\d\d bytes, upstream takes 131072", told["reason"]
    )
    assert daemon.call("dead list")["total"] == 0
    device.close()
    collector.close()
    assert daemon.stop() == 0


def test_a_limit_is_told_to_the_sender_and_shown_to_the_operator(
    make_daemon: Callable[..., Daemon],
) -> None:
    """S-12: the 1001st message gets a reason; status says which cap, which queue, since when."""
    port = free_port()
    store = '[store]\nqueue_rows_max = 1000\noverflow = "reject_new"\n'
    daemon = make_daemon(extra=f"[http]\nport = {port}\n{store}", top='manifest = "m.json"')
    (daemon.folder / "m.json").write_text(json.dumps(MANIFEST), "utf-8")
    daemon.start()
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

    text = daemon.config.read_text("utf-8")
    daemon.config.write_text(text.replace("reject_new", "drop_oldest"), "utf-8")
    assert daemon.call("config reload")["applied"] == ["store.overflow"]
    assert post(30) == 204
    (queue,) = daemon.call("queue list")
    assert (queue["depth"], queue["dropped"]) == (1000, 30)
    device.close()
    assert daemon.stop() == 0

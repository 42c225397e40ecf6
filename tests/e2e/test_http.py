"""HTTP in and HTTP out: the daemon between real clients and a scripted web server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.http_collector import Arrival, HttpCollector, HttpDevice, batch_of
from tests.support.http_head import BATCH
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.daemon import Daemon

    MakeDaemon = Callable[..., tuple[Daemon, HttpDevice]]

pytestmark = pytest.mark.e2e

BATCH_HEADERS = {"Content-Type": BATCH}


@pytest.fixture
def make_hub(make_daemon: Callable[..., Daemon]) -> Iterator[MakeDaemon]:
    """Return a function that starts a daemon with an HTTP head, and a device for it."""
    devices: list[HttpDevice] = []

    def make(
        *,
        upstream: int | None = None,
        options: str = "",
        routes: dict[str, object] | None = None,
        top: str = "",
        rate: int = 1,
    ) -> tuple[Daemon, HttpDevice]:
        section = f'[upstream]\ntype = "http"\nurl = "http://127.0.0.1:{upstream}/in"\n{options}'
        port = free_port()
        extra = f"{section if upstream else ''}\n[http]\nport = {port}\n"
        if routes is not None:
            top += '\nmanifest = "m.json"'
        daemon = make_daemon(extra=extra, top=top, rate=rate)
        if routes is not None:
            document = {
                "schemaVersion": "1.1",
                "routes": routes,
                "storeAndForwardConfiguration": {"timeToLiveSecs": 7200},
            }
            (daemon.folder / "m.json").write_text(json.dumps(document), "utf-8")
        daemon.start()
        devices.append(HttpDevice(port))
        return daemon, devices[-1]

    yield make
    for device in devices:
        device.close()


def totals(daemon: Daemon, name: str) -> int:
    """Add up a figure over all queues."""
    return sum(queue[name] for queue in daemon.call("queue list")["queues"])


def test_what_was_answered_with_204_survives_a_kill(make_hub: MakeDaemon) -> None:
    """Single messages and a batch are on disk when the answer comes."""
    daemon, device = make_hub()
    for number in range(10):
        assert device.post("press-1", f"m{number}") == (204, b"")
    assert device.post("press-1", batch_of(["a"] * 100), headers=BATCH_HEADERS)[0] == 204
    daemon.kill()
    daemon.start()
    assert totals(daemon, "depth") == 110
    assert daemon.stop() == 0


def test_refused_requests_leave_nothing(make_hub: MakeDaemon) -> None:
    """Malformed, too large, half a batch: told, not stored, and the next one is served."""
    daemon, device = make_hub()
    wrong = json.dumps([{"body": "YQ=="}, {"body": 1}])
    status, body = device.post("press-1", wrong, headers=BATCH_HEADERS)
    assert (status, json.loads(body)["index"]) == (400, 1)
    assert device.post("press-1", b"x", headers={"iothub-nothing": "1"})[0] == 400
    assert device.post("a%20b", b"x")[0] == 400
    assert device.post("press-1", b"x" * 300_000)[0] == 413
    device.close()
    assert device.post("press-1", b"x")[0] == 204
    assert totals(daemon, "depth") == 1
    shown = daemon.call("status")["http"]
    assert (shown["messages_total"], shown["answers"]["400"]) == (1, 3)
    assert daemon.stop() == 0


def test_identities_are_those_of_the_mqtt_listener(make_hub: MakeDaemon) -> None:
    """One file for both heads: a child hub speaks for its line and for nobody else."""
    daemon, device = make_hub()
    assert daemon.stop() == 0
    file = daemon.folder / "identities"
    secret = daemon.folder / "secret"
    secret.write_text("s3cret\n", "utf-8")
    options = ["--file", str(file), "--password-file", str(secret), "--on-behalf", "line-*"]
    assert daemon.edgehub("identity", "add", "hall-2", *options).returncode == 0
    text = daemon.config.read_text("utf-8")
    text = text.replace("[mqtt]\n", f'[mqtt]\nidentities_file = "{file}"\n')
    daemon.config.write_text(text, "utf-8")
    daemon.start()
    device.close()
    right = {"Authorization": "Basic aGFsbC0yOnMzY3JldA=="}
    assert device.post("line-7", b"x", headers=right)[0] == 204
    assert device.post("press-1", b"x", headers=right)[0] == 403
    assert device.post("hall-2", b"x")[0] == 401
    assert totals(daemon, "depth") == 1
    assert daemon.stop() == 0


def test_everything_arrives_in_order_and_the_queue_empties(make_hub: MakeDaemon) -> None:
    """Head to endpoint: 2 000 messages of four senders, each once, each sender's in order."""
    with HttpCollector(lambda _: 204) as peer:
        daemon, device = make_hub(upstream=peer.port)
        for start in range(0, 500, 100):
            for name in ("a", "b", "c", "d"):
                bodies = [str(number) for number in range(start, start + 100)]
                assert device.post(name, batch_of(bodies), headers=BATCH_HEADERS)[0] == 204
        assert peer.wait_for(lambda: len(peer.arrivals) >= 2000, 10)
        for name in ("a", "b", "c", "d"):
            numbers = [int(a.body) for a in peer.arrivals if a.device == name]
            assert numbers == list(range(500))
        daemon.wait_until(lambda: totals(daemon, "depth") == 0, 10)
        assert len({a.record["id"] for a in peer.arrivals}) == 2000
        assert daemon.stop() == 0


@pytest.mark.parametrize("by_row", [True, False])
def test_a_refused_row_is_a_dead_letter_and_blocks_nothing(
    make_hub: MakeDaemon, by_row: bool
) -> None:
    """P-09: 400 to 33, twice 503 to 34; by row and as the answer to the whole request."""
    refused = 0

    def judge(arrival: Arrival) -> int:
        nonlocal refused
        if arrival.body == "33":
            return 400
        if arrival.body == "34" and refused < 2:
            refused += by_row or arrival.alone
            return 503
        return 204

    with HttpCollector(judge, by_row=by_row) as peer:
        daemon, device = make_hub(upstream=peer.port)
        devices = {str(number): f"dev-{number}" for number in range(30, 60)}
        for body, name in devices.items():
            assert device.post(name, body)[0] == 204
        assert peer.wait_for(lambda: len(peer.accepted) >= 29, 12)
        daemon.wait_until(lambda: totals(daemon, "depth") == 0, 5)
        began = peer.arrivals[0].at
        at = {a.body: a.at - began for a in peer.accepted}
        assert set(at) == devices.keys() - {"33"}
        assert all(wait_s < 2 for body, wait_s in at.items() if body != "34")
        alone = [a for a in peer.arrivals if a.body == "34" and (by_row or a.alone)]
        assert [a.status for a in alone] == [503, 503, 204]
        assert totals(daemon, "dead_lettered") == 1
        reasons = [e["reason"] for e in daemon.log if e["event"] == "pump.rows_dead_lettered"]
        assert reasons == ["400 Bad Request"]
        assert daemon.stop() == 0


@pytest.mark.parametrize("order", ["strict", "skip"])
def test_a_row_that_is_refused_for_now(make_hub: MakeDaemon, order: str) -> None:
    """P-03: 5 is refused three times; strict keeps it first, skip lets 6 to 20 pass, by route."""
    refused = 0

    def judge(arrival: Arrival) -> int:
        nonlocal refused
        if arrival.body == "5" and refused < 3:
            refused += 1
            return 503
        return 204

    routes = {
        "alarm": {"route": "FROM /messages/* WHERE kind='alarm' INTO $upstream", "priority": 0},
        "rest": {"route": "FROM /messages/* INTO $upstream", "priority": 7, "order": order},
    }
    other = {"strict": "skip", "skip": "strict"}[order]
    with HttpCollector(judge) as peer:
        daemon, device = make_hub(
            upstream=peer.port, options=f'order = "{other}"', routes=routes, rate=4
        )
        bodies = [str(number) for number in range(5, 21)]
        assert device.post("press-1", batch_of(bodies[:10]), headers=BATCH_HEADERS)[0] == 204
        assert peer.wait_for(lambda: refused >= 2, 10)
        began = peer.arrivals[-1].at
        assert device.post("press-1", batch_of(bodies[10:]), headers=BATCH_HEADERS)[0] == 204
        if order == "skip":
            assert peer.wait_for(lambda: len(peer.accepted) == 15, 1)
        assert device.post("press-1", b"alarm", headers={"iothub-app-kind": "alarm"})[0] == 204
        assert peer.wait_for(lambda: peer.arrivals[-1].body == "alarm", 5)
        assert peer.arrivals[-1].at - began < 1
        daemon.wait_until(lambda: totals(daemon, "depth") == 0, 15)
        order_of = [a.body for a in peer.accepted if a.body != "alarm"]
        if order == "skip":
            assert order_of == [*bodies[1:], "5"]
        else:
            assert order_of[order_of.index("5") :] == bodies
        assert daemon.stop() == 0


def test_an_outage_of_the_peer_costs_nothing(make_hub: MakeDaemon) -> None:
    """Nobody listens at first: rows wait, the link comes back by itself, all arrive."""
    with HttpCollector(lambda _: 204) as peer:
        spare = free_port()
        daemon, device = make_hub(upstream=spare)
        assert device.post("a", batch_of(["x"] * 50), headers=BATCH_HEADERS)[0] == 204
        daemon.wait_event("endpoint.link_down")
        assert totals(daemon, "depth") == 50
        assert daemon.stop() == 0
        text = daemon.config.read_text("utf-8").replace(f":{spare}/", f":{peer.port}/")
        daemon.config.write_text(text, "utf-8")
        daemon.start()
        assert peer.wait_for(lambda: len(peer.accepted) >= 50, 10)
        daemon.wait_until(lambda: totals(daemon, "depth") == 0, 5)
        assert daemon.stop() == 0

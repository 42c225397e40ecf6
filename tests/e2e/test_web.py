"""The HTTP API of a daemon: what it shows, whom it lets in, and what it costs where it is off."""

from __future__ import annotations

import http.client
import re
import signal
import socket
import ssl
import threading
from typing import TYPE_CHECKING, Any

import paho.mqtt.client as paho
import pytest

from edgehub.devices.token_file import Role, Token, changing_tokens
from edgehub.web.figures import LIMITS
from tests.support.certificates import Authority
from tests.support.daemon import Daemon
from tests.support.devices import Device
from tests.support.http_collector import HttpCollector
from tests.support.http_rules import CHUNKS, RULES
from tests.support.ports import free_port
from tests.support.web import Api, web_daemon

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    MakeDaemon = Callable[..., Daemon]

pytestmark = pytest.mark.e2e

SAMPLE = re.compile(r"^(edgehub_\w+)(\{.*\})? (\S+)$", re.MULTILINE)


def metrics(api: Api) -> dict[str, float]:
    """Scrape; gives the samples by name and labels."""
    answer = api.get("/metrics")
    assert answer.status == 200
    text = answer.body.decode()
    return {name + labels: float(value) for name, labels, value in SAMPLE.findall(text)}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, Api]]:
    """Start one hub without tokens, with both heads and short times, for tests that only ask."""
    folder, port = tmp_path_factory.mktemp("hub"), free_port()
    daemon = Daemon(
        folder,
        f'data_dir = "data"\n[mqtt]\nport = {free_port()}\n[http]\nport = 0\n[web]\nport = {port}\n'
        'request_timeout_s = 1\nconnections_max = 4\n[log]\nformat = "json"\n',
    )
    try:
        daemon.start()
        daemon.wait_event("web.listening")
        yield daemon, Api(port)
        assert daemon.stop() == 0
    finally:
        daemon.close()


def a_token(daemon: Daemon, name: str, role: Role) -> str:
    """Add a token, as the command line does; gives its text."""
    entry, text = Token.new(name, role)
    with changing_tokens(daemon.folder / "tokens") as tokens:
        tokens[name] = entry
    return text


def read_raw(port: int, request: bytes) -> bytes:
    """Send bytes and read until the hub closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    return answer


def test_what_is_shown_is_what_the_command_line_shows(hub: tuple[Daemon, Api]) -> None:
    """Status, queues and probes; this machine reads without a token, by its own names only."""
    daemon, api = hub
    status = api.get("/api/v1/status").document
    assert status.keys() == daemon.call("status").keys()
    assert status["web"]["enabled"] is True
    queues, listed = (
        api.get("/api/v1/queues").document["queues"],
        daemon.call("queue list")["queues"],
    )
    assert [queue.keys() for queue in queues] == [queue.keys() for queue in listed]
    assert api.get("/healthz").document == {"status": "ok"}
    assert api.get("/readyz").document == {"status": "ready"}
    assert api.get("/api/v1/status", Host="evil.example").document["code"] == "unknown_host"
    assert api.ask("PUT", "/api/v1/routes/r", "x").document["code"] == "read_only"
    head = api.ask("HEAD", "/api/v1/status")
    assert (head.status, head.body) == (200, b"")
    assert int(head.headers["content-length"]) > 1000


def test_gauges_equal_the_rows_at_any_scrape(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    """While messages come and go: what came in, less what left, is what is there."""
    file = f'[upstream]\ntype = "file"\npath = "{tmp_path / "out.jsonl"}"\n'
    daemon, api = web_daemon(make_daemon, extra=file)
    device = Device("d1", daemon.mqtt_port)
    left = ("sent", "expired", "displaced", "dead_lettered", "purged", "moved")
    scrapes = 0
    for number in range(3000):
        device.publish("log", number, size=20)
        if number % 100 == 0:
            found = metrics(api)
            queue = '{endpoint="upstream",priority="default"}'
            length = found.get(f"edgehub_queue_length{queue}", 0)
            assert found["edgehub_store_rows"] == length
            if f"edgehub_queue_length{queue}" in found:
                gone = sum(found[f"edgehub_messages_{name}_total{queue}"] for name in left)
                assert found[f"edgehub_messages_enqueued_total{queue}"] - gone == length
                scrapes += 1
    assert device.wait_in_flight_below(1, 20)
    assert scrapes > 10
    daemon.wait_until(lambda: metrics(api)["edgehub_store_rows"] == 0, 20)
    assert metrics(api)['edgehub_messages_received_total{head="mqtt"}'] == 3000
    device.close()
    assert daemon.stop() == 0


def test_every_figure_has_a_sample(hub: tuple[Daemon, Api]) -> None:
    """A hub with both heads and a queue shows all that the tables of figures name."""
    daemon, api = hub
    publisher = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="d1")
    publisher.connect("127.0.0.1", daemon.mqtt_port)
    publisher.loop_start()
    publisher.publish("devices/d1/messages/events/", b"x", qos=1).wait_for_publish(10)
    publisher.disconnect()
    publisher.loop_stop()
    api.get("/nothing")
    text = api.get("/metrics").body.decode()
    sampled = {name for name, _, _ in SAMPLE.findall(text)}
    named = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    # Endpoints, mapper and stations are not there, nothing was sent by HTTP, expires or was served.
    others = ("edgehub_endpoint_", "edgehub_entities", "edgehub_lora_")
    absent = {name for name in named - sampled if not name.startswith(others)}
    assert absent <= {
        "edgehub_head_answers_total",
        "edgehub_message_latency_seconds",
        "edgehub_queue_oldest_expires_seconds",
        "edgehub_queue_unserved_seconds",
        "edgehub_send_failures_total",
        *(f"edgehub_{name}" for name, _, _ in LIMITS),
    }


def test_tokens_come_and_go_by_reload(make_daemon: MakeDaemon) -> None:
    """Added, used, removed; a broken file changes nothing and is told."""
    daemon, api = web_daemon(make_daemon)
    assert daemon.stop() == 0
    reader = a_token(daemon, "reader", Role.READ)
    text = daemon.config.read_text("utf-8")
    daemon.config.write_text(text.replace("[web]", '[web]\ntoken_file = "tokens"'), "utf-8")
    daemon.start()
    daemon.wait_event("web.listening")
    assert api.get("/api/v1/status").status == 401
    assert "bearer" in api.get("/api/v1/status").headers["www-authenticate"].lower()
    assert api.get("/healthz").status == api.get("/").status == 200
    assert Api(api.port, reader).get("/api/v1/status").status == 200
    writer = a_token(daemon, "writer", Role.WRITE)
    assert Api(api.port, writer).get("/api/v1/status").status == 401
    outcome = daemon.call("config reload")
    assert (outcome["outcome"], outcome["tokens_changed"]) == ("applied", True)
    assert Api(api.port, writer).get("/api/v1/status").status == 200
    (daemon.folder / "tokens").write_text("nonsense\n", "utf-8")
    outcome = daemon.call("config reload")
    assert outcome["outcome"] == "refused"
    assert "tokens:1" in outcome["faults"][0]["key"]
    assert Api(api.port, writer).get("/api/v1/status").status == 200
    (daemon.folder / "tokens").write_text("", "utf-8")
    assert daemon.call("config reload")["outcome"] == "applied"
    assert Api(api.port, writer).get("/api/v1/status").status == 401
    assert daemon.stop() == 0


def test_a_hub_without_it_imports_none_of_it(tmp_path: Path) -> None:
    """Neither its server nor its handlers."""
    names = ("edgehub.web.server", "edgehub.web.app")
    program = (
        "import atexit, sys\n"
        "from edgehub.cli.main import main\n"
        f"names = {names}\n"
        "told = lambda: print('loaded', [n for n in names if n in sys.modules], file=sys.stderr)\n"
        "atexit.register(told)\n"
        "main()\n"
    )
    for web, expected in (("", "loaded []"), ("[web]\nport = 0\n", "'edgehub.web.app'")):
        folder = tmp_path / f"hub{len(web)}"
        folder.mkdir()
        config = f'data_dir = "data"\n[mqtt]\nport = 0\n{web}[log]\nformat = "json"\n'
        daemon = Daemon(folder, config, program=("-c", program))
        try:
            daemon.start()
            if web:
                daemon.wait_event("web.listening")
            daemon.signal(signal.SIGTERM)
            daemon.wait_text(expected)
            assert daemon.wait() == 0
        finally:
            daemon.close()


def test_readers_on_the_network_need_tokens(make_daemon: MakeDaemon) -> None:
    """Without a tokens file no API on an address that others reach; nothing listens first."""
    daemon = make_daemon(extra='[web]\nport = 0\nhost = "0.0.0.0"\n')
    with pytest.raises(AssertionError, match=r"any client that reaches 0\.0\.0\.0:0 could read"):
        daemon.start()
    assert daemon.wait() == 78
    assert "mqtt.listening" not in {line.get("event") for line in daemon.log}


def test_what_is_no_request_disturbs_nothing(hub: tuple[Daemon, Api]) -> None:
    """Nonsense, long headers, slow and silent clients, a crowd: refused, the next is served."""
    daemon, api = hub
    assert read_raw(api.port, b"NONSENSE\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    long = b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 20_000 + b"\r\n\r\n"
    assert read_raw(api.port, long).startswith(b"HTTP/1.1 431 ")
    with socket.create_connection(("127.0.0.1", api.port), timeout=10) as slow:
        slow.sendall(b"POST /api/v1/routes HTTP/1.1\r\nHost: loc")
        assert slow.recv(100).startswith(b"HTTP/1.1 408 ")
    with socket.create_connection(("127.0.0.1", api.port), timeout=10) as silent:
        assert silent.recv(100) == b""
    crowd = [socket.create_connection(("127.0.0.1", api.port), timeout=10) for _ in range(4)]
    assert api.get("/healthz").document["code"] == "too_many_connections"
    for each in crowd:
        each.close()
    daemon.wait_until(lambda: daemon.call("status")["web"]["connections"] == 0, 10)
    assert api.get("/healthz").status == 200


def test_rules_of_http(hub: tuple[Daemon, Api]) -> None:
    """Versions, hosts and transfer encodings, as the head for messages has them."""
    _, api = hub
    for head, status in RULES:
        answer = read_raw(api.port, b"GET /healthz " + head + b"\r\nConnection: close" + CHUNKS)
        assert answer.startswith(b"HTTP/1.1 %d " % (status or 200)), (head, answer)


def test_a_drain_is_reported(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    """While the last rows are confirmed the hub is not ready: it tells, and changes nothing."""
    entry, text = Token.new("ops", Role.WRITE)
    with changing_tokens(tmp_path / "tokens") as tokens:
        tokens["ops"] = entry
    held = threading.Event()
    with HttpCollector(lambda _: 204 if held.wait(10) else 500) as peer:
        upstream = f'[upstream]\ntype = "http"\nurl = "http://127.0.0.1:{peer.port}/in"\n'
        web = f'token_file = "{tmp_path / "tokens"}"'
        daemon, api = web_daemon(make_daemon, web=web, extra=upstream)
        api.token = text
        device = Device("d1", daemon.mqtt_port)
        device.publish("log", 1)
        assert device.wait_in_flight_below(1, 10)
        daemon.wait_until(lambda: daemon.call("status")["queues"][0]["in_flight"] == 1, 10)
        daemon.signal(signal.SIGTERM)
        daemon.wait_event("hub.drain_started")
        unready = api.get("/readyz")
        assert (unready.status, unready.document["detail"]) == (503, "draining")
        assert api.get("/api/v1/status").document["phase"] == "draining"
        late = api.ask("PUT", "/api/v1/routes/late", "FROM /messages/* INTO $upstream")
        assert (late.status, late.document["code"]) == (503, "not_ready")
        held.set()
        assert daemon.wait() == 0
        device.close()


def test_https_with_a_certificate_that_a_reload_renews(
    make_daemon: MakeDaemon, tmp_path: Path
) -> None:
    """Clients that trust the authority are served; the next connection sees the new one."""
    authority = Authority(tmp_path)
    certificate, key = authority.server()
    web = f'certificate_file = "{certificate}"\nkey_file = "{key}"\n'
    daemon, api = web_daemon(make_daemon, web=web)

    def serial() -> str:
        context = ssl.create_default_context(cafile=str(authority.certificate))
        connection = http.client.HTTPSConnection("localhost", api.port, timeout=10, context=context)
        connection.request("GET", "/api/v1/status")
        assert connection.getresponse().status == 200
        shown: dict[str, Any] = connection.sock.getpeercert()
        connection.close()
        return str(shown["serialNumber"])

    before = serial()
    authority.server()
    assert serial() == before
    assert daemon.call("config reload")["faults"] == []
    assert serial() != before
    key.write_text("nonsense", "utf-8")
    assert daemon.call("config reload")["outcome"] == "refused"
    assert serial() != before
    assert daemon.stop() == 0

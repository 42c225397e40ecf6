"""Routes over HTTP and on the command line: the table of a daemon, as its users change it."""

from __future__ import annotations

import http.client
import json
import socket
from typing import TYPE_CHECKING, Any

import pytest

from edgehub.cli.main import main
from edgehub.devices.token_file import Role, Token, changing_tokens
from tests.support.daemon import Daemon
from tests.support.devices import Device
from tests.support.ports import free_port
from tests.support.web import Api

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.e2e

ALARMS = "FROM /messages/* WHERE kind = 'alarm' INTO $upstream"
MANIFEST = {
    "schemaVersion": "1.1",
    "routes": {"rest": "FROM /messages/* INTO $upstream"},
    "storeAndForwardConfiguration": {"timeToLiveSecs": 7200},
}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, Api]]:
    """Start one hub with a manifest for all tests here; gives it and a client that may write.

    Each test names its routes after itself.
    """
    folder = tmp_path_factory.mktemp("hub")
    (folder / "m.json").write_text(json.dumps(MANIFEST), "utf-8")
    entry, token = Token.new("ops", Role.WRITE)
    with changing_tokens(folder / "tokens") as tokens:
        tokens["ops"] = entry
    port = free_port()
    daemon = Daemon(
        folder,
        f'data_dir = "data"\nmanifest = "m.json"\n[mqtt]\nport = {free_port()}\n'
        f'[web]\nport = {port}\ntoken_file = "tokens"\nrequest_timeout_s = 2\n'
        '[log]\nformat = "json"\n',
    )
    try:
        daemon.start()
        daemon.wait_event("web.listening")
        yield daemon, Api(port, token)
        assert daemon.stop() == 0
    finally:
        daemon.close()


@pytest.fixture
def command(
    hub: tuple[Daemon, Api], capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs a command against the hub: exit code, output, error output."""

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["--config", str(hub[0].config), *arguments])
        told = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, told.out, told.err

    return run


def test_a_route_lives_from_put_to_delete(hub: tuple[Daemon, Api]) -> None:
    """Made, read, changed by revision, switched off and on, removed; each answer has its tag."""
    daemon, api = hub
    path = "/api/v1/routes/alarms"
    made = api.ask("PUT", f"{path}?wait=true", {"route": ALARMS, "priority": 0})
    assert made.status == 201
    assert made.headers["location"] == path
    assert made.document["applied"]["result"] == "complete"
    first = made.headers["etag"]
    shown = api.get(path)
    assert (shown.headers["etag"], shown.document["state"]) == (first, "running")
    changed = api.ask("PUT", path, {"route": ALARMS, "priority": 1}, If_Match=first)
    assert changed.status == 200
    assert changed.headers["etag"] != first
    late = api.ask("PUT", path, {"route": ALARMS, "priority": 2}, If_Match=first)
    assert (late.status, late.document["code"]) == (412, "other_revision")
    assert api.ask("PUT", path, ALARMS, If_None_Match="*").status == 412
    assert api.ask("PUT", path, ALARMS, If_Match="first").status == 400
    assert api.ask("PUT", path, ALARMS, If_Match='"1", "2", "3"').status in {200, 412}
    assert api.ask("POST", f"{path}/disable").document["route"]["state"] == "disabled"
    assert api.ask("POST", f"{path}/disable").document["changed"] is False
    assert api.ask("POST", f"{path}/enable", If_Match="*").document["route"]["state"] == "running"
    (status,) = api.get(path).document["instances"]
    assert status["state"] == "running"
    gone = api.ask("DELETE", path)
    assert (gone.status, gone.document["changed"], gone.document["route"]) == (200, True, None)
    assert api.ask("DELETE", path).document["changed"] is False
    assert api.get(path).document["code"] == "route_not_found"
    assert api.ask("POST", f"{path}/enable").status == 404
    changes = {("ops", "PUT", path), ("ops", "POST", f"{path}/disable"), ("ops", "DELETE", path)}
    daemon.wait_until(lambda: changes <= _changes(daemon), 10)


def test_a_change_is_answered_with_what_is_hardly_meant(hub: tuple[Daemon, Api]) -> None:
    """A bare word in place of a text is stored, and a warning says what it does."""
    made = hub[1].ask(
        "PUT", "/api/v1/routes/bare", "FROM /messages/* WHERE kind = alarm INTO $upstream"
    )
    (warning,) = made.document["warnings"]
    assert "for a text write 'alarm'" in warning


def test_a_refused_route_without_an_id_says_how_to_name_it(
    command: Callable[..., tuple[int, str, str]],
) -> None:
    """The id is the hash of the content then, which nobody wants to type."""
    code, output, errors = command("route", "add", "FROM /messages/* INTO $upstream")
    assert (code, "name it with --id" in errors) == (0, True)
    assert len(output.split(":")[0]) == 64
    code, _, errors = command("route", "add", "--id", "all", "FROM /* INTO $upstream")
    assert (code, errors) == (0, "")


def _changes(daemon: Daemon) -> set[tuple[str, str, str]]:
    told = [line for line in list(daemon.log) if line.get("event") == "web.change_made"]
    return {(line["token"], line["method"], line["path"]) for line in told}


def test_conditions_never_make_what_was_not_there(hub: tuple[Daemon, Api]) -> None:
    """`If-Match` is for what is there; where it means nothing it is refused."""
    _, api = hub
    path = "/api/v1/routes/absent"
    for tag in ("*", '"0"', '"0", "1"', '"1", "2"', 'W/"0"', '"999999999999999999"'):
        for method, body in (("PUT", ALARMS), ("DELETE", None)):
            refused = api.ask(method, path, body, If_Match=tag)
            assert (refused.status, refused.document["code"]) == (412, "other_revision"), tag
    both = api.ask("PUT", path, ALARMS, If_Match="*", If_None_Match="*")
    assert (both.status, both.document["code"]) == (400, "bad_header")
    assert api.get(path).status == 404
    assert api.ask("PUT", "/api/v1/routes/rest", ALARMS, If_Match='"0"').status == 409
    blind = api.ask("POST", "/api/v1/routes", {"id": "absent", "route": ALARMS}, If_Match='"1"')
    assert (blind.status, blind.document["code"]) == (400, "bad_header")


@pytest.mark.parametrize(
    "body",
    [rb'"FROM /messages/* WHERE a = \'\ud800\' INTO $upstream"', rb'{"\uDFFF": 1}', rb'"\ud800"'],
)
def test_lone_surrogates_are_refused(hub: tuple[Daemon, Api], body: bytes) -> None:
    """JSON can write what no file and no answer can hold."""
    refused = hub[1].ask("POST", "/api/v1/routes", body)
    assert (refused.status, refused.document["code"]) == (400, "bad_json")


def test_odd_targets_are_answered(hub: tuple[Daemon, Api]) -> None:
    """Nothing in a path, a query or a header is a fault of the hub."""
    daemon, api = hub
    odd = "/api/v1/routes"
    targets = (
        f"{odd}/",
        f"{odd}//",
        f"{odd}/%00",
        f"{odd}/%FF%FE",
        f"{odd}/../status",
        f"{odd}/%2e%2e/x",
    )
    targets += (f"{odd}/a%2Fstatus/status", f"{odd}?after=%00%ED%A0%80", f"{odd}/$defaults")
    targets += (
        f"{odd}?tenant=..%2F..",
        f"{odd}/x?timeout_s=nan&wait=true",
        f"{odd}/{'x' * 8000}",
    )
    for method in ("GET", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE"):
        for target in targets:
            body = ALARMS if method == "PUT" else None
            assert 200 <= api.ask(method, target, body).status < 500, (method, target)
    # The beginning of each is a number within the bounds.
    assert api.ask("DELETE", f"{odd}/x?timeout_s=2.925482543131596e%2B108").status == 422
    assert api.ask("GET", f"{odd}?limit={'0' * 50}900").status == 422
    for line in (
        b"GET /\xff HTTP/1.1",
        b"GET http://evil.example/metrics HTTP/1.1",
        b"OPTIONS * HTTP/1.1",
    ):
        answer = read_raw(api.port, line + b"\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert answer[9:10] in {b"2", b"4"}, (line, answer[:200])
    upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\r\n"
    answer = read_raw(api.port, b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + upgrade, wait=False)
    assert answer.startswith(b"HTTP/1.1 200")
    assert [line for line in daemon.log if line.get("level") == "error"] == []


def read_raw(port: int, request: bytes, *, wait: bool = True) -> bytes:
    """Send bytes, and give the answer; to the end of the connection, or its first piece."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(request)
        read = [connection.recv(65536)]
        while wait and (piece := connection.recv(65536)):
            read.append(piece)
    return b"".join(read)


def test_a_route_of_the_table_takes_messages(hub: tuple[Daemon, Api]) -> None:
    """What POST answers is in force: the message after it goes to the new queue."""
    daemon, api = hub
    added = api.ask("POST", "/api/v1/routes?wait=true", {"route": ALARMS, "priority": 3})
    assert added.status == 201
    view = added.document["route"]
    assert view["id"] == view["hash"]
    again = api.ask("POST", "/api/v1/routes", {"priority": 3, "route": ALARMS})
    assert (again.status, again.document["changed"]) == (200, False)
    device = Device("d1", daemon.mqtt_port)
    device.publish("alarm", 1)
    assert device.wait_in_flight_below(1, 10)
    device.close()
    queues = {queue["id"]: queue["depth"] for queue in api.get("/api/v1/queues").document["queues"]}
    assert queues["upstream_Pri3"] == 1


def test_the_manifests_routes_are_the_files(hub: tuple[Daemon, Api]) -> None:
    """They are shown, and a change of one is refused with the file's name."""
    _, api = hub
    assert api.get("/api/v1/routes/rest").document["origin"] == "manifest"
    for method, body in (("PUT", ALARMS), ("DELETE", None)):
        refused = api.ask(method, "/api/v1/routes/rest", body)
        assert (refused.status, refused.document["code"]) == (409, "owned_by_manifest")
        assert "m.json" in refused.document["detail"]


def test_faults_of_a_route_have_their_place(hub: tuple[Daemon, Api]) -> None:
    """Every one, with line, column and hint, and nothing is stored."""
    _, api = hub
    body = {"route": "FROM /messages/*\nWHERE kind >> 1\nINTO $upstream", "priority": 11}
    refused = api.ask("PUT", "/api/v1/routes/r1", body)
    assert (refused.status, refused.document["code"]) == (422, "invalid_route")
    places = {fault["path"]: fault for fault in refused.document["faults"]}
    assert (places["route"]["line"], places["route"]["column"]) == (2, 13)
    assert places["priority"]["hint"]
    unknown = api.ask("PUT", "/api/v1/routes/r1", 'FROM /messages/* INTO Endpoint("nowhere")')
    assert unknown.status == 422
    assert "no parameter `tenent`" in api.get("/api/v1/routes/r1?tenent=x").document["detail"]
    assert api.get("/api/v1/routes/r1").status == 404


def test_lists_come_in_pages(hub: tuple[Daemon, Api]) -> None:
    """By id, each route once; a page more than there is says that it is the last."""
    _, api = hub
    ids = [f"page{number}" for number in range(5)]
    for route_id in ids:
        text = f"FROM /messages/* WHERE kind = '{route_id}' INTO $upstream"
        assert api.ask("PUT", f"/api/v1/routes/{route_id}", text).status == 201
    seen: list[str] = []
    after: str | None = None
    while not seen or after is not None:
        further = "" if after is None else f"&after={after}"
        page: dict[str, Any] = api.get(f"/api/v1/routes?limit=2{further}").document
        assert len(page["routes"]) <= 2
        seen += [route["id"] for route in page["routes"]]
        after = page["next"]
    assert [route_id for route_id in seen if route_id.startswith("page")] == ids
    assert sorted(set(seen)) == seen
    assert api.get("/api/v1/routes?limit=0").status == 422


def test_bodies_are_bounded(hub: tuple[Daemon, Api]) -> None:
    """With and without a length; the answer comes, and the next request is served."""
    _, api = hub
    large = b'"' + b"x" * 1_200_000 + b'"'
    assert api.ask("POST", "/api/v1/routes", large).document["code"] == "body_too_large"
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=10)
    headers = {"Authorization": f"Bearer {api.token}", "Content-Type": "application/json"}
    pieces = (b"x" * 60_000 for _ in range(20))
    connection.request("POST", "/api/v1/routes", pieces, headers, encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()
    assert api.ask("POST", "/api/v1/routes", b"{").document["code"] == "bad_json"
    faults = api.ask("POST", "/api/v1/routes", b"[1,\n 2").document["faults"]
    assert [(fault["line"], fault["column"]) for fault in faults] == [(2, 3)]
    assert api.ask("POST", "/api/v1/routes", b'{"route": 1, "route": 2}').status == 400
    with socket.create_connection(("127.0.0.1", api.port), timeout=10) as slow:
        head = f"POST /api/v1/routes HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.token}\r\n"
        slow.sendall(
            head.encode() + b"Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
        )
        assert slow.recv(100).startswith(b"HTTP/1.1 408 ")


def test_the_command_line_does_the_same(
    hub: tuple[Daemon, Api], command: Callable[..., tuple[int, str, str]]
) -> None:
    """List, show, add, switch, remove and drift; exit codes and places of faults for scripts."""
    add = ("route", "add", "--id", "cli", "--priority", "0")
    assert command(*add, "--wait", ALARMS)[0] == 0
    code, out, _ = command("route", "list", "--json")
    assert {"cli", "rest"} <= {route["id"] for route in json.loads(out)["routes"]}
    code, out, _ = command("route", "list")
    assert (code, ALARMS in out) == (0, True)
    code, out, _ = command("route", "show", "cli", "--json")
    revision = json.loads(out)["revision"]
    code, _, err = command(*add, "FROM /messages/* WHERE kind = INTO $upstream")
    assert code == 78
    assert "column 31 of its text" in err
    code, out, _ = command(*add, "--json", "FROM nowhere")
    assert code == 78
    assert json.loads(out)["error"]["code"] == "invalid_route"
    assert command("route", "disable", "cli")[0] == 0
    code, _, err = command("route", "enable", "cli", "--if-revision", str(revision))
    assert (code, "revision" in err) == (1, True)
    assert command("route", "enable", "cli")[0] == 0
    code, _, err = command("route", "remove", "rest")
    assert (code, "m.json" in err) == (1, True)
    assert command("route", "remove", "cli")[0] == 0
    code, _, err = command("route", "remove", "cli")
    assert (code, "no route 'cli'" in err) == (1, True)
    assert command("route", "show", "cli")[0] == 1
    code, out, _ = command("route", "drift")
    assert (code, "no drift" in out) == (0, True)
    code, out, _ = command("route", "instances", "--json")
    assert [each["own"] for each in json.loads(out)["instances"]] == [True]
    code, _, err = command("manifest", "apply", str(hub[0].folder / "m.json"))
    assert (code, "m.json" in err) == (1, True)
    assert command("route", "add")[0] == 2

"""Every operation over HTTP: what the control socket returns, for those who may ask."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from edgehub.cli.refusal import CommandError
from edgehub.devices.token_file import Role, Token, changing_tokens
from tests.support.daemon import Daemon
from tests.support.devices import Device
from tests.support.ports import free_port
from tests.support.web import Api

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, Api, Api]]:
    """Start a hub with two waiting messages, and sign in for reading and for writing."""
    folder, port = tmp_path_factory.mktemp("hub"), free_port()
    daemon = Daemon(
        folder,
        f'data_dir = "data"\n[mqtt]\nport = {free_port()}\n[web]\nport = {port}\n'
        'token_file = "tokens"\n[log]\nformat = "json"\n',
    )
    apis = []
    for role in (Role.READ, Role.WRITE):
        entry, text = Token.new(role.value, role)
        with changing_tokens(folder / "tokens") as tokens:
            tokens[role.value] = entry
        apis.append(Api(port, text))
    try:
        daemon.start()
        daemon.wait_event("web.listening")
        device = Device("press-1", daemon.mqtt_port)
        for body in (b"one", b"two"):
            device.publish_raw("devices/press-1/messages/events/", body).wait_for_publish(10)
        device.close()
        yield daemon, apis[0], apis[1]
        assert daemon.stop() == 0
    finally:
        daemon.close()


def ask(api: Api, name: str, arguments: dict[str, Any]) -> Any:
    """Do an operation by its name."""
    answer = api.ask("POST", f"/api/v1/{name.replace(' ', '/')}", arguments)
    assert answer.status == 200, answer.body
    return answer.document


def test_every_operation_is_described(hub: tuple[Daemon, Api, Api]) -> None:
    """By its name, with the members of its result."""
    daemon, reader, _ = hub
    with pytest.raises(CommandError) as refusal:
        daemon.call("nonsense")
    names = str(refusal.value).split("(known: ")[1].rstrip(")").split(", ")
    document = reader.get("/openapi.json").document
    described = {
        operation["operationId"]: operation
        for path in document["paths"].values()
        for operation in path.values()
    }
    for name in names:
        content = described[name.replace(" ", "_")]["responses"]["200"]["content"]
        schema = content["application/json"]["schema"]["$ref"].rpartition("/")[2]
        assert document["components"]["schemas"][schema]["description"], name


def test_every_path_is_in_the_reference(hub: tuple[Daemon, Api, Api]) -> None:
    """By itself, or by the name of its operation."""
    reference = (ROOT / "docs" / "reference" / "http-api.md").read_text("utf-8")
    paths = hub[1].get("/openapi.json").document["paths"]
    assert [
        path
        for path in paths
        if path.partition("/{")[0] not in reference
        and f"`{path.removeprefix('/api/v1/').replace('/', ' ')}`" not in reference
    ] == []


def test_a_token_for_reading_changes_nothing(hub: tuple[Daemon, Api, Api]) -> None:
    """Not at a path either that it may read by another method."""
    reader = hub[1]
    taken = set()
    for path, methods in reader.get("/openapi.json").document["paths"].items():
        for method in methods.keys() - {"get"}:
            answer = reader.ask(method.upper(), path.replace("{id}", "upstream"), {})
            if answer.status != 403:
                taken.add((method, path))
            else:
                assert answer.document["code"] == "read_only"
    # Questions whose arguments are a document.
    assert taken == {("post", "/api/v1/manifest/diff"), ("post", "/api/v1/route/explain")}


@pytest.mark.parametrize(
    ("name", "path", "arguments"),
    [
        ("queue list", "queues", {}),
        ("route list", "routes?limit=1", {"limit": 1}),
        ("route show", "routes/upstream", {"id": "upstream"}),
        ("queue peek", "queue/peek?queue=upstream&limit=1", {"queue": "upstream", "limit": 1}),
        ("dead list", "dead/list", {}),
        ("session list", "session/list?limit=5", {"limit": 5}),
        ("device list", "device/list", {}),
        ("manifest show", "manifest/show", {}),
        ("config show", "config/show", {}),
        ("journal show", "journal/show?event=enqueued", {"event": "enqueued"}),
    ],
)
def test_http_and_control_socket_return_the_same(
    hub: tuple[Daemon, Api, Api], name: str, path: str, arguments: dict[str, Any]
) -> None:
    """Up to what grows with time, or is converted to UTC at each call."""
    daemon, reader, _ = hub
    over_http = reader.get(f"/api/v1/{path}").document
    over_socket = json.loads(json.dumps(daemon.call(name, **arguments)))
    for document in (over_http, over_socket):
        document.pop("started", None)
        for row in document.get("rows", ()):
            del row["age_s"], row["expires_in_s"], row["enqueued"]
        for queue in document.get("queues", ()):
            del queue["oldest_age_s"], queue["oldest_expires_in_s"]
    assert over_http == over_socket


def test_reading_is_not_enough_to_change_or_to_see_what_clients_sent(
    hub: tuple[Daemon, Api, Api],
) -> None:
    """A purge is refused, and so is a payload; an explanation in a body is reading."""
    _, reader, writer = hub
    refused = reader.ask("POST", "/api/v1/queue/purge", {"queue": "upstream"})
    assert (refused.status, refused.document["code"]) == (403, "read_only")
    path = "/api/v1/queue/peek?queue=upstream&payload=true"
    assert reader.get(path).status == 403
    assert [row["body"] for row in writer.get(path).document["rows"]] == ["one", "two"]
    explained = ask(reader, "route explain", {"message": {"device": "press-1"}})
    assert explained["of"] == "hub"
    difference = ask(reader, "manifest diff", {"text": "{", "file": "m.json"})
    assert difference["faults"]


def test_what_is_wrong_is_a_problem(hub: tuple[Daemon, Api, Api]) -> None:
    """With the text of the control socket."""
    _, reader, writer = hub
    for path, status, code, detail in [
        ("/api/v1/queue/peek?queue=other", 404, "not_found", "there is no queue 'other'"),
        ("/api/v1/queue/peek", 422, "bad_request", "`queue`: want a text that is not empty"),
        ("/api/v1/queue/peek?queue=a&limit=-1", 422, "bad_request", "`limit`: want a whole"),
        ("/api/v1/queue/peek?queue=a&queue=b", 422, "bad_request", "`queue` is given twice"),
        ("/api/v1/queue/peek?q=a", 422, "bad_request", "queue peek has no parameter `q`"),
        ("/api/v1/dead/show?dead_letter=7", 404, "not_found", "there is no dead letter 7"),
    ]:
        found = reader.get(path)
        assert (found.status, found.document["code"]) == (status, code)
        assert found.document["detail"].startswith(detail)
    wrong = writer.ask("POST", "/api/v1/manifest/apply", {"text": "{", "file": "m.json"})
    assert (wrong.status, wrong.document["code"]) == (409, "conflict")
    wrong = writer.ask("POST", "/api/v1/dead/purge", [1])
    assert (wrong.status, wrong.document["code"]) == (422, "bad_request")


def test_a_message_to_a_device_is_what_the_body_says(hub: tuple[Daemon, Api, Api]) -> None:
    """All of it; what belongs elsewhere is refused, and nothing that is sent is ignored."""
    daemon, _, writer = hub
    path = "/api/v1/devices/pump-7/messages"
    document = {"body": '{"open": true}', "priority": 0, "ttl_s": 600, "properties": {"a": "b"}}
    sent = writer.ask("POST", path, {**document, "message_id": "m-1"}).document
    assert (sent["message_id"], sent["waiting"]) == ("m-1", 1)
    [waiting] = daemon.call("device messages", device_id="pump-7")["waiting"]
    assert (waiting["priority"], waiting["size"] > len(document["body"])) == (0, True)
    arguments = ("--json", "--as", "pump-7", "--count", "1")
    heard = daemon.edgehub("listen", *arguments, "devices/pump-7/messages/devicebound/#")
    assert document["body"] in json.loads(heard.stdout).values()
    for method, target, body, said in (
        ("POST", path, {"device_id": "other"}, "in the path"),
        ("POST", f"{path}?body=x", {}, "arguments go into the body"),
        ("POST", path, ["x"], "a JSON object"),
        ("DELETE", path, {"device_id": "pump-7"}, "no body here"),
        ("POST", "/api/v1/table/drift", {"repair": False}, "no body here"),
    ):
        answer = writer.ask(method, target, body)
        assert answer.status == 422, (method, target)
        assert said in str(answer.document)


def test_what_is_changed_is_changed(hub: tuple[Daemon, Api, Api]) -> None:
    """A move, and a reload that changes nothing."""
    daemon, _, writer = hub
    reloaded = ask(writer, "config reload", {})
    assert reloaded["outcome"] == "unchanged"
    device = Device("press-2", daemon.mqtt_port)
    device.publish_raw("devices/press-2/messages/events/", b"three").wait_for_publish(10)
    device.close()
    *others, last = daemon.call("queue peek", queue="upstream")["rows"]
    purged = ask(writer, "queue purge", {"queue": "upstream", "from_offset": last["offset"]})
    assert purged["rows"] == 1
    assert daemon.call("queue peek", queue="upstream")["depth"] == len(others) == 2

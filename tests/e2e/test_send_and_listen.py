"""`edgehub send` and `edgehub listen` as a newcomer uses them, with a hub and its upstream hub."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.command_line import CommandResult, edgehub
from tests.support.daemon import Daemon
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

ROUTES = {
    "schemaVersion": "1.1",
    "routes": {"rest": "FROM /messages/* WHERE NOT is_defined(nobody) INTO $upstream"},
    "storeAndForwardConfiguration": {"timeToLiveSecs": 7200},
}

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Start a hub that collects; for `listen` its own listener is the upstream."""
    port = free_port()
    folder = tmp_path_factory.mktemp("hub")
    (folder / "routes.json").write_text(json.dumps(ROUTES), "utf-8")
    text = 'data_dir = "data"\nmanifest = "routes.json"\n'
    text += f'[mqtt]\nport = {port}\n[log]\nformat = "json"\n'
    with contextlib.closing(Daemon(folder, text).start()) as daemon:
        upstream = f'[upstream]\ntype = "mqtt"\nhost = "127.0.0.1"\nport = {port}\n'
        daemon.config.write_text(text + upstream, "utf-8")
        yield daemon
        assert daemon.stop() == 0


def run(hub: Daemon, *arguments: str, content: bytes = b"") -> CommandResult:
    """Run a command that uses the hub's settings to its end."""
    return edgehub("--config", str(hub.config), *arguments, cwd=hub.folder, stdin=content)


def test_a_message_is_stored_before_send_ends(hub: Daemon) -> None:
    """From an argument or standard input, of a device or a module, with its properties."""
    done = run(hub, "send", "pump-7", '{"bar": 9.1}', "-p", "kind=a b", "-p", "x=1&2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("acknowledged: devices/pump-7/messages/events/kind=a%20b")
    assert run(hub, "send", "pump-7/camera", "-", content=b"\xff\x00").returncode == 0
    first, second = hub.call("queue peek", queue="upstream", payload=True)["rows"][-2:]
    assert (first["device"], first["body"]) == ("pump-7", '{"bar": 9.1}')
    assert first["properties"] == {"kind": "a b", "x": "1&2"}
    assert (second["module"], second["body_base64"]) == ("camera", "/wA=")


@pytest.mark.parametrize(
    ("where", "version"), [((), "3.1.1"), ((), "5"), (("--upstream",), "3.1.1")]
)
def test_listen_prints_what_comes(hub: Daemon, where: tuple[str, ...], version: str) -> None:
    """At the hub, and at the broker that its settings have as upstream."""
    options = ("--mqtt", version, "--json", "--count", "2")
    listener = subprocess.Popen(
        [
            *(sys.executable, "-m", "edgehub", "--config", str(hub.config)),
            *("listen", *where, *options, "te/#"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with listener:
        assert listener.stderr is not None
        assert b"listening at 127.0.0.1" in listener.stderr.readline()
        for content in (b"21.5", b"\xff"):
            topic = "te/device/main///m/temperature"
            done = run(hub, "send", "sensor", "--topic", topic, "-", content=content)
            assert done.returncode == 0, done.stderr
        output, _ = listener.communicate(timeout=30)
    assert listener.returncode == 0
    found = [json.loads(line) for line in output.splitlines()]
    assert [message.get("body") for message in found] == ["21.5", None]
    assert found[1]["body_base64"] == "/w=="
    assert {message["topic"] for message in found} == {topic}


@pytest.mark.parametrize("qos", ["1", "2"])
def test_what_the_hub_refuses_is_no_success(hub: Daemon, qos: str) -> None:
    """The reason code of the acknowledgement, and its reason."""
    for topic, text in (
        ("site/a", "refused: Topic name invalid (0x90): not a topic to publish to"),
        ("devices/other/messages/events/", "refused: Not authorized (0x87): "),
    ):
        done = run(hub, "send", "pump-7", "x", "--qos", qos, "--topic", topic)
        assert (done.returncode, done.stdout) == (1, "")
        assert text in done.stderr


def test_what_no_route_takes_is_no_success(hub: Daemon) -> None:
    """The hub acknowledges and drops it."""
    done = run(hub, "send", "pump-7", "x", "-p", "nobody=wants")
    assert (done.returncode, done.stdout) == (1, "")
    assert "No matching subscribers" in done.stderr
    assert hub.call("status")["unrouted"] == 1


@pytest.mark.parametrize("refusal", [b"", b"\x20\x02\x00\x01"], ids=["closes", "answers"])
async def test_a_server_of_mqtt_3_1_1_takes_what_it_may_drop(hub: Daemon, refusal: bytes) -> None:
    """It has no word for a refusal, so there is another one for its acknowledgement."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connect = await reader.read(100)
        is_5 = connect[8] == 5
        writer.write(refusal if is_5 else b"\x20\x02\x00\x00")
        if not is_5 and (await reader.read(100))[0] >> 4 == 3:
            writer.write(b"\x40\x02\x00\x01")
            await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        arguments = ("send", "d", "x", "--port", str(port), "--topic", "any")
        done = await asyncio.to_thread(run, hub, *arguments)
    assert (done.returncode, done.stdout) == (0, "taken: any\n"), done.stderr


def test_what_cannot_be_done_is_said(hub: Daemon) -> None:
    """Wrong use, a server that does not answer, and a filter that the client may not have."""
    for arguments, code, text in (
        (("send", "a b", "x", "-p", "kind=x"), 2, "is not <device> or <device>/<module>"),
        (("send", "d", "x", "--topic", "te/#"), 2, "a topic has no wildcards"),
        (("send", "d", "x", "--topic", "te/a", "-p", "k=v"), 2, "--topic and --property"),
        (("send", "d", "x", "--port", str(free_port())), 1, "Connection refused: start the hub"),
        (("listen", "a", "--port", str(free_port())), 1, "Connection refused: start the hub"),
        (("listen", "te/#/a"), 2, "must be the whole last level"),
        (("listen", "devices/other/messages/devicebound/#"), 1, "may not subscribe"),
    ):
        done = run(hub, *arguments)
        assert done.returncode == code, (arguments, done.stderr)
        assert text in done.stderr, arguments
        assert "Errno" not in done.stderr, arguments

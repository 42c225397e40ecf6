"""The control socket over a real unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
import stat
import subprocess

import pytest

from edgehub.cli.refusal import CommandError
from edgehub.control.server import CLIENTS_MAX, REQUEST_BYTES_MAX, ControlServer
from edgehub.errors import DaemonUnreachableError, EdgeHubError, StartupError
from tests.support.control import call

LIST = b'{"command": "echo", "arguments": [["a", 1]]}\n'


async def _echo(arguments):
    return dict(arguments)


async def _long_numbers(_arguments):
    return {"number": 2**70, "half": "\ud800"}


async def _refuse(_arguments):
    msg = "no such queue"
    raise EdgeHubError(msg)


async def _break(arguments):
    match arguments["how"]:
        case "fault":
            return {}["nothing"]
        case "answer":
            return {"no": object()}
        case _:
            msg = "no file \udc80"
            raise EdgeHubError(msg)


@pytest.fixture
async def socket_path(tmp_path):
    """Return the socket of a running server."""
    commands = {"echo": _echo, "refuse": _refuse, "break": _break, "long": _long_numbers}
    server = ControlServer(tmp_path / "c.sock", commands)
    await server.open()
    yield tmp_path / "c.sock"
    await server.close()
    assert not (tmp_path / "c.sock").exists()


async def _ask(path, line: bytes) -> dict:
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(line)
    try:
        answer = await reader.readline()
    except ConnectionResetError:
        # The server closed before it had read all.
        answer = b""
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    return json.loads(answer) if answer else {}


async def test_the_end_waits_for_each_command_that_runs(tmp_path):
    """Also where others end before it."""
    begun, go = asyncio.Event(), asyncio.Event()

    async def slow(_arguments):
        begun.set()
        await go.wait()

    server = ControlServer(tmp_path / "c.sock", {"slow": slow})
    await server.open()
    clients = [await asyncio.open_unix_connection(str(tmp_path / "c.sock")) for _ in range(2)]
    clients[0][1].write(b'{"command": "slow"}\n')
    clients[1][1].write(b'{"command": "other"}\n')
    await clients[1][0].readline()
    await begun.wait()
    closing = asyncio.create_task(server.close())
    # The other client's connection has ended when its end is read.
    assert await clients[1][0].read() == b""
    await asyncio.sleep(0)
    assert not closing.done()
    go.set()
    await closing
    for _, writer in clients:
        writer.close()


async def test_a_command_is_answered_and_the_socket_is_private(socket_path):
    """The client's call reaches the command; only the owner may open the socket."""
    assert await asyncio.to_thread(call, socket_path, "echo", a=1) == {"a": 1}
    assert stat.S_IMODE(socket_path.stat().st_mode) == 0o600


async def test_errors_of_a_command_reach_the_caller(socket_path):
    """A refusal is an error with the hub's own words."""
    with pytest.raises(CommandError, match="no such queue"):
        await asyncio.to_thread(call, socket_path, "refuse")
    with pytest.raises(
        CommandError, match=r"unknown command 'ech' \(known: break, echo, long, refuse\)"
    ):
        await asyncio.to_thread(call, socket_path, "ech")


async def test_what_devices_may_have_sent_is_returned_whole(socket_path):
    """Numbers of more than 64 bits and halves of characters, as over HTTP."""
    answer = await asyncio.to_thread(call, socket_path, "long")
    assert answer == {"number": 2**70, "half": "\ud800"}


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("fault", "the hub failed over 'break': KeyError\\('nothing'\\)"),
        ("answer", "the hub failed over 'break': TypeError"),
        ("text", "no file \\?"),
    ],
)
async def test_a_fault_in_a_command_costs_only_its_answer(socket_path, how, said, capsys):
    """Whatever goes wrong inside is answered and logged; the same connection goes on."""
    reader, writer = await asyncio.open_unix_connection(str(socket_path))
    for _ in range(2):
        request = {"command": "break", "arguments": {"how": how}}
        writer.write(json.dumps(request).encode() + b"\n")
        answer = json.loads(await reader.readline())
        assert answer["ok"] is False
        assert re.match(said, answer["problem"]["detail"])
    writer.write(b'{"command": "echo", "arguments": {"a": 1}}\n')
    assert json.loads(await reader.readline()) == {
        "ok": True,
        "result": {"a": 1},
        "settings": "",
    }
    writer.close()
    await writer.wait_closed()
    assert capsys.readouterr().out.count("control.command_failed") == (0 if how == "text" else 2)


@pytest.mark.parametrize("line", [b"{\n", b"[]\n", b"5\n", b'{"command": 7}\n', b"\xff\n", LIST])
async def test_a_bad_request_is_answered_and_disturbs_nothing(socket_path, line):
    """Junk gets an error; the next client is served."""
    assert (await _ask(socket_path, line))["ok"] is False
    assert await asyncio.to_thread(call, socket_path, "echo") == {}


async def test_an_endless_request_is_cut(socket_path):
    """A line over the limit ends its connection, nothing else."""
    assert await _ask(socket_path, b"x" * (REQUEST_BYTES_MAX * 2 + 2)) == {}
    assert await asyncio.to_thread(call, socket_path, "echo") == {}


async def test_a_second_server_on_the_socket_is_refused(socket_path):
    """Two daemons on one folder: the second says so."""
    with pytest.raises(StartupError, match="another process serves"):
        await ControlServer(socket_path, {}).open()


async def test_the_socket_file_of_a_killed_daemon_is_replaced(tmp_path):
    """A file that nobody answers does not stop the start."""
    path = tmp_path / "c.sock"
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))
    server = ControlServer(path, {"echo": _echo})
    await server.open()
    assert await asyncio.to_thread(call, path, "echo") == {}
    await server.close()


async def test_a_file_in_the_way_is_kept(tmp_path):
    """A path that names something else by mistake is refused, and nothing is deleted."""
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    with pytest.raises(StartupError, match="is no socket"):
        await ControlServer(path, {}).open()
    assert path.read_text() == "mine"


async def test_too_many_clients_are_reported(socket_path):
    """One more than there are places hears why, and gets in once a place is free."""
    others = [await asyncio.open_unix_connection(str(socket_path)) for _ in range(CLIENTS_MAX)]
    with pytest.raises(CommandError, match="others use the control socket"):
        await asyncio.to_thread(call, socket_path, "echo")
    for _, writer in others:
        writer.close()
        await writer.wait_closed()
    assert await asyncio.to_thread(call, socket_path, "echo") == {}


async def test_a_silent_client_loses_its_place(tmp_path):
    """Who asks nothing is let go, so that forgotten connections do not lock an operator out."""
    server = ControlServer(tmp_path / "c.sock", {}, silence_max_s=0.05)
    await server.open()
    reader, writer = await asyncio.open_unix_connection(str(tmp_path / "c.sock"))
    assert await reader.read() == b""
    writer.close()
    await server.close()


async def test_a_client_that_does_not_read_does_not_delay_the_end(tmp_path):
    """Close cuts off what waits for a reader that never comes."""
    answering = asyncio.Event()

    async def long_answer(_arguments):
        answering.set()
        return "x" * 2_000_000

    server = ControlServer(tmp_path / "c.sock", {"long": long_answer})
    await server.open()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "c.sock"))
        client.sendall(b'{"command": "long"}\n')
        await answering.wait()
        await asyncio.sleep(0)
        await server.close()


async def test_a_command_that_outlives_the_server_is_not_answered(tmp_path, caplog):
    """What is being worked out when the hub ends has nowhere to go, and nobody complains."""
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_arguments):
        asked.set()
        await go_on.wait()
        return 1

    server = ControlServer(tmp_path / "c.sock", {"slow": slow})
    await server.open()
    _, writer = await asyncio.open_unix_connection(str(tmp_path / "c.sock"))
    writer.write(b'{"command": "slow"}\n')
    await asked.wait()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.close())
        await asyncio.sleep(0)
        go_on.set()
    writer.close()
    assert not caplog.records


async def test_a_socket_may_lie_deep(tmp_path):
    """The kernel's limit on socket paths does not limit where the state may lie."""
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    path = folder / "control.sock"
    server = ControlServer(path, {"echo": _echo})
    await server.open()
    try:
        assert await asyncio.to_thread(call, path, "echo", a=1) == {"a": 1}
    finally:
        await server.close()
    assert not path.exists()


async def test_too_long_a_name_says_what_to_set(tmp_path):
    """The kernel's limit on the name itself becomes a clear error."""
    with pytest.raises(StartupError, match="control_socket"):
        await ControlServer(tmp_path / ("x" * 120), {}).open()


async def test_half_an_answer_counts_as_none(tmp_path):
    """A hub that ends while it answers is reported as away, not as a broken program."""

    async def cut_off(reader, writer):
        await reader.readline()
        writer.write(b'{"ok": true, "res')
        writer.close()

    async with await asyncio.start_unix_server(cut_off, str(tmp_path / "c.sock")):
        with pytest.raises(DaemonUnreachableError, match="without a whole answer"):
            await asyncio.to_thread(call, tmp_path / "c.sock", "status")


def test_no_daemon_is_said_with_a_hint(tmp_path):
    """Without a hub the call fails at once."""
    with pytest.raises(DaemonUnreachableError, match="is it running"):
        call(tmp_path / "none.sock", "status")


@pytest.fixture
def volume(tmp_path):
    """Mount a volume on which no file can be made."""
    options = ["-o", "size=1m,nr_inodes=1"]
    subprocess.run(["mount", "-t", "tmpfs", *options, "tmpfs", tmp_path], check=True)
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
async def test_a_volume_without_inodes_is_distinguished_from_want_of_rights(volume):
    """The hint is about what is missing."""
    with pytest.raises(StartupError, match="free space or inodes"):
        await ControlServer(volume / "c.sock", {}).open()

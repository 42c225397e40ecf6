"""Decoders in their process, on the real engine: results, failures, and what they cost others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from edgehub.clock import SystemClock
from edgehub.decoders.decoders import DECODE_TIMEOUT_S, Decoders
from edgehub.decoders.limits import DECODE_UPLINK
from edgehub.decoders.scripts import WORKER, DecoderError, DecoderScript, call_once, read_scripts
from edgehub.telemetry.log_limit import LogLimit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

pytestmark = pytest.mark.integration

WIND = """
var directions = ["N", "E", "S", "W"];
function decodeUplink(input) {
  switch (input.fPort) {
    case 1:
      return {
        data: { direction: directions[input.bytes[0]], speed: input.bytes[1] },
        warnings: input.bytes[1] > 100 ? ["gale"] : []
      };
    default:
      return { errors: ["unknown FPort"] };
  }
}
"""
MODERN = """
const cut = ({ bytes: [first, ...rest] }) => ({ first, rest, hex: `0x${first.toString(16)}` });
class Reading { #kind = "t"; get kind() { return this.#kind; } }
function decodeUplink(input) {
  console.log("no one reads this");
  return { data: { ...cut(input), kind: new Reading().kind, at: input.recvTime.toISOString() } };
}
"""
HANGS = "function decodeUplink(input) { while (true) {} }"
FAILURES = [
    ("throw new Error('no such frame')", "Error: no such frame (in decodeUplink)"),
    ("throw 'no'", "no"),
    ("return input.bytes[0].x.y", "cannot read property 'y' of undefined"),
    ("return decodeUplink(input) + 1", "Maximum call stack size exceeded"),
    ("return 5", "returned no object"),
    ("return", "returned no object"),
    ("return {}", "neither an object as data nor errors"),
    ("return { data: [1] }", "neither an object as data nor errors"),
    ("return { errors: ['a', 5] }", "a; 5"),
    ("return { errors: 'a' }", "errors is no list"),
    ("const d = {}; d.d = d; return { data: d }", "circular reference"),
    ("return { data: { n: 1n } }", "BigInt"),
    ("return { data: { t: 'x'.repeat(40000) } }", "more than 32768 bytes"),
    ("return { data: { t: '\\ud800' } }", "not Unicode"),
    ("Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)", "cannot block"),
    ("return { data: { x: call_python('dukpy.load_module', '/etc/passwd') } }", "open files"),
    ("return { data: { n: new Uint8Array(2 ** 28) } }", "out of memory"),
    ("while (true) {}", "more than"),
    ("return { data: { r: /(a+)+$/.test('a'.repeat(50) + 'b') } }", "more than"),
]
RECEIVED_MS = 1_795_950_000_000
GIVEN = {"bytes": [1, 32], "fPort": 1, "recvTime": RECEIVED_MS}


def scripts(**sources: str) -> dict[str, DecoderScript]:
    """Return scripts by name."""
    return {
        name: DecoderScript(file=f"{name}.js", source=source) for name, source in sources.items()
    }


@contextlib.asynccontextmanager
async def decoding(found: Mapping[str, DecoderScript]) -> AsyncIterator[Decoders]:
    """Run decoders whose process is ready."""
    decoders = Decoders({**found, "ready": scripts(ready=WIND)["ready"]}, *_clock())
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(decoders.run())
        await ready(decoders)
        decoders.counts.clear()
        yield decoders
        running.cancel()


def _clock() -> tuple[SystemClock, LogLimit]:
    return SystemClock(), LogLimit(SystemClock())


async def ready(decoders: Decoders) -> None:
    """Wait for the process, which starts in a fraction of a second."""
    async with asyncio.timeout(10):
        while True:
            with contextlib.suppress(DecoderError):
                await decoders.decode("ready", b"\x00\x00", 1, RECEIVED_MS)
                return


async def failure(decoders: Decoders, name: str) -> tuple[str, str]:
    """Decode a payload that is not decoded, in time; returns kind and reason."""
    began_s = SystemClock().monotonic()
    with pytest.raises(DecoderError) as caught:
        await decoders.decode(name, b"\x01", 1, RECEIVED_MS)
    assert SystemClock().monotonic() - began_s < 3 * DECODE_TIMEOUT_S
    return caught.value.kind, str(caught.value)


async def cause(decoders: Decoders, name: str) -> tuple[str, str]:
    """Return the first failure that is known to be the script's; a busy machine takes longer."""
    while True:
        kind, reason = await failure(decoders, name)
        if kind != "timed_out":
            return kind, reason


ENCODER = """
function decodeUplink(input) { return { data: {} } }
function encodeDownlink(input) {
  const { open, result } = input.data;
  if (result) return result;
  if (typeof open !== "boolean") return { errors: ["open is no boolean"] };
  return { bytes: [1, open ? 255 : 0], fPort: input.fPort || 10, warnings: ["slow valve"] };
}
"""


async def test_messages_to_devices_are_encoded() -> None:
    """By encodeDownlink of TS013, with the port that the sender asks for, if it does."""
    async with decoding(scripts(valve=ENCODER, wind=WIND)) as decoders:
        encoded = await decoders.encode("valve", {"open": True}, None)
        assert (encoded.payload, encoded.f_port) == (b"\x01\xff", 10)
        assert (await decoders.encode("valve", {"open": False}, 7)).f_port == 7
        assert decoders.counts == {"encoded": 2}
        assert decoders.warnings() == []


@pytest.mark.parametrize(
    ("decoder", "data", "reason"),
    [
        ("valve", {"open": 1}, "open is no boolean"),
        ("valve", {"result": 5}, "encodeDownlink returned no object"),
        ("valve", {"result": {"fPort": 1}}, "neither a list of bytes nor errors"),
        ("valve", {"result": {"bytes": [1, 256]}}, "neither a list of bytes nor errors"),
        ("valve", {"result": {"bytes": [0.5]}}, "neither a list of bytes nor errors"),
        ("valve", {"result": {"bytes": "AQ=="}}, "neither a list of bytes nor errors"),
        ("wind", {"open": True}, "it has no function encodeDownlink"),
    ],
)
async def test_a_message_that_is_not_encoded_says_why(
    decoder: str, data: dict[str, object], reason: str
) -> None:
    """The decoder still decodes."""
    async with decoding(scripts(valve=ENCODER, wind=WIND)) as decoders:
        with pytest.raises(DecoderError, match=reason):
            await decoders.encode(decoder, data, None)
        assert decoders.counts == {"not_encoded": 1}
        assert decoders.warnings() == []


async def test_the_example_of_a_wind_sensor() -> None:
    """Data, warnings and errors of TS013."""
    async with decoding(scripts(wind=WIND)) as decoders:
        calm = await decoders.decode("wind", b"\x01\x20", 1, RECEIVED_MS)
        assert (calm.data, calm.warnings) == ({"direction": "E", "speed": 32}, [])
        gale = await decoders.decode("wind", b"\x03\x78", 1, RECEIVED_MS)
        assert (gale.data, gale.warnings) == ({"direction": "W", "speed": 120}, ["gale"])
        with pytest.raises(DecoderError, match="unknown FPort"):
            await decoders.decode("wind", b"", 2, RECEIVED_MS)
        assert decoders.counts == {"decoded": 2, "failed": 1}
        assert decoders.warnings() == [
            "decoder wind fails: unknown FPort; messages have the raw payload alone"
        ]
        await decoders.decode("wind", b"\x00\x00", 1, RECEIVED_MS)
        assert decoders.warnings() == []


def test_scripts_of_today() -> None:
    """The engine knows the language of current scripts; a console is there and writes nothing."""
    assert call_once(scripts(m=MODERN)["m"], DECODE_UPLINK, GIVEN)["data"] == {
        "first": 1,
        "rest": [32],
        "hex": "0x1",
        "kind": "t",
        "at": "2026-11-29T11:00:00.000Z",
    }


async def test_what_fails_is_said_and_others_go_on() -> None:
    """Thrown, hung, out of memory or junk: a reason, in time, and the next payload is decoded."""
    bodies = {f"s{number}": body for number, (body, _) in enumerate(FAILURES)}
    found = {name: f"function decodeUplink(input) {{ {body} }}" for name, body in bodies.items()}
    async with decoding(scripts(**found)) as decoders:
        for name, (_, reason) in zip(bodies, FAILURES, strict=True):
            kind, said = await cause(decoders, name)
            assert kind in {"failed", "ended", "set_aside"}, bodies[name]
            assert reason in said, bodies[name]
            await ready(decoders)


async def test_scripts_have_nothing_of_the_host() -> None:
    """Neither its environment nor modules."""
    body = "return { data: { all: typeof process + typeof require } }"
    async with decoding(scripts(s=f"function decodeUplink(input) {{ {body} }}")) as decoders:
        decoded = await decoders.decode("s", b"", 1, RECEIVED_MS)
        assert decoded.data == {"all": "undefinedundefined"}


@pytest.mark.parametrize("body", ["while (true) {}", "new Uint8Array(2 ** 28)"])
async def test_a_script_that_ends_its_process_is_not_called_again_for_a_while(body: str) -> None:
    """Its payloads fail at once, so they hold up neither their devices nor other decoders."""
    hangs = f"function decodeUplink(input) {{ {body} }}"
    async with decoding(scripts(hangs=hangs, wind=WIND)) as decoders:
        await cause(decoders, "hangs")
        for _ in range(3):
            assert (await failure(decoders, "hangs"))[0] == "set_aside"
        await ready(decoders)
        assert (await decoders.decode("wind", b"\x01\x20", 1, RECEIVED_MS)).data["speed"] == 32
        decoders.replace(scripts(hangs=WIND))
        assert (await decoders.decode("hangs", b"\x01\x20", 1, RECEIVED_MS)).data["speed"] == 32
        assert (await failure(decoders, "wind"))[0] == "unknown"


async def test_a_script_that_is_replaced_is_loaded_again() -> None:
    """The next payload is decoded by the new one, without another process."""
    async with decoding(scripts(s=WIND)) as decoders:
        assert (await decoders.decode("s", b"\x01\x20", 1, RECEIVED_MS)).data["speed"] == 32
        decoders.replace(scripts(s=WIND.replace("speed", "knots")))
        assert (await decoders.decode("s", b"\x01\x20", 1, RECEIVED_MS)).data["knots"] == 32


async def test_payloads_beyond_those_that_may_wait_fail_at_once() -> None:
    """And those that wait behind a hanging one fail in time."""
    async with decoding(scripts(hangs=HANGS)) as decoders:
        calls = [failure(decoders, "hangs") for _ in range(100)]
        kinds = [kind for kind, _ in await asyncio.gather(*calls)]
        assert kinds.count("busy") == 100 - 64
        assert set(kinds) <= {"busy", "ended", "timed_out"}


@pytest.mark.parametrize(
    "payload",
    [b"", b'{"name": "s", "function": "decodeUplink", "input": {"bytes": [], "fPort": 1}}\n'],
)
def test_the_process_does_not_outlive_a_killed_hub(payload: bytes) -> None:
    """It ends with its standard input, and while a script hangs by its limit."""
    with subprocess.Popen(WORKER, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdin is not None
        load = {"name": "s", "source": HANGS}
        worker.stdin.write(json.dumps(load).encode() + b"\n" + payload)
        worker.stdin.close()
        code = worker.wait(10)
    assert code in ({0} if not payload else {-signal.SIGPROF, -signal.SIGALRM})


def test_faults_of_scripts_have_a_place(tmp_path: Path) -> None:
    """All of them at once, with file and line; other files are left alone."""
    texts = {
        "a.js": "function decodeUplink(input) {\n  return { data:\n}\n",
        "b.js": "function decode(input) {}",
        "c.js": WIND,
        "d.js": "\xff",
        "e f.js": WIND,
        "early.js": "function decodeUplink(input) {\n  return {\n",
        "readme.txt": "none",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text, "latin-1")
    (tmp_path / "g.js").mkdir()
    found, faults = read_scripts("lora.decoder_folder", tmp_path)
    assert {fault.key for fault in faults} == {"lora.decoder_folder"}
    assert sorted(fault.reason.removeprefix(f"{tmp_path}/") for fault in faults) == [
        "a.js, line 3: SyntaxError: unexpected token in expression: '}'",
        "b.js: it has no function decodeUplink(input)",
        "d.js: no text in UTF-8: invalid start byte",
        "e f.js: want a name of 1 to 64 letters, digits and . _ -, the first a letter or digit",
        "early.js, line 2: SyntaxError: invalid property name",
        "g.js: is no regular file",
    ]
    assert found["c"].source == WIND


@pytest.mark.parametrize("top_level", ["while (true) {}", "new Uint8Array(2 ** 28);"])
def test_a_script_that_does_not_end_is_a_fault(tmp_path: Path, top_level: str) -> None:
    """Also where it is its top level that hangs, or fills the memory."""
    (tmp_path / "s.js").write_text(f"{top_level}\n{WIND}", "utf-8")
    _, [fault] = read_scripts("lora.decoder_folder", tmp_path)
    assert fault.reason.startswith(f"{tmp_path}/s.js: ")
    assert "memory" in fault.reason


def test_a_folder_that_is_not_there_is_a_fault(tmp_path: Path) -> None:
    """It is named."""
    _, [fault] = read_scripts("lora.decoder_folder", tmp_path / "none")
    assert fault.reason == f"{tmp_path}/none: No such file or directory"

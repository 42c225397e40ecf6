"""The decoders of a running hub, and the one process in which they run.

Owns that process and the payloads that wait for it. Invariants: a payload is decoded or failed
within `DECODE_TIMEOUT_S`, whatever a script does; a script that ended the process is not called
again for a while, so that others can go on; a process that ends is started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Final

import orjson
from msgspec import Struct, field

from edgehub.decoders.limits import (
    COMPUTING_S,
    DECODE_UPLINK,
    ENCODE_DOWNLINK,
    OUT_OF_MEMORY,
    RESULT_BYTES_MAX,
    WAITING_S,
)
from edgehub.decoders.scripts import WORKER, DecoderError

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Mapping

    from edgehub.clock import Clock
    from edgehub.decoders.scripts import DecoderScript
    from edgehub.telemetry.log_limit import LogLimit

DECODE_TIMEOUT_S: Final = 0.25
"""Of a payload, with the time that it waits for others: its device listens after a second."""
WAITING_MAX: Final = 64
FAILING_MAX: Final = 20
"""Decoders that are warned of; devices may name any number that there are not."""
SET_ASIDE_S: Final = 60.0
RESTART_S: Final = (1.0, 60.0)
"""Pauses after a start that failed, from the first one to the longest."""


class Decoded(Struct, frozen=True, kw_only=True):
    """What a decoder returned."""

    data: dict[str, Any]
    warnings: list[str]


class Encoded(Struct, frozen=True, kw_only=True):
    """What a decoder made of a message to its device.

    Attributes:
        payload: Bytes for the device.
        f_port: Port, None = it does not say.
    """

    payload: bytes
    f_port: int | None


class _Call(Struct, kw_only=True, eq=False):
    name: str
    script: DecoderScript
    function: str
    given: dict[str, Any]
    result: asyncio.Future[dict[str, Any]]

    def fail(self, kind: str, reason: str) -> None:
        if not self.result.done():
            self.result.set_exception(DecoderError(kind, reason))


class _EndedError(Exception):
    """The process has ended."""


class _Worker(Struct):
    """A process, and the scripts that it has loaded, by the names of decoders."""

    process: Process
    loaded: dict[str, DecoderScript] = field(default_factory=dict)

    async def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and return the answer.

        Raises:
            _EndedError: There is none.
        """
        stdin = self.process.stdin
        assert stdin is not None
        try:
            stdin.write(orjson.dumps(request) + b"\n")
            await stdin.drain()
        except ConnectionError as error:
            raise _EndedError from error
        return await self.answer()

    async def answer(self) -> dict[str, Any]:
        """Wait for an answer.

        Raises:
            _EndedError: There is none.
        """
        stdout = self.process.stdout
        assert stdout is not None
        try:
            line = await stdout.readline()
            if not line.endswith(b"\n"):
                raise _EndedError
            answer: dict[str, Any] = orjson.loads(line)
        except orjson.JSONDecodeError:
            # A half character is no text, and nothing upstream takes it.
            return {"error": "its result has texts that are not Unicode"}
        except ValueError as error:  # longer than any answer
            raise _EndedError from error
        return answer


class Decoders:
    """Decodes payloads.

    Args:
        scripts: By name.
        clock: For pauses.
        log: Lines at a bounded rate.

    Attributes:
        is_ready: Whether the process has started.
        counts: Payloads by what became of them: `decoded`, or the kind of the error; `encoded`,
            `not_encoded`.
    """

    def __init__(self, scripts: Mapping[str, DecoderScript], clock: Clock, log: LogLimit) -> None:
        self._scripts = scripts
        self._clock = clock
        self._log = log
        self._calls: deque[_Call] = deque()
        self._changed = asyncio.Event()
        """Set by each payload, and by other scripts."""
        self._aside: dict[str, tuple[float, str]] = {}
        """Until when scripts that ended the process are not called, and why it ended, by name."""
        self._failing: dict[str, str] = {}
        """Why the last call of a decoder failed, by its name."""
        self.is_ready = False
        self.counts: Counter[str] = Counter()

    def replace(self, scripts: Mapping[str, DecoderScript]) -> None:
        """Put other scripts in force; unchanged ones keep what they remember."""
        if scripts != self._scripts:
            self._scripts = scripts
            self._changed.set()
            self._aside.clear()
            self._failing.clear()

    def warnings(self) -> list[str]:
        """List decoders whose last payload was not decoded."""
        return [
            f"decoder {name} fails: {reason}; messages have the raw payload alone"
            for name, reason in self._failing.items()
        ]

    async def decode(self, name: str, payload: bytes, f_port: int, received_ms: int) -> Decoded:
        """Decode a payload.

        Args:
            name: Of the decoder.
            payload: Bytes of the frame, decrypted.
            f_port: Its port.
            received_ms: When it came, in milliseconds of Unix time.

        Raises:
            DecoderError: It was not decoded.
        """
        given = {"bytes": list(payload), "fPort": f_port, "recvTime": received_ms}
        try:
            answer = await self._call(name, DECODE_UPLINK, given)
        except DecoderError as error:
            self.counts[error.kind] += 1
            if name in self._failing or len(self._failing) < FAILING_MAX:
                self._failing[name] = str(error)
            self._log.warning("lora.payload_not_decoded", decoder=name, reason=str(error))
            raise
        self.counts["decoded"] += 1
        self._failing.pop(name, None)
        return Decoded(data=answer["data"], warnings=answer["warnings"])

    async def encode(self, name: str, data: Mapping[str, Any], f_port: int | None) -> Encoded:
        """Encode a message to a device.

        Args:
            name: Of its decoder.
            data: What the message says.
            f_port: Port that its sender asks for, None = none.

        Raises:
            DecoderError: It was not encoded.
        """
        given = {"data": data} if f_port is None else {"data": data, "fPort": f_port}
        try:
            answer = await self._call(name, ENCODE_DOWNLINK, given)
        except DecoderError as error:
            self.counts["not_encoded"] += 1
            self._log.warning("lora.message_not_encoded", decoder=name, reason=str(error))
            raise
        self.counts["encoded"] += 1
        if answer["warnings"]:
            reason = "; ".join(answer["warnings"])
            self._log.warning("lora.message_warnings", decoder=name, reason=reason)
        return Encoded(payload=bytes(answer["bytes"]), f_port=answer["fPort"])

    async def _call(self, name: str, function: str, given: dict[str, Any]) -> dict[str, Any]:
        script = self._scripts.get(name)
        if script is None:
            raise DecoderError("unknown", f"lora.decoder_folder has no {f'{name}.js'!a}")
        until_s, why = self._aside.get(name, (0.0, ""))
        if self._clock.monotonic() < until_s:
            raise DecoderError("set_aside", f"it is not called for {SET_ASIDE_S:g} s: {why}")
        if len(self._calls) >= WAITING_MAX:
            raise DecoderError("busy", f"{WAITING_MAX} payloads wait for their decoders")
        result: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._calls.append(
            _Call(name=name, script=script, function=function, given=given, result=result)
        )
        self._changed.set()
        try:
            async with asyncio.timeout(DECODE_TIMEOUT_S):
                return await result
        except TimeoutError as error:
            raise DecoderError("timed_out", f"no result within {DECODE_TIMEOUT_S:g} s") from error

    async def run(self) -> None:
        """Keep a process running where there are scripts, and give it payloads, until cancelled."""
        pause_s, longest_s = RESTART_S
        while True:
            while not self._scripts:
                self._changed.clear()
                await self._changed.wait()
            try:
                process = await asyncio.create_subprocess_exec(
                    *WORKER,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.DEVNULL,
                    limit=2 * RESULT_BYTES_MAX,
                )
                try:
                    was_ready = await self._serve(_Worker(process))
                finally:
                    self.is_ready = False
                    await _end(process)
                reason = _words(process.returncode)
            except OSError as error:
                was_ready, reason = False, error.strerror or str(error)
            if was_ready:
                pause_s = RESTART_S[0]
                continue
            self._log.error("lora.decoders_not_started", reason=reason, retry_s=pause_s)
            await self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, longest_s)

    async def _serve(self, worker: _Worker) -> bool:
        """Work until the process ends; returns whether it was ready."""
        try:
            await worker.answer()
        except _EndedError:
            return False
        self.is_ready = True
        while await self._carry_out(await self._next(), worker):
            pass
        return True

    async def _next(self) -> _Call:
        while True:
            while self._calls:
                call = self._calls.popleft()
                if not call.result.done():
                    return call
            self._changed.clear()
            await self._changed.wait()

    async def _carry_out(self, call: _Call, worker: _Worker) -> bool:
        """Decode a payload; returns whether the process goes on."""
        name, script = call.name, call.script
        try:
            answer: dict[str, Any] = {}
            if worker.loaded.get(name) is not script:
                worker.loaded.pop(name, None)
                answer = await worker.ask({"name": name, "source": script.source})
                if "error" not in answer:
                    worker.loaded[name] = script
            if "error" not in answer:
                answer = await worker.ask(
                    {"name": name, "function": call.function, "input": call.given}
                )
        except _EndedError:
            await _end(worker.process)
            self._set_aside(call, _words(worker.process.returncode))
            return False
        if answer.get("error") == OUT_OF_MEMORY:
            self._set_aside(call, OUT_OF_MEMORY)
            return False
        if "error" in answer:
            call.fail("failed", answer["error"])
        elif not call.result.done():
            call.result.set_result(answer)
        return True

    def _set_aside(self, call: _Call, why: str) -> None:
        self._aside[call.name] = self._clock.monotonic() + SET_ASIDE_S, why
        call.fail("ended", why)


async def _end(process: Process) -> None:
    assert process.stdout is not None
    if process.returncode is None:
        # One whose output has ended ends by itself; to kill it would hide what ended it.
        if not process.stdout.at_eof():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await asyncio.shield(process.wait())


def _words(code: int | None) -> str:
    match code:
        case None:
            return "it runs"
        case _ if code == -signal.SIGPROF:
            return f"it computes for more than {COMPUTING_S:g} s"
        case _ if code == -signal.SIGALRM:
            return f"it takes more than {WAITING_S:g} s"
        case _ if code < 0:
            return f"its process ended by signal {-code}"
        case _:
            return f"its process ended with code {code}"

"""The process in which scripts run: `python -m edgehub.decoders.worker`.

Standard input has a JSON object a line, standard output its answer. Owns one JavaScript interpreter
for each script. Invariants: a call that computes or waits for too long ends the process, by a
signal that no script can keep; memory is bounded; a script has neither files, modules, environment
nor Python. Nothing else of the hub is imported: the process starts quickly and stays small.

Source: LoRa Alliance TS013, payload codec API.
"""

from __future__ import annotations

import json
import re
import resource
import signal
import sys
from typing import TYPE_CHECKING, Any, Final

import dukpy  # type: ignore[import-untyped]

from edgehub.decoders.limits import (
    COMPUTING_S,
    DECODE_UPLINK,
    ENCODE_DOWNLINK,
    MEMORY_BYTES,
    OUT_OF_MEMORY,
    RESULT_BYTES_MAX,
    WAITING_S,
)

if TYPE_CHECKING:
    from collections.abc import Callable

BYTE_MAX: Final = 255
TEXTS_MAX: Final = 20
TEXT_CHARS_MAX: Final = 200

# What dukpy gives scripts of its own, and a console that writes nothing.
_PREPARE: Final = """
for (const name of ["call_python", "process", "require", "_dukpy_cjs_source_compiles",
                    "_dukpy_eval_cjs_source"]) {
  delete globalThis[name];
}
globalThis.console = { debug() {}, error() {}, info() {}, log() {}, warn() {} };
null;
"""
_HAS: Final = "typeof {function} === 'function'"
_CALL: Final = """
(function (input) {{
  if ('recvTime' in input) input.recvTime = new Date(input.recvTime);
  return {function}(input);
}})(dukpy.input);
"""
_PLACE: Final = re.compile(r"at <dukpy>:(\d+)")
"""Of a syntax error; of others the engine has the line on which their function begins."""
_FUNCTION: Final = re.compile(r"at (\w+) \(<dukpy>")
_OPEN_FILES: Final = 3
"""Of scripts: the standard streams are open, and nothing else can be."""
_OPEN_FILES_PREPARING: Final = 32


class ScriptError(Exception):
    """A script did not return a result; the text says why.

    Attributes:
        line: Of a syntax error, in the script; None = it is none.
    """

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.line = line


class Scripts:
    """The scripts that were loaded."""

    def __init__(self) -> None:
        self._interpreters: dict[str, dukpy.JSInterpreter] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out a request; the answer of one that fails has an `error`."""
        try:
            if "source" in request:
                self._load(request["name"], request["source"])
                return {}
            return self._call(request["name"], request["function"], request["input"])
        except ScriptError as error:
            return {"error": str(error), "line": error.line}

    def _load(self, name: str, source: str) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES_PREPARING,) * 2)
        interpreter = dukpy.JSInterpreter()
        interpreter.evaljs(_PREPARE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES, _OPEN_FILES_PREPARING))
        try:
            _run(lambda: interpreter.evaljs(f"{source}\n;null"))
        except ScriptError as error:
            if error.line is not None:
                # One that ends too early is found behind its end.
                error.line = min(error.line, len(source.splitlines()))
            raise
        _check_has(interpreter, DECODE_UPLINK)
        self._interpreters[name] = interpreter

    def _call(self, name: str, function: str, given: dict[str, Any]) -> dict[str, Any]:
        interpreter = self._interpreters.get(name)
        if interpreter is None:
            raise ScriptError("it is not loaded")
        if function != DECODE_UPLINK:
            _check_has(interpreter, function)
        source = _CALL.format(function=function)
        result = _run(lambda: interpreter.evaljs(source, input=given))
        if not isinstance(result, dict):
            raise ScriptError(f"{function} returned no object")
        if errors := _texts(result, "errors"):
            raise ScriptError("; ".join(errors))
        warnings = {"warnings": _texts(result, "warnings")}
        if function == ENCODE_DOWNLINK:
            return {"bytes": _bytes(result), "fPort": result.get("fPort"), **warnings}
        data = result.get("data")
        if not isinstance(data, dict):
            raise ScriptError(f"{function} returned neither an object as data nor errors")
        return {"data": data, **warnings}


def _check_has(interpreter: dukpy.JSInterpreter, function: str) -> None:
    if not interpreter.evaljs(_HAS.format(function=function)):
        raise ScriptError(f"it has no function {function}(input)")


def _bytes(result: dict[str, Any]) -> list[int]:
    found = result.get("bytes")
    if not isinstance(found, list) or not all(
        type(each) is int and 0 <= each <= BYTE_MAX for each in found
    ):
        raise ScriptError("encodeDownlink returned neither a list of bytes nor errors")
    return found


def _run(call: Callable[[], Any]) -> Any:
    signal.setitimer(signal.ITIMER_PROF, COMPUTING_S)
    signal.setitimer(signal.ITIMER_REAL, WAITING_S)
    try:
        return call()
    except dukpy.JSRuntimeError as error:
        reason, _, trace = str(error).partition("\n")
        text = reason.removeprefix("InternalError: ")[:TEXT_CHARS_MAX]
        place, function = _PLACE.search(trace), _FUNCTION.search(trace)
        where = f" (in {function[1]})" if function and text != OUT_OF_MEMORY else ""
        raise ScriptError(f"{text}{where}", int(place[1]) if place else None) from error
    except (ValueError, RecursionError) as error:
        raise ScriptError(f"its result is no JSON: {error}"[:TEXT_CHARS_MAX]) from error
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def _texts(result: dict[str, Any], name: str) -> list[str]:
    found = result.get(name) or []
    if not isinstance(found, list):
        raise ScriptError(f"{name} is no list of texts")
    return [str(each)[:TEXT_CHARS_MAX] for each in found[:TEXTS_MAX]]


def _line_of(answer: dict[str, Any]) -> bytes:
    try:
        line = json.dumps(answer).encode()
    except RecursionError:
        return b'{"error": "its result is nested too deeply"}\n'
    if len(line) > RESULT_BYTES_MAX:
        return b'{"error": "its result has more than %d bytes"}\n' % RESULT_BYTES_MAX
    return line + b"\n"


def _limit() -> None:
    with open("/proc/self/statm", encoding="ascii") as statm:  # noqa: PTH123 - what is imported counts
        present = int(statm.read().split()[0]) * resource.getpagesize()
    for limit, most in (
        (resource.RLIMIT_AS, present + MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (most, most))


def main() -> None:
    """Answer requests until standard input ends, or memory does."""
    # Of a terminal, for the hub, which still needs this process while it drains.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _limit()
    scripts = Scripts()
    sys.stdout.buffer.write(b"{}\n")
    sys.stdout.buffer.flush()
    for line in sys.stdin.buffer:
        answer = scripts.answer(json.loads(line))
        sys.stdout.buffer.write(_line_of(answer))
        sys.stdout.buffer.flush()
        if answer.get("error") == OUT_OF_MEMORY:
            return  # what fills it may be kept by a script


if __name__ == "__main__":
    main()

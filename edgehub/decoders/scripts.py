"""Scripts as settings name them: read, and checked by the process that will run them.

Blocks on the disk and on that process.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from edgehub.errors import ConfigError, EdgeHubError, extra_hint
from edgehub.lora.device import DECODER_NAME, DECODER_NAME_RULE
from edgehub.storage.regular_file import read_regular

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

WORKER: Final = (sys.executable, "-m", "edgehub.decoders.worker")
SCRIPT_BYTES_MAX: Final = 256 * 1024
_ENDED: Final = "it takes too much time or memory"
CHECK_TIMEOUT_S: Final = 30.0
"""Of the check of all scripts: the process has to start on a slow, busy machine."""


class DecoderScript(Struct, frozen=True, kw_only=True):
    """A script of a decoder.

    Attributes:
        file: Where it was read.
        source: Its text.
    """

    file: str
    source: str


class DecoderError(EdgeHubError):
    """A payload was not decoded; the text says why.

    Attributes:
        kind: One of a closed set, for counts.
    """

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


def read_scripts(key: str, folder: Path) -> tuple[dict[str, DecoderScript], list[ConfigError]]:
    """Read and check the scripts of a folder, `em500.js` for the decoder `em500`.

    Args:
        key: Setting that names the folder.
        folder: Other files in it are left alone.

    Returns:
        Scripts by the names of their decoders, and what is wrong.
    """
    if find_spec("dukpy") is None:
        reason = "decoders need dukpy, which this installation does not have"
        return {}, [ConfigError(key, reason, f"{extra_hint('lora-js')}; or remove the key")]
    scripts: dict[str, DecoderScript] = {}
    faults: list[ConfigError] = []
    try:
        files = sorted(file for file in folder.iterdir() if file.suffix == ".js")
    except OSError as error:
        return {}, [ConfigError(key, f"{folder}: {error.strerror}")]
    for file in files:
        try:
            scripts[_name(file)] = read_script(file)
        except DecoderError as error:
            faults.append(ConfigError(key, str(error)))
    try:
        found = _script_faults(scripts)
    except DecoderError as error:
        found = [str(error)]
    return scripts, [*faults, *(ConfigError(key, reason) for reason in found)]


def read_script(file: Path) -> DecoderScript:
    """Read a script.

    Raises:
        DecoderError: It cannot be read, or is no text.
    """
    try:
        content = read_regular(file)
    except OSError as error:
        raise DecoderError("unavailable", f"{file}: {error.strerror}") from error
    if len(content) > SCRIPT_BYTES_MAX:
        raise DecoderError("unavailable", f"{file}: more than {SCRIPT_BYTES_MAX} bytes")
    try:
        return DecoderScript(file=str(file), source=content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DecoderError("unavailable", f"{file}: no text in UTF-8: {error.reason}") from error


def call_once(script: DecoderScript, function: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Call a function of a script in a process of its own; returns what the process answers.

    Args:
        script: The decoder.
        function: One of `edgehub.decoders.limits`.
        given: Argument of the function.

    Raises:
        DecoderError: It cannot.
    """
    call = {"name": "script", "function": function, "input": dict(given)}
    requests = [_load("script", script), call]
    answers = ask_worker(requests)
    for answer in answers:
        if "error" in answer:
            raise DecoderError("failed", _place(script, answer))
    if len(answers) < len(requests):
        raise DecoderError("ended", f"{script.file}: {_ENDED}")
    return answers[-1]


def ask_worker(requests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Start a worker for some requests; returns its answers until it ends.

    Raises:
        DecoderError: It does not start, or not in time.
    """
    try:
        done = subprocess.run(  # noqa: S603 - this interpreter
            WORKER,
            input=b"".join(json.dumps(request).encode() + b"\n" for request in requests),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=CHECK_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DecoderError("unavailable", f"the process of decoders: {error}") from error
    lines = done.stdout.splitlines()
    if not lines:
        raise DecoderError(
            "unavailable",
            f"the process of decoders ended with code {done.returncode} before it was ready",
        )
    return [json.loads(answer) for answer in lines[1:]]


def _script_faults(scripts: Mapping[str, DecoderScript]) -> list[str]:
    if not scripts:
        return []
    answers = ask_worker([_load(name, script) for name, script in scripts.items()])
    faults = [
        _place(script, answer)
        for script, answer in zip(scripts.values(), answers, strict=False)
        if "error" in answer
    ]
    if len(answers) < len(scripts):
        # It has ended the process; those behind it are checked once it is right.
        faults.append(f"{list(scripts.values())[len(answers)].file}: {_ENDED}, at its top level")
    return faults


def _place(script: DecoderScript, answer: Mapping[str, Any]) -> str:
    line = answer.get("line")
    where = script.file if line is None else f"{script.file}, line {line}"
    return f"{where}: {answer['error']}"


def _load(name: str, script: DecoderScript) -> dict[str, Any]:
    return {"name": name, "source": script.source}


def _name(file: Path) -> str:
    if re.search(DECODER_NAME, file.stem) is None:
        raise DecoderError("unavailable", f"{file}: want a name of {DECODER_NAME_RULE}")
    return file.stem

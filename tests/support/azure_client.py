"""Devices and modules on the real Azure IoT device SDK, which has an environment of its own."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv" / ".azure" / "bin" / "python"
_PROGRAM = Path(__file__).with_name("azure_program.py")


class AzureClient:
    """A running program; see `azure_program`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._lines: list[dict] = []

    async def do(self, action: str, **fields: object) -> dict:
        """Let it do something; returns its answer, which is no failure."""
        answer = await self.attempt(action, **fields)
        assert "done" in answer, answer
        return answer

    async def attempt(self, action: str, **fields: object) -> dict:
        """Let it do something that may fail; returns its answer."""
        self._process.stdin.write(json.dumps({"do": action, **fields}).encode() + b"\n")
        return await self._next(lambda line: action in (line.get("done"), line.get("failed")))

    async def received(self, what: str = "received") -> dict:
        """Return the next message that it has received, or `desired` patch, or method `called`."""
        return await self._next(lambda line: what in line)

    async def _next(self, is_wanted) -> dict:
        while True:
            for number, line in enumerate(self._lines):
                if is_wanted(line):
                    return self._lines.pop(number)
            text = await self._process.stdout.readline()
            assert text, "the program has ended"
            self._lines.append(json.loads(text))


@asynccontextmanager
async def azure_client(
    *, environment: Mapping[str, str] | None = None, **options: object
) -> AsyncIterator[AzureClient]:
    """Run a client; the options are those of `azure_program.create`, and `ports`."""
    process = await asyncio.create_subprocess_exec(
        *(PYTHON, _PROGRAM, json.dumps(options)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **(environment or {})},
    )
    try:
        yield AzureClient(process)
        process.stdin.close()
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()

"""Real clients against a listener on uvloop: scenarios, and programs run to their end."""

from __future__ import annotations

import asyncio
import subprocess
from typing import TYPE_CHECKING

import uvloop

from tests.support.mqtt_listener import running

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.support.mqtt_listener import Bench


def on_uvloop(scenario: Callable[[Bench], Awaitable[None]], **options: object) -> None:
    """Run a scenario with a listener on the loop that the daemon uses."""

    async def run() -> None:
        async with running(**options) as bench:
            await scenario(bench)

    uvloop.run(run())


async def command(*arguments: str, data: bytes = b"") -> tuple[int, bytes]:
    """Run a program to its end; gives exit code and output."""
    # In a thread: the loop's own subprocess support fails when a program ends before its input.
    done = await asyncio.to_thread(
        subprocess.run,
        arguments,
        input=data,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=15,
        check=False,
    )
    return done.returncode, done.stdout

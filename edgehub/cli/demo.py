"""`edgehub demo`: two hubs, a thin link and simulated devices, with a verdict at the end."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import uvloop
from rich.console import Console

from edgehub.errors import expected_of
from edgehub.lab.demo.demo import Demo, DemoError, Options, prepare
from edgehub.lab.demo.view import LiveView, PlainView
from edgehub.lifecycle import Signals
from edgehub.telemetry.log import configure

if TYPE_CHECKING:
    from edgehub.lab.demo.verdict import Verdict

ROUND_S: Final = 60.0
ROUND_MIN_S: Final = 15.0


@click.command()
@click.option("--forever", is_flag=True, help="Go on with another round until Ctrl-C.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=ROUND_MIN_S, max=86_400),
    default=ROUND_S,
    show_default=True,
    help="Length of a round.",
)
@click.option("--plain", is_flag=True, help="Lines instead of a live table, also on a terminal.")
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the devices' timing.")
def demo(forever: bool, seconds: float, plain: bool, seed: int) -> int:
    """Watch a hub do its job: an outage, a thin link, alarms that overtake the backlog.

    Starts a gateway hub with embedded defaults, a second hub as its parent behind a link of
    64 kbit/s, and simulated devices, all on loopback and in a folder of its own that is removed at
    the end. Exit code 1 if an acknowledged message is missing or the alarms were late.
    """
    configure(level="error", fmt="auto")
    console = Console()
    view = PlainView(console) if plain or not console.is_terminal else LiveView(console)
    options = Options(round_s=seconds, forever=forever, seed=seed)
    with tempfile.TemporaryDirectory(prefix="edgehub-demo-") as name:
        folder = Path(name)
        prepare(folder)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            try:
                verdict = runner.run(_run(Demo(options, folder, view)))
            except asyncio.CancelledError:
                console.print("stopped without a verdict")
                return 1
    console.print(verdict.text(), soft_wrap=True, markup=False, highlight=False)
    return 0 if verdict.passed else 1


async def _run(demo_run: Demo) -> Verdict:
    task = asyncio.current_task()
    assert task is not None
    with Signals(stop=demo_run.stop, abort=lambda: _cancel(task), reload=lambda: None):
        try:
            return await demo_run.run()
        except ExceptionGroup as group:
            failure = expected_of(group)
            if failure is None:
                raise
            raise DemoError(str(failure)) from group


def _cancel(task: asyncio.Task[Verdict]) -> None:
    task.cancel()

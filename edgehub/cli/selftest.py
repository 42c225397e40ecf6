"""`edgehub selftest`: does a hub that is killed keep its word on this disk, and how quick is it?"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

import click
import uvloop
from rich.console import Console

from edgehub.cli.output import end_as_json, json_option_of, print_line
from edgehub.cli.tables import print_table
from edgehub.clock import SystemClock
from edgehub.errors import expected_of
from edgehub.lab.selftest.report import NOT_TESTED
from edgehub.lab.selftest.scratch import SelfTestError, needed_bytes, scratch_folder
from edgehub.lab.selftest.selftest import Options, SelfTest
from edgehub.lifecycle import Signals
from edgehub.settings import load_settings
from edgehub.telemetry.log import configure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from edgehub.lab.selftest.report import Report

KILLS: Final = 10
KILLS_MAX: Final = 10_000
SECONDS: Final = 40.0
SECONDS_MAX: Final = 3600.0


@click.command()
@click.option(
    "--directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder on the disk to test; default: the hub's state folder.",
)
@click.option(
    "--kills",
    type=click.IntRange(min=1, max=KILLS_MAX),
    default=KILLS,
    show_default=True,
    help="How often the hub is killed.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=1, max=SECONDS_MAX),
    default=SECONDS,
    show_default=True,
    help="Time under load; the hub's starts and some seconds of measuring come on top.",
)
@json_option_of("Print the result as one JSON object.")
@click.pass_obj
def selftest(obj: dict[str, Any], directory: Path | None, kills: int, seconds: float) -> int:
    """Test on your own disk that a hub which is killed loses nothing.

    Measures how long the disk takes for a sync and for a commit, runs a hub of its own under load
    from four MQTT devices, kills it with SIGKILL at random moments, and looks for every message
    that was acknowledged. All of it in a folder of its own that is removed at the end; the queues
    of your hub are not touched. A busy disk gives other figures than an idle one.

    It does not test power loss: a disk that reports a sync as done too early is not found by
    killing a process.

    Exit code 1 if a message is missing or out of order, or the test could not be carried out.

    \b
    Example:
      edgehub selftest --directory /var/lib/edgehub --kills 20 --seconds 60
    """  # noqa: D301 - \b is click's sign for lines that stay as they are
    configure(level="error", fmt="auto")
    chosen = directory or _nearest_folder(load_settings(obj["config"]).data_dir)
    options = Options(kills=kills, seconds=seconds)
    with (
        scratch_folder(chosen, free_bytes_min=needed_bytes(seconds)) as folder,
        _progress() as notify,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        rng = Random()  # noqa: S311 - moments of kills, not a secret
        report = runner.run(
            _run(SelfTest(options, folder, clock=SystemClock(), rng=rng, notify=notify))
        )
    end_as_json(report.document(), 1 if report.faults else 0)
    _print(report)
    return 1 if report.faults else 0


def _nearest_folder(data_dir: Path) -> Path:
    # Before the first start there is no state folder; the one that will hold it is on its disk.
    data_dir = data_dir.absolute()
    return next(folder for folder in (data_dir, *data_dir.parents) if folder.is_dir())


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    console = Console(stderr=True, markup=False, highlight=False)
    if not console.is_terminal:
        yield lambda _text: None
        return
    with console.status("") as status:
        yield status.update


async def _run(test: SelfTest) -> Report:
    task = asyncio.current_task()
    assert task is not None

    def stop() -> None:
        task.cancel()

    # A terminal that is closed ends the test as Ctrl-C does.
    with Signals(stop=stop, abort=stop, reload=stop):
        try:
            return await test.run()
        except asyncio.CancelledError:
            raise SelfTestError("stopped before the end, so there is no result") from None
        except ExceptionGroup as group:
            failure = expected_of(group)
            if failure is None:
                raise
            if isinstance(failure, OSError) and failure.filename:
                raise SelfTestError(f"{failure.filename}: {failure.strerror}") from group
            raise SelfTestError(str(failure)) from group


def _print(report: Report) -> None:
    print_table(("what", "result"), report.rows())
    for text in (*report.remarks, NOT_TESTED):
        print_line(f"note: {text}")
    print_line(report.headline())

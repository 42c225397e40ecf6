"""`edgehub run`: the daemon."""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import os
import resource
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import uvloop

import edgehub.hub  # noqa: F401 - first, see there
from edgehub.cli.config_file import default_config
from edgehub.lifecycle import Signals
from edgehub.notify.service_manager import ServiceManager
from edgehub.settings.configuration import read_settings
from edgehub.settings.loading import settings_check
from edgehub.settings.origin import LoadedSettings, SettingsSource
from edgehub.telemetry.log import configure

OPEN_FILES: Final = 65_536
"""Wanted, and taken as far as the system grants it: each client is one, and so is each session of a
device upstream; the usual limit of 1 024 ends below the default number of clients."""


@click.command()
@click.option(
    "--config",
    "own_config",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Settings file; the same as the option before `run`.",
)
@click.option("--data-dir", type=click.Path(file_okay=False, path_type=Path), help="State folder.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]))
@click.pass_obj
def run(
    obj: dict[str, Any], own_config: Path | None, data_dir: Path | None, log_level: str | None
) -> int:
    """Run the hub until SIGTERM or SIGINT; a second signal aborts the drain."""
    flags: dict[str, Any] = {}
    if data_dir is not None:
        flags["data_dir"] = data_dir
    if log_level is not None:
        flags["log"] = {"level": log_level}
    source = SettingsSource(own_config or obj["config"], flags, find=default_config)
    loaded = _read(source)
    configure(level=loaded.settings.log.level, fmt=loaded.settings.log.format)
    _raise_open_files()
    # A watchdog ends a hub that hangs with SIGABRT; then the log says where it hung.
    faulthandler.enable()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(loaded, source))


def _read(source: SettingsSource) -> LoadedSettings:
    try:
        return read_settings(source)
    finally:
        # Only a reload checks settings again.
        settings_check.cache_clear()


def _freeze_objects() -> None:
    """Leave what stays for good out of collections: modules alone make one take up to 50 ms.

    Nothing is answered while one runs, so there is none before it either: what there is by now
    stays, and the start leaves no garbage to speak of.
    """
    gc.freeze()


def _raise_open_files() -> None:
    granted, highest = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if highest == resource.RLIM_INFINITY else min(OPEN_FILES, highest)
    if granted != resource.RLIM_INFINITY and granted < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, highest))


async def _run(loaded: LoadedSettings, source: SettingsSource) -> int:
    # After the check of the settings, whose memory it takes.
    from edgehub.hub.hub import Hub  # noqa: PLC0415

    manager = ServiceManager.from_environment(os.environ, pid=os.getpid())
    hub = Hub(
        loaded,
        reread=partial(_read, source),
        service_manager=manager,
        opened=_freeze_objects,
    )
    with Signals(stop=hub.stop, abort=hub.abort, reload=hub.reload):
        clean = await hub.run()
    return 0 if clean else 1

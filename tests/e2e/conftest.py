"""Fixtures of the end-to-end tests: a broker, and daemons that never outlive their test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support import fast_clock
from tests.support.daemon import EDGEHUB, Daemon
from tests.support.mosquitto import Mosquitto
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    """Return a running Mosquitto."""
    with Mosquitto(tmp_path / "broker") as running:
        yield running


@pytest.fixture
def make_daemon(tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    """Return a function that makes a daemon; `upstream` is a port, `extra` more settings.

    With a `rate` its clocks run so many times as fast, so it waits less where nobody else does.
    """
    made: list[Daemon] = []
    clocks: dict[int, str] = {}

    def make(
        *,
        upstream: int | None = None,
        extra: str = "",
        top: str = "",
        program: Sequence[str] = EDGEHUB,
        rate: int = 1,
    ) -> Daemon:
        folder = tmp_path / f"hub{len(made)}"
        folder.mkdir()
        section = (
            f'[upstream]\ntype = "mqtt"\nhost = "127.0.0.1"\nport = {upstream}\n'
            if upstream
            else ""
        )
        daemon = Daemon(
            folder,
            f'data_dir = "data"\n{top}\n[mqtt]\nport = {free_port()}\n{section}\n{extra}\n'
            '[log]\nformat = "json"\n',
            program=program,
            env={}
            if rate == 1
            else {fast_clock.VARIABLE: clocks.setdefault(rate, fast_clock.setting(rate))},
        )
        made.append(daemon)
        return daemon

    yield make
    for daemon in made:
        daemon.close()

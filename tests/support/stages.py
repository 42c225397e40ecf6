"""Pytest plugin of `make test`: the order of the stages, and an end even after a failed test.

Quick tests come first, the daemon's crashes last, in random order inside a stage. A test that fails
half-way may leave a thread behind that keeps the process alive for ever, after all results were
printed; then the run is ended, and is a failed one.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

STAGES: Final = ("unit", "cases", "integration", "spark", "e2e", "deploy", "crash")
EXIT_TIMEOUT_S: Final = 15.0


def stage_of(parts: Sequence[str]) -> int:
    """Give the place of a test file, named by the parts of its path, among the stages."""
    found = [STAGES.index(part) for part in parts if part in STAGES]
    return found[0] if found else len(STAGES)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort by stage; a stable sort keeps the random order that another plugin has made."""
    items.sort(key=lambda item: stage_of(item.path.relative_to(config.rootpath).parts))


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """Watch the end of the process, which waits for all threads that are not daemons."""
    watchdog = threading.Timer(EXIT_TIMEOUT_S, _give_up)
    watchdog.daemon = True
    watchdog.start()


def _give_up() -> None:
    left = [t.name for t in threading.enumerate() if not t.daemon and t.name != "MainThread"]
    sys.stderr.write(f"threads left behind by tests: {', '.join(left)}\n")
    sys.stderr.flush()
    os._exit(1)

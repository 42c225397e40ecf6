"""Pytest plugin of `make test`: the order of the stages, and an end even after a failed test.

Quick tests come first, the daemon's crashes last, in random order inside a stage. Where two
processes share the work, a file stays in one of them, and so does the report, which starts Spark
once in a process; the groups of most tests come first. What takes both cores, or measures time, is
marked `alone`. Temporary files are in memory, where thousands of syncs take no time; in full size
they are on the disk. A test that fails half-way may leave a thread behind that keeps the process
alive for ever, after all results were printed; then the run is ended, and is a failed one. So is
one whose test hangs past its time-out.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import is_hypothesis_test
from xdist.scheduler import LoadGroupScheduling

from tests.support.memory_folder import memory

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from xdist.remote import Producer
    from xdist.workermanage import WorkerController

STAGES: Final = ("unit", "cases", "integration", "spark", "e2e", "deploy", "crash")
EXIT_TIMEOUT_S: Final = 15.0
HANG_MARGIN_S: Final = 60.0
STDERR: Final = os.dup(2)
"""That of the process, which tests capture."""


def stage_of(parts: Sequence[str]) -> int:
    """Return the place of a test file, named by the parts of its path, among the stages."""
    found = [STAGES.index(part) for part in parts if part in STAGES]
    return found[0] if found else len(STAGES)


def pytest_configure() -> None:
    """Choose the place of temporary files."""
    folder = memory()
    if folder is not None and not os.environ.get("EDGEHUB_SOAK"):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(folder))


class Scheduler(LoadGroupScheduling):
    """Names the group of each test, by its file.

    The marks that are meant for it have no effect: xdist 3.8 adds them to an attribute of tests
    that pytest 9.2 has no more.
    """

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        """Record the tests that a process has found."""
        super().add_node_collection(node, [f"{test}@{_group_of(test)}" for test in collection])


def _group_of(test: str) -> str:
    path = test.partition("::")[0]
    return "spark" if "spark" in path.split("/") else path


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduler:
    """Return what hands groups of tests to processes."""
    return Scheduler(config, log)


def pytest_itemcollected(item: pytest.Item) -> None:
    """In full size, properties have more examples."""
    if is_hypothesis_test(getattr(item, "obj", None)):
        item.add_marker("scaled")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort by stage; a stable sort keeps the random order that another plugin has made."""
    items.sort(key=lambda item: stage_of(item.path.relative_to(config.rootpath).parts))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let a test run beside others, or alone, before its time counts."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:
        with _bounded(item):
            return (yield)
    alone = item.get_closest_marker("alone") is not None
    with _turn(Path(tempfile.gettempdir()) / f"edgehub-tests-{run}", alone=alone), _bounded(item):
        return (yield)


@contextlib.contextmanager
def _bounded(item: pytest.Item) -> Iterator[None]:
    """End the process if a test outlives its time-out, which hypothesis takes for a failure."""
    marker = item.get_closest_marker("timeout")
    given = item.config.getoption("timeout") or item.config.getini("timeout")
    timeout_s = marker.args[0] if marker else float(given)
    faulthandler.dump_traceback_later(2 * timeout_s + HANG_MARGIN_S, exit=True, file=STDERR)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@contextlib.contextmanager
def _turn(lock: Path, *, alone: bool) -> Iterator[None]:
    # Who wants to be alone closes the gate meanwhile, so that a row of others cannot starve it.
    with lock.with_suffix(".gate").open("w") as gate, lock.open("w") as room:
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        if not alone:
            fcntl.flock(gate, fcntl.LOCK_UN)
        yield


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """Watch the end of the process, which waits for all threads that are not daemons."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        # It waits for the others when it is done, and is ended by the one that counts the results.
        return
    watchdog = threading.Timer(EXIT_TIMEOUT_S, _give_up)
    watchdog.daemon = True
    watchdog.start()


def _give_up() -> None:
    left = [t.name for t in threading.enumerate() if not t.daemon and t.name != "MainThread"]
    sys.stderr.write(f"threads left behind by tests: {', '.join(left)}\n")
    sys.stderr.flush()
    os._exit(1)

"""Pytest plugin of `make test`: what runs where, in which order, and that it ends.

Quick tests come first, the daemon's crashes last, in random order inside a stage. Where processes
share the work, a file stays in one of them, and so does the report, which starts Spark once in a
process, before all others. The tests with daemons, and those marked `waits`, wait most of the time:
they have a third process, beside the two that keep both cores busy. What takes both cores, or
measures time, is marked `alone`, and comes last. Temporary files are in memory, where thousands of
syncs take no time; in full size they are on the disk.

No test can hold up the run. One past its time-out is interrupted until it ends, and at last its
process is ended; a test that ends its process fails and is not run again, and another process runs
the rest. A test that fails half-way may leave a thread behind that keeps the process alive for
ever, after all results were printed; then the run is ended, and is a failed one.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import signal
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import is_hypothesis_test

from tests.support.memory_folder import memory

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence
    from types import FrameType

    from pytest_timeout import Settings
    from xdist.workermanage import WorkerController

STAGES: Final = ("unit", "cases", "integration", "spark", "e2e", "deploy", "crash")
CORES: Final = 2
AHEAD: Final = 2
"""A process runs a test when it knows which is next."""
REPORT: Final = "spark"
DAEMONS: Final = "e2e"
WAITS: Final = "pytest.mark.waits"
ALONE: Final = "pytest.mark.alone"
EXIT_TIMEOUT_S: Final = 15.0
AGAIN_S: Final = 20.0
HANG_MARGIN_S: Final = 60.0
STDERR: Final = os.dup(2)
"""That of the process, which tests capture."""


def stage_of(parts: Sequence[str]) -> int:
    """Return the place of a test file, named by the parts of its path, among the stages."""
    found = [STAGES.index(part) for part in parts if part in STAGES]
    return found[0] if found else len(STAGES)


def pytest_xdist_make_scheduler(config: pytest.Config) -> Files:
    """Choose how the work is shared."""
    return Files(config)


def pytest_configure() -> None:
    """Choose the place of temporary files."""
    folder = memory()
    if folder is not None and not os.environ.get("EDGEHUB_SOAK"):
        os.environ.setdefault("TMPDIR", str(folder))
        tempfile.tempdir = None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark tests of properties, which have more examples in full size."""
    if is_hypothesis_test(getattr(item, "obj", None)):
        item.add_marker("scaled")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort by stage; a stable sort keeps the random order that another plugin has made."""
    items.sort(key=lambda item: stage_of(item.path.relative_to(config.rootpath).parts))


class Files:
    """Hands out tests: a file to one process, and the report as if it were one file.

    A third process takes files whose tests mostly wait, and leaves the cores to the others. Files
    with a test that has to be alone come last, when nothing long runs beside it. A test that ended
    its process is not run again.

    Args:
        config: Of the process that counts the results.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._root = config.rootpath
        self._processes: int = config.getoption("numprocesses")
        self._tests: Sequence[str] = ()
        self._ready = 0
        self._waiter: WorkerController | None = None
        self._given: dict[WorkerController, list[int]] = {}
        self._is_scheduled = False
        self._busy: list[list[int]] = []
        self._waiting: list[list[int]] = []
        self._alone: list[list[int]] = []

    @property
    def nodes(self) -> list[WorkerController]:
        """Return the processes."""
        return list(self._given)

    @property
    def collection_is_completed(self) -> bool:
        """Return whether all processes have reported their tests."""
        return self._ready >= self._processes

    @property
    def has_pending(self) -> bool:
        """Return whether tests are left."""
        return any((self._busy, self._waiting, self._alone, *self._given.values()))

    @property
    def tests_finished(self) -> bool:
        """Return whether no process has to be sent more tests."""
        is_left = not self._is_scheduled or self._busy or self._waiting or self._alone
        return not is_left and all(len(tests) < AHEAD for tests in self._given.values())

    def add_node(self, node: WorkerController) -> None:
        """Record a process that has started."""
        self._given[node] = []

    def add_node_collection(self, _node: WorkerController, tests: Sequence[str]) -> None:
        """Record the tests that a process has found."""
        if self._ready and tests != self._tests:
            raise RuntimeError("processes have found different tests, or in another order")
        self._tests = tests
        self._ready += 1

    def schedule(self) -> None:
        """Assign all processes their first tests, or more to those that have too few."""
        if not self._is_scheduled:
            self._is_scheduled = True
            if self._processes > CORES:
                self._waiter = self.nodes[-1]
            files: dict[str, list[int]] = {}
            for number, test in enumerate(self._tests):
                name = test.partition("::")[0]
                files.setdefault(REPORT if REPORT in name.split("/") else name, []).append(number)
            # It takes longest of all, so others end beside it.
            if REPORT in files:
                self._busy.append(files.pop(REPORT))
            for name, tests in files.items():
                self._of_kind(name).append(tests)
        for node in self.nodes:
            self._give(node)

    def mark_test_complete(self, node: WorkerController, test: int, _took_s: float = 0) -> None:
        """Record that a test has ended."""
        self._given[node].remove(test)
        self._give(node)

    def remove_node(self, node: WorkerController) -> str | None:
        """Take back what an ended process has not run; return the test that ended it."""
        tests = self._given.pop(node)
        if len(tests) > 1:
            self._busy.insert(0, tests[1:])
        return self._tests[tests[0]] if tests else None

    def _of_kind(self, name: str) -> list[list[int]]:
        text = (self._root / name).read_text("utf-8")
        if ALONE in text:
            return self._alone
        return self._waiting if WAITS in text or DAEMONS in name.split("/") else self._busy

    def _give(self, node: WorkerController) -> None:
        while len(self._given[node]) < AHEAD and not node.shutting_down:
            of_cores = () if node is self._waiter else self._busy
            last = () if node is self._waiter else self._alone
            if not (files := of_cores or self._waiting or last):
                node.shutdown()
                return
            tests = files.pop(0)
            self._given[node] += tests
            node.send_runtest_some(tests)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let a test run beside others, or alone, before its time counts."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:
        return (yield)
    alone = item.get_closest_marker("alone") is not None
    with _turn(Path(tempfile.gettempdir()) / f"edgehub-tests-{run}", alone=alone):
        return (yield)


class OutOfTime(KeyboardInterrupt):
    """A test takes longer than its time-out.

    Only this kind of exception passes through event loops and hypothesis wherever it is raised.
    """


INTERRUPTIBLE: Final = pytest.StashKey[bool]()
"""Whether a test or its fixtures run, and not the plugins that report on them."""


def pytest_timeout_set_timer(item: pytest.Item, settings: Settings) -> bool:
    """Interrupt a test past its time-out, and again what does not end then; at last the process."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        if item.stash.get(INTERRUPTIBLE, False):
            faulthandler.dump_traceback(STDERR)
            raise OutOfTime(f"takes longer than {settings.timeout:g} s")

    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, settings.timeout, AGAIN_S)
    faulthandler.dump_traceback_later(settings.timeout + HANG_MARGIN_S, exit=True, file=STDERR)
    return True


def pytest_timeout_cancel_timer() -> bool:
    """Stop the timer of a test that ended in time."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    faulthandler.cancel_dump_traceback_later()
    return True


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail the test that is out of time, and go on with the others."""
    item.stash[INTERRUPTIBLE] = True
    try:
        return (yield)
    except OutOfTime as late:
        raise pytest.fail.Exception(str(late)) from late
    finally:
        item.stash[INTERRUPTIBLE] = False


pytest_runtest_setup = pytest_runtest_teardown = pytest_runtest_call


@contextlib.contextmanager
def _turn(lock: Path, *, alone: bool) -> Iterator[None]:
    # A test that has to be alone closes the gate until it has run, so that others cannot starve it.
    # The locks are those of this process: what a test forks and leaves behind holds none.
    with lock.with_suffix(".gate").open("a+") as gate, lock.open("a+") as room:
        fcntl.lockf(gate, fcntl.LOCK_EX)
        fcntl.lockf(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        if not alone:
            fcntl.lockf(gate, fcntl.LOCK_UN)
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

"""The run of the tests: files stay whole, and nothing that a test does holds up the others."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

ROOT = Path(__file__).parents[3]
HUNG = """
import asyncio, threading
import uvloop
from hypothesis import given, strategies

def test_a_lock():
    threading.Event().wait()

def test_a_fast_loop():
    uvloop.run(asyncio.sleep(3600))

async def test_a_loop():
    await asyncio.sleep(3600)

@given(strategies.integers())
def test_a_property(number):
    threading.Event().wait()

def test_after_them():
    pass
"""
ENDED = """
import os

def test_before_it():
    pass

def test_a_crash():
    os._exit(3)
"""
QUICK = "def test_one(): pass\ndef test_two(): pass\n"
ALONE = "import pytest\n@pytest.mark.alone\ndef test_time(): pass\n"
WAITING = "import pytest\npytestmark = pytest.mark.waits\ndef test_a_while(): pass\n"
OPTIONS = (
    "-p xdist.plugin -p pytest_timeout -p pytest_asyncio.plugin -p tests.support.stages "
    "-n 3 -v --timeout 0.2 --asyncio-mode auto --rootdir ."
)
FOUND = re.compile(r"\[(gw\d)\] \[ *\d+%\] (\w+) (\S+)")


def test_what_hangs_or_ends_its_process_fails_alone(tmp_path: Path) -> None:
    """The rest is run to its end, by another process where one has ended, even the last."""
    files = {
        "unit/test_hung.py": HUNG,
        "spark/test_job.py": WAITING,
        "spark/test_page.py": WAITING,
        "unit/test_alone.py": ALONE,
        "unit/test_quick.py": QUICK,
        "integration/test_waiting.py": WAITING,
        "crash/test_ended.py": ENDED,
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
    command = [sys.executable, "-m", "pytest", *OPTIONS.split(), *sorted(files)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**env, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    found = {test: (result, process) for process, result, test in FOUND.findall(done.stdout)}
    assert {test: result for test, (result, _) in found.items()} == {
        "unit/test_hung.py::test_a_lock": "FAILED",
        "unit/test_hung.py::test_a_fast_loop": "FAILED",
        "unit/test_hung.py::test_a_loop": "FAILED",
        "unit/test_hung.py::test_a_property": "FAILED",
        "unit/test_hung.py::test_after_them": "PASSED",
        "unit/test_quick.py::test_one": "PASSED",
        "unit/test_quick.py::test_two": "PASSED",
        "spark/test_job.py::test_a_while": "PASSED",
        "spark/test_page.py::test_a_while": "PASSED",
        "unit/test_alone.py::test_time": "PASSED",
        "integration/test_waiting.py::test_a_while": "PASSED",
        "crash/test_ended.py::test_before_it": "PASSED",
        "crash/test_ended.py::test_a_crash": "FAILED",
    }, done.stdout
    places = {(test.partition("::")[0], process) for test, (_, process) in found.items()}
    assert len(places) == len(files)
    assert len({process for file, process in places if file.startswith("spark/")}) == 1
    waiter = found["integration/test_waiting.py::test_a_while"][1]
    assert [file for file, process in places if process == waiter] == [
        "integration/test_waiting.py"
    ]
    assert done.returncode == 1
    assert done.stdout.count("node down") == 1

"""Tests over case files: one test per case that a file holds.

A test module names its file in `CASES`; its tests take `case`. The files are looked for in the
directory that EDGEHUB_CASES names, else beside this file. A file that is missing fails its tests.
"""

import json
import os
from pathlib import Path

import pytest

_DIRECTORY = Path(os.environ.get("EDGEHUB_CASES") or Path(__file__).parent / "data")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one test per case."""
    if "case" not in metafunc.fixturenames:
        return
    path = _DIRECTORY / metafunc.module.CASES
    if path.exists():
        cases = json.loads(path.read_text("utf-8"))
        if isinstance(cases, dict):
            cases = cases["scenarios"] if "scenarios" in cases else cases["vectors"]
        ids = [case["id"] for case in cases]
    else:
        cases, ids = [path], ["missing-file"]
    metafunc.parametrize("case", cases, ids=ids, indirect=True)


@pytest.fixture
def case(request):
    """Return one case of the module's file."""
    if isinstance(request.param, Path):
        pytest.fail(f"the case file {request.param} is missing")
    return request.param

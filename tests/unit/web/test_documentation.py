"""The reference of metrics and of the API is whole."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from edgehub.web.metrics import text

ROOT = Path(__file__).parents[3]
EMPTY = {
    "version": "0",
    "phase": "running",
    "warnings": [],
    "stalled": [],
    "queues": [],
    "endpoints": [],
}
REFERENCE = ROOT / "docs" / "reference"
API = (REFERENCE / "http-api.md").read_text("utf-8")
METRICS = (REFERENCE / "metrics.md").read_text("utf-8")


def test_every_metric_is_described():
    """A row for each name, and no name that is gone."""
    listed = METRICS.split("| prefix `edgehub_` | |")[1].split("\n## ")[0]
    described = re.findall(r"^\| `([a-z_]+)` \|", listed, re.MULTILINE)
    given = re.findall(r"^# TYPE edgehub_(\S+)", text(EMPTY), re.MULTILINE)
    assert described == given


def test_every_refusal_is_described():
    """Each `code` of the routes and of whatever stands before them."""
    codes: set[str] = set()
    for file in (ROOT / "edgehub" / "web").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in {
                "ProblemError",
                "_plain",
            }:
                codes |= {
                    argument.value
                    for argument in node.args[1:2]
                    if isinstance(argument, ast.Constant)
                }
    assert len(codes) > 15
    codes.discard("internal_error")
    assert sorted(code for code in codes if f"`{code}`" not in API) == []

"""The reference of the HTTP API is whole."""

from __future__ import annotations

import ast
from pathlib import Path

from edgehub.operations.problem import PROBLEMS

ROOT = Path(__file__).parents[3]
API = (ROOT / "docs" / "reference" / "http-api.md").read_text("utf-8")


def test_every_refusal_is_described():
    """Each `code` of the routes and of whatever stands before them."""
    codes = {code for _, _, code, _ in PROBLEMS}
    for file in (ROOT / "edgehub" / "web").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "ProblemError":
                codes |= {
                    argument.value
                    for argument in node.args[1:2]
                    if isinstance(argument, ast.Constant)
                }
    assert len(codes) > 25
    codes.discard("internal_error")
    assert sorted(code for code in codes if f"`{code}`" not in API) == []

"""What grows to its full size in `make soak` is marked so that it runs there."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS = Path(__file__).parents[1]
VARIABLE = "EDGEHUB_SOAK"
MARKS = {"scaled", "soak"}


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _marks(node: ast.AST) -> set[str]:
    return {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)} & MARKS


def _grows(node: ast.AST, sizes: set[str]) -> bool:
    reads = any(isinstance(n, ast.Constant) and n.value == VARIABLE for n in ast.walk(node))
    return reads or bool(_names(node) & sizes)


def _unmarked(module: ast.Module) -> Iterator[str]:
    """Return the tests, by name, that depend on the variable and are not chosen by a mark."""
    sizes: set[str] = set()
    for statement in module.body:
        if not isinstance(statement, ast.Assign):
            continue
        names = set().union(*(_names(target) for target in statement.targets))
        if "pytestmark" in names:
            if _marks(statement):
                return
        elif _grows(statement.value, sizes):
            sizes |= names
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if not node.name.startswith("test_") or not _grows(_body(node), sizes):
                continue
            if not any(_marks(decorator) for decorator in node.decorator_list):
                yield node.name


def _body(function: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.Module:
    # A time-out that grows with the others is no size.
    sizing = [d for d in function.decorator_list if "timeout" not in ast.unparse(d)]
    wrapped = [ast.Expr(value=decorator) for decorator in sizing]
    return ast.Module(body=[*wrapped, *function.body], type_ignores=[])


def test_what_depends_on_the_variable_is_marked():
    """`make soak` chooses by marker; a size behind the variable alone would never be reached."""
    files = [path for path in sorted(TESTS.rglob("test_*.py")) if path != Path(__file__)]
    sized = [path for path in files if VARIABLE in path.read_text("utf-8")]
    assert len(sized) > 10
    unmarked = [
        f"{path.relative_to(TESTS)}::{name}"
        for path in sized
        for name in _unmarked(ast.parse(path.read_text("utf-8")))
    ]
    assert unmarked == []

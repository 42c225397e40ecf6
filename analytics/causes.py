"""An error of Spark for an operator: what failed, and the root of the chain of causes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no types

if TYPE_CHECKING:
    from pyspark.errors import PySparkException

_PASSED_OVER = ("at ", "...", "Driver stack", "JVM stack")


def reason(error: PySparkException | Py4JJavaError) -> str:
    """Return the two lines with what failed, and the last cause."""
    if isinstance(error, Py4JJavaError):
        text, cause = "", error.java_exception
        while cause is not None:
            text += f"{'Caused by: ' if text else ''}{cause.toString()}\n"
            cause = cause.getCause()
    else:
        # With the chain, because the session's settings ask for it.
        text = str(error)
    lines = [line.strip() for line in text.splitlines()]
    shown = [line for line in lines if line and not line.startswith(_PASSED_OVER)]
    causes = [line for line in shown if line.startswith("Caused by: ")]
    first = [line for line in shown if line not in causes][:2]
    return "\n".join([*first, *causes[-1:]])

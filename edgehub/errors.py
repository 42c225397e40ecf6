"""The hub's own exceptions: one root, fields instead of texts to branch on, hints."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

import edgehub

if TYPE_CHECKING:
    from collections.abc import Sequence


class EdgeHubError(Exception):
    """Root of all errors that the hub raises itself."""


class ConfigError(EdgeHubError):
    """A setting, identity or manifest value is wrong.

    Attributes:
        key: Dotted path of the value, with the file where there is one.
        reason: What is wrong.
        hint: How to fix it, may be empty.
    """

    def __init__(self, key: str, reason: str, hint: str = "") -> None:
        super().__init__(f"{key}: {reason}" + (f" ({hint})" if hint else ""))
        self.key = key
        self.reason = reason
        self.hint = hint


class ConfigurationError(ConfigError):
    """Several values are wrong.

    Attributes:
        faults: All that is wrong, each with its key, reason and hint; never empty.
    """

    def __init__(self, faults: Sequence[ConfigError]) -> None:
        super().__init__(faults[0].key, faults[0].reason, faults[0].hint)
        self.faults = tuple(faults)

    def __str__(self) -> str:
        return "\n".join(map(str, self.faults))


def extra_hint(extra: str) -> str:
    """Return how to add an extra to an installation, whichever way it was made.

    No name on a package index stands in it: the one there may be another product.
    """
    wheel = f"edgehub-{edgehub.__version__}-py3-none-any.whl"
    return (
        f'install the extra "{extra}" as edgehub was installed: in a checkout pip install'
        f" -c constraints.txt -e '.[{extra}]', from a wheel pip install '{wheel}[{extra}]'"
    )


class RouteFaultKind(StrEnum):
    """Which part of a route a fault lies in."""

    SYNTAX = "syntax"
    SINK = "sink"
    CONDITION = "condition"


class RouteFault(Struct, frozen=True, kw_only=True):
    """One thing that is wrong with a route, or worth a warning.

    Attributes:
        kind: Part of the route.
        line: Line in the whole route text, 1-based.
        column: Column in that line, 1-based.
        message: What is wrong.
        hint: How to fix it, may be empty.
    """

    kind: RouteFaultKind
    line: int
    column: int
    message: str
    hint: str = ""

    def __str__(self) -> str:
        hint = f" ({self.hint})" if self.hint else ""
        return f"line {self.line}, column {self.column}: {self.message}{hint}"


class RouteCompileError(EdgeHubError):
    """A route or condition cannot be compiled.

    Attributes:
        faults: All that is wrong, in the order of the text; never empty.
        line: Line of the first fault, 1-based.
        column: Column of the first fault, 1-based.
        message: The first fault's message.
        hint: The first fault's hint.
    """

    def __init__(self, faults: Sequence[RouteFault]) -> None:
        super().__init__("; ".join(str(fault) for fault in faults))
        self.faults = tuple(faults)
        self.line = faults[0].line
        self.column = faults[0].column
        self.message = faults[0].message
        self.hint = faults[0].hint


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestFault:
    """One thing that is wrong with a manifest, or worth a warning.

    Attributes:
        path: Dotted path of the value, for example `routes.r1.priority`; empty = the document.
        message: What is wrong.
        hint: How to fix it, may be empty.
        route: Name of the route it belongs to, None = none.
        line: Line in the route text (in the file for JSON syntax), None = not a place in a text.
        column: Column in that line, None = not a place in a text.
    """

    path: str
    message: str
    hint: str = ""
    route: str | None = None
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        return fault_text(self.path, self.line, self.column, self.message, self.hint)


def fault_text(path: str, line: int | None, column: int | None, message: str, hint: str) -> str:
    """Write what is wrong, and where, as one line.

    Args:
        path: Where in the document; empty = the document itself, whose text has the line.
        line: Line in the text at `path`, None = not a place in a text.
        column: Column in that line.
        message: What is wrong.
        hint: How to fix it, may be empty.
    """
    place = ""
    if line is not None:
        place = f"line {line}, column {column}"
        if path and line == 1:
            place = f"column {column}"
        place += " of its text: " if path else ": "
    hint = f" ({hint})" if hint else ""
    path = f"{path}: " if path else ""
    return f"{path}{place}{message}{hint}"


class ManifestError(ConfigError):
    """A manifest is refused as a whole; the running one stays in force.

    Attributes:
        file: Where the manifest came from.
        faults: All that is wrong; never empty.
    """

    def __init__(self, file: str, faults: Sequence[ManifestFault]) -> None:
        first = faults[0]
        super().__init__(f"{file}: {first.path}" if first.path else file, first.message, first.hint)
        self.file = file
        self.faults = tuple(faults)

    def __str__(self) -> str:
        return "\n".join(f"{self.file}: {fault}" for fault in self.faults)


class ProtocolError(EdgeHubError):
    """A peer broke the MQTT protocol; the connection cannot go on.

    Attributes:
        reason: What was wrong, fit for a log line.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"mqtt: {reason}")
        self.reason = reason


class StoreError(EdgeHubError):
    """The store cannot do what was asked."""


class StoreCorruptError(StoreError):
    """The database file is damaged."""


class StoreRemovedError(StoreError):
    """The database file, or its log, is not there under its name any more."""


class StartupError(EdgeHubError):
    """The hub cannot start; the text says what to do."""


class DaemonUnreachableError(EdgeHubError):
    """No daemon answers on the control socket."""


def first_of(error: BaseException) -> BaseException:
    """Return the first error in a group, however deep it lies; what is no group is its own."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def expected_of(group: ExceptionGroup[Exception]) -> BaseException | None:
    """Return the first error of a group; None = one in it is neither the hub's nor the system's."""
    expected, others = group.split((EdgeHubError, OSError))
    return None if expected is None or others is not None else first_of(expected)

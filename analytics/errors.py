"""Errors of the report and their exit codes: one tree, each with what, where and how to fix it."""

from __future__ import annotations

from typing import ClassVar, Final

EXIT_PARTIAL: Final = 6
"""Exit code of a job that is done without some hubs."""

EXIT_INTERRUPTED: Final = 130
"""Exit code of a job that Ctrl-C ended."""


class AnalyticsError(Exception):
    """Root of all errors that the operator can fix.

    Attributes:
        exit_code: Exit code of a job that ends with it.
    """

    exit_code: ClassVar[int] = 1


class JavaMissingError(AnalyticsError):
    """No Java that Spark can run on was found."""


class InputError(AnalyticsError):
    """The export cannot be read as it is."""


class QualityError(AnalyticsError):
    """No report can rest on the lines of a date; nothing was written."""

    exit_code: ClassVar[int] = 5

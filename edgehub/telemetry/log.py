"""Log set-up: structlog to stderr, console on a terminal, JSON lines otherwise.

Owns the process-wide log configuration; called once by the command line. Payloads, passwords and
keys are never logged; texts of peers are escaped by the renderers. Invariant: logging never raises:
a hub whose log has a full disk or no reader goes on doing its work.
"""

from __future__ import annotations

import contextlib
import io
import logging
import sys
from typing import TYPE_CHECKING, Any, TextIO, cast

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable


class _Threshold:
    """Drops what is below the level; loggers keep their processors, so it changes in here."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(
        self, _logger: object, method: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        number = logging.ERROR if method == "exception" else _number(method)
        if number < self.number:
            raise structlog.DropEvent
        return event


_threshold = _Threshold(logging.INFO)


def set_level(level: str) -> None:
    """Change the level of all loggers, those in use too.

    Args:
        level: `debug`, `info`, `warning` or `error`.
    """
    _threshold.number = _number(level)


class UnfailingStream(io.TextIOBase):
    """Writes to another stream; what that one cannot take is lost.

    Args:
        stream: Where text goes.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream

    def write(self, text: str, /) -> int:
        """Write what can be written."""
        # ValueError: the stream was closed under us.
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Write it now."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


def configure(*, level: str, fmt: str) -> None:
    """Set up logging.

    Args:
        level: `debug`, `info`, `warning` or `error`.
        fmt: `json`, `console`, or `auto` = console on a terminal.
    """
    stream = cast("TextIO", UnfailingStream(sys.stderr))
    renderer: Callable[[Any, str, Any], Any]
    if fmt == "console" or (fmt == "auto" and sys.stderr.isatty()):
        renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    else:
        renderer = structlog.processors.JSONRenderer()
    set_level(level)
    structlog.configure(
        processors=[
            _threshold,
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=True,
    )
    # Libraries that use the standard module: warnings only, the same stream.
    logging.basicConfig(level=logging.WARNING, stream=stream, force=True)


def _number(level: str) -> int:
    return logging.getLevelNamesMapping()[level.upper()]

"""Log set-up: structlog to stderr, console on a terminal, JSON lines otherwise.

Owns the process-wide log configuration; called once by the command line. Payloads, passwords and
keys are never logged; texts of peers are escaped by the renderers.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable


def configure(*, level: str, fmt: str) -> None:
    """Set up logging.

    Args:
        level: `debug`, `info`, `warning` or `error`.
        fmt: `json`, `console`, or `auto` = console on a terminal.
    """
    renderer: Callable[[Any, str, Any], Any]
    if fmt == "console" or (fmt == "auto" and sys.stderr.isatty()):
        renderer = structlog.dev.ConsoleRenderer()
    else:
        renderer = structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    # Libraries that use the standard module: warnings only, the same stream.
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, force=True)

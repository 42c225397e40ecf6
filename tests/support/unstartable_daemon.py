"""The daemon with something in the way of its start; TEST_FAULT says what.

Run as a script with the arguments of `edgehub`.
"""

from __future__ import annotations

import os
import sqlite3
from typing import TYPE_CHECKING

from edgehub.cli.main import main
from edgehub.clock import SystemClock
from edgehub.hub import hub, parts
from edgehub.store import opening, store

if TYPE_CHECKING:
    from typing import Any


def _no_boot(_clock: SystemClock) -> str:
    raise PermissionError(13, "Permission denied", "/proc/sys/kernel/random/boot_id")


def _busy(*_arguments: Any) -> Any:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR
    error.sqlite_errorname = "SQLITE_IOERR"
    raise error


def _bug(*_arguments: Any, **_named: Any) -> Any:
    message = "planted"
    raise RuntimeError(message)


match os.environ["TEST_FAULT"]:
    case "boot id":
        SystemClock.boot_id = _no_boot  # type: ignore[method-assign]
    case "recovery":
        opening.recover = _busy
    case "damage":
        opening._damage_shown = _bug  # noqa: SLF001 - what comes right after the file is open
    case "parts":
        store.Appender = _bug  # type: ignore[assignment, misc]
    case "journal":
        hub.JournalPart = _bug  # type: ignore[assignment, misc]
    case "egress":
        parts.EndpointsPart = _bug  # type: ignore[assignment, misc]
main()

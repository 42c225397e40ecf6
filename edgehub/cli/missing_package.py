"""A package that cannot be imported, in one line instead of a traceback.

Commands and parts of the hub import what they need on first use. Settings are checked for missing
extras beforehand; what is left is a package whose own libraries are absent, or that was removed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from edgehub.errors import StartupError, extra_hint, first_of

if TYPE_CHECKING:
    from types import TracebackType

_WITH_EXTRA: Final = re.compile(r"([A-Za-z0-9._-]+).*\bextra == ['\"]([^'\"]+)['\"]")
_DEVELOPMENT: Final = "dev"


def missing_package(error: BaseException) -> StartupError | None:
    """Return what an error means for the operator; None = it is not about other packages alone."""
    if isinstance(error, BaseExceptionGroup):
        imports, others = error.split(ImportError)
        if imports is None or others is not None:
            return None
        error = first_of(imports)
    if not isinstance(error, ImportError):
        return None
    package = _package(error)
    if package is None:
        return None
    return StartupError(f"the package {package} cannot be loaded: {error} ({_hint(package)})")


def _package(error: ImportError) -> str | None:
    """Return the package that an import asked for or failed in, None = a module of the hub."""
    name = error.name or _innermost(error.__traceback__)
    package = name.partition(".")[0]
    return None if package in {"", "edgehub"} else package


def _innermost(traceback: TracebackType | None) -> str:
    name = ""
    while traceback is not None:
        name = str(traceback.tb_frame.f_globals.get("__name__", ""))
        traceback = traceback.tb_next
    return name


def _hint(package: str) -> str:
    # Imported after a failure only: it takes as long as the rest of a command.
    from importlib import metadata  # noqa: PLC0415

    for requirement in metadata.requires("edgehub") or ():
        found = _WITH_EXTRA.match(requirement)
        if found and found[1].lower().replace("-", "_") == package and found[2] != _DEVELOPMENT:
            return extra_hint(found[2])
    return (
        "install edgehub again, with the packages that it needs: in a checkout pip install"
        " -c constraints.txt -e ., from a wheel pip install --force-reinstall with its name"
    )

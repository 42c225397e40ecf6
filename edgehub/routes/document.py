"""Manifests read from file and JSON, with duplicate members.

Owns the reading (names that occur twice are kept, numbers are checked) and the path from a whole
deployment to the desired properties of the hub. Invariant: every fault of file or text becomes a
`ManifestError`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NoReturn

from edgehub.errors import ManifestError, ManifestFault
from edgehub.storage.regular_file import open_regular

if TYPE_CHECKING:
    from pathlib import Path

FILE_BYTES_MAX: Final = 16 * 2**20
"""Largest file; a wrong path may lead to one without bounds."""

_MODULES: Final = "modulesContent"
_HUB: Final = "$edgeHub"
_DESIRED: Final = "properties.desired"


class Members(dict[str, Any]):
    """A JSON object that remembers the values of members that occur twice.

    Attributes:
        earlier: Name and value of members that a later one of the same name replaced.
    """

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__()
        self.earlier: list[tuple[str, Any]] = []
        for name, value in pairs:
            if name in self:
                self.earlier.append((name, self[name]))
            self[name] = value


def read_file(file: Path) -> str:
    """Return the text of a manifest's file; blocks on the disk.

    Raises:
        ManifestError: If it cannot be read, is too large or is no text.
    """
    try:
        with open_regular(file) as reader:
            data = reader.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise _unreadable(file, error.strerror or str(error), "check the path") from error
    if len(data) > FILE_BYTES_MAX:
        raise _unreadable(file, f"it has more than {FILE_BYTES_MAX} bytes", "check the path")
    try:
        # Editors on Windows put a byte order mark in front.
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _unreadable(file, f"not UTF-8: {error}", "save it as UTF-8") from error


def _unreadable(file: Path, reason: str, hint: str) -> ManifestError:
    fault = ManifestFault(path="", message=f"cannot read the manifest: {reason}", hint=hint)
    return ManifestError(str(file), [fault])


def read_document(document: object, file: str) -> object:
    """Return the desired properties of the hub out of a manifest in any of its wrappings.

    Args:
        document: JSON text, or what a JSON reader made of it.
        file: Where it came from, for errors.

    Raises:
        ManifestError: If the text is no JSON.
    """
    if isinstance(document, str):
        document = _parse(document, file)
    for name in (_MODULES, _HUB, _DESIRED):
        if isinstance(document, dict) and name in document:
            document = document[name]
    return document


def _parse(text: str, file: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=Members, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        fault = ManifestFault(
            path="", message=f"not JSON: {error.msg}", line=error.lineno, column=error.colno
        )
        raise ManifestError(file, [fault]) from error
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        raise ManifestError(
            file, [ManifestFault(path="", message=f"not JSON: {reason}")]
        ) from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")

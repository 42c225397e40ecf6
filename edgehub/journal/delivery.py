"""Carries whole segments to where reports read them: a folder, or a URL that fsspec knows.

Owns nothing; runs in the command line's process, so that no slow target holds up the hub. Plain
blocking code. Invariants: a file appears under its name whole or not at all; what is there already
is left as it is, so a repeated export changes nothing.
"""

from __future__ import annotations

import gzip
import hashlib
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from edgehub.durable_files import make_folder, sync_folder
from edgehub.errors import EdgeHubError

if TYPE_CHECKING:
    from collections.abc import Sequence

MANIFEST_VERSION: Final = 1


class ExportError(EdgeHubError):
    """Segments cannot be taken to their target."""


class Target(Protocol):
    """Where segments go."""

    def read(self, path: str) -> bytes | None:
        """Give a file's content, None = there is none."""

    def write(self, path: str, content: bytes) -> None:
        """Write a file whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """One segment that is where it should be; the keys are those of the export's manifest."""

    path: str
    bytes: int
    sha256: str
    lines: int
    first_commit: int
    last_commit: int


def open_target(target: str) -> Target:
    """Give the target of this name, a folder's path or a URL.

    Raises:
        ExportError: The URL needs something that is not installed, or is not known.
    """
    if "://" not in target:
        return FolderTarget(Path(target))
    try:
        import fsspec  # type: ignore[import-untyped]  # noqa: PLC0415 - an extra, for URLs only
    except ImportError as error:
        msg = f"{target}: URLs need fsspec (pip install 'edgehub[export]'); a folder does not"
        raise ExportError(msg) from error
    try:
        system, root = fsspec.core.url_to_fs(target)
    except (ImportError, ValueError) as error:
        raise ExportError(f"{target}: {error}") from error
    return UrlTarget(system, root, url=target)


def deliver(folder: Path, hub_id: str, paths: Sequence[str], target: Target) -> dict[str, Any]:
    """Take segments to a target, then write the manifest of this export.

    Args:
        folder: The hub's folder of segments.
        hub_id: The hub.
        paths: Segments relative to it, oldest first, at least one.
        target: Where to.

    Returns:
        The manifest, with its own `path` beside what stands in the file.

    Raises:
        ExportError: A file cannot be written, or a segment is damaged.
        OSError: A segment cannot be read.
    """
    segments: list[Delivered] = []
    for path in paths:
        content = (folder / path).read_bytes()
        segments.append(_described(path, content))
        if target.read(path) != content:
            target.write(path, content)
    dates = sorted({path.split("/", 1)[0].removeprefix("date=") for path in paths})
    manifest = {
        "v": MANIFEST_VERSION,
        "hub": hub_id,
        "dates": dates,
        "segments": [asdict(segment) for segment in segments],
    }
    content = orjson.dumps(manifest, option=orjson.OPT_APPEND_NEWLINE)
    # Dates need not rise with commits: those of no known date come last.
    first = min(segment.first_commit for segment in segments)
    last = max(segment.last_commit for segment in segments)
    name = f"{first:012d}-{last:012d}"
    path = f"_exports/hub={hub_id}/{name}.json"
    there = target.read(path)
    if there not in (None, content):
        # The numbers of commits began anew, with another database file.
        store = segments[0].path.rsplit("/", 1)[1].split(".", 1)[0].rsplit("-", 1)[1]
        path = f"_exports/hub={hub_id}/{name}-{store}.json"
        there = target.read(path)
    if there != content:
        target.write(path, content)
    return {**manifest, "path": path}


class FolderTarget:
    """A folder."""

    __slots__ = ("_root",)

    def __init__(self, root: Path) -> None:
        self._root = root

    def read(self, path: str) -> bytes | None:
        """See `Target`."""
        try:
            return (self._root / path).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failed(path, error) from error

    def write(self, path: str, content: bytes) -> None:
        """See `Target`."""
        file = self._root / path
        partial = file.with_name(f".{file.name}.part")
        try:
            make_folder(file.parent)
            with partial.open("wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            partial.rename(file)
            sync_folder(file.parent)
        except OSError as error:
            raise self._failed(path, error) from error

    def _failed(self, path: str, error: OSError) -> ExportError:
        return ExportError(f"{self._root / path}: {error.strerror or error}")


class UrlTarget:
    """A file system of fsspec."""

    __slots__ = ("_root", "_system", "_url")

    def __init__(self, system: Any, root: str, *, url: str) -> None:
        self._system = system
        self._root = root.rstrip("/")
        self._url = url

    def read(self, path: str) -> bytes | None:
        """See `Target`."""
        try:
            content: bytes = self._system.cat_file(f"{self._root}/{path}")
        except FileNotFoundError:
            return None
        except Exception as error:
            raise self._failed(path, error) from error
        return content

    def write(self, path: str, content: bytes) -> None:
        """See `Target`."""
        folder, _, name = f"{self._root}/{path}".rpartition("/")
        partial = f"{folder}/.{name}.part"
        try:
            self._system.makedirs(folder, exist_ok=True)
            self._system.pipe_file(partial, content)
            self._system.mv(partial, f"{folder}/{name}")
        except Exception as error:
            raise self._failed(path, error) from error

    def _failed(self, path: str, error: Exception) -> ExportError:
        return ExportError(f"{self._url.rstrip('/')}/{path}: {str(error) or type(error).__name__}")


def _described(path: str, content: bytes) -> Delivered:
    try:
        lines = gzip.decompress(content).splitlines()
        last = orjson.loads(lines[-1])["commit"]
        first = orjson.loads(lines[0])["commit"]
    except (OSError, EOFError, ValueError, LookupError) as error:
        msg = f"{path} is damaged: {error} (move it away; the others can be exported then)"
        raise ExportError(msg) from error
    return Delivered(
        path=path,
        bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        lines=len(lines),
        first_commit=first,
        last_commit=last,
    )

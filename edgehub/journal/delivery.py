"""Carries whole segments to where reports read them: a folder, or a URL that fsspec knows.

Owns nothing; runs in the command line's process, so that no slow target holds up the hub. Plain
blocking code. Invariants: a file appears under its name whole or not at all, also where two exports
run at once; a whole segment that is there already is never replaced, so a repeated export changes
nothing, and another hub of the same name loses nothing; one segment that cannot go holds up none of
the others.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import uuid
import zlib
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson
from msgspec import Struct, to_builtins

from edgehub.errors import EdgeHubError, extra_hint
from edgehub.storage.durable_files import make_folder, sync_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MANIFEST_VERSION: Final = 1
_FILE_URL: Final = "file://"


class ExportError(EdgeHubError):
    """Segments cannot be taken to their target."""


class Target(Protocol):
    """Where segments go."""

    def read(self, path: str) -> bytes | None:
        """Return a file's content, None = there is none."""

    def write(self, path: str, content: bytes) -> None:
        """Write a file whole."""


class Delivered(Struct, frozen=True, kw_only=True):
    """One segment that is where it should be; the keys are those of the export's manifest."""

    path: str
    bytes: int
    sha256: str
    lines: int
    first_commit: int
    last_commit: int

    @property
    def date(self) -> str:
        """Date of its lines, `unknown` = it is not known."""
        return self.path.split("/", 1)[0].removeprefix("date=")


def open_target(target: str) -> Target:
    """Return the target of this name, a folder's path or a URL.

    Raises:
        ExportError: The URL needs something that is not installed, or is not known.
    """
    if "://" not in target:
        return FolderTarget(Path(target))
    if target.startswith(_FILE_URL):
        # Not by fsspec, which waits for no disk: after a power cut segments would be missing that
        # the hub believes to be there.
        path = Path(target.removeprefix(_FILE_URL))
        if not path.is_absolute():
            raise ExportError(f"{target}: want an absolute path, as in file:///mnt/reports")
        return FolderTarget(path)
    try:
        import fsspec  # type: ignore[import-untyped]  # noqa: PLC0415 - an extra, for URLs only
    except ImportError as error:
        raise ExportError(
            f"{target}: URLs need fsspec, a folder does not ({extra_hint('export')})"
        ) from error
    try:
        system, root = fsspec.core.url_to_fs(target)
    except (ImportError, ValueError) as error:
        raise ExportError(f"{target}: {error}") from error
    return UrlTarget(system, root, url=target)


def is_inside(target: Target, folder: Path) -> bool:
    """Return whether a target is a folder, or lies in it."""
    return isinstance(target, FolderTarget) and target.root.resolve().is_relative_to(
        folder.resolve()
    )


class Delivery(Struct, frozen=True, kw_only=True):
    """What became of a plan.

    Attributes:
        manifest: Its own `path` and what stands in the file; None = nothing could be exported.
        done: Segments of the plan that need not go again: those that arrived, and those that the
            hub has deleted since.
        problems: Of each of the others, what is wrong with it and what to do.
    """

    manifest: dict[str, Any] | None
    done: list[str]
    problems: dict[str, str]


def deliver(folder: Path, hub_id: str, paths: Sequence[str], target: Target) -> Delivery:
    """Take segments to a target, then write the manifest of this export.

    Args:
        folder: The hub's folder of segments.
        hub_id: The hub.
        paths: Segments relative to it, oldest first.
        target: Where to.

    Raises:
        ExportError: The target takes no files.
    """
    segments: list[Delivered] = []
    done: list[str] = []
    problems: dict[str, str] = {}
    for path in paths:
        try:
            segment = _carried(folder, path, target)
        except _SegmentError as error:
            problems[path] = str(error)
            continue
        done.append(path)
        if segment is not None:
            segments.append(segment)
    manifest = _written_manifest(hub_id, segments, target) if segments else None
    return Delivery(manifest=manifest, done=done, problems=problems)


class _SegmentError(Exception):
    """One segment cannot go, the target is well."""


def _carried(folder: Path, path: str, target: Target) -> Delivered | None:
    """Take one segment there; None = the hub has deleted it since the plan was made."""
    try:
        content = (folder / path).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _SegmentError(f"{folder / path} cannot be read: {error.strerror or error}") from error
    segment = _described(path, content)
    there = target.read(path)
    if there == content:
        return segment
    if there is not None and _is_whole(there):
        raise _SegmentError(
            f"{path} is there with other lines: does another hub call itself by this name, or was"
            " this one restored from a backup? Export it to a place of its own, or move that file"
            " away"
        )
    target.write(path, content)
    return segment


def _is_whole(content: bytes) -> bool:
    """Return whether a segment of another hub would be lost with it."""
    try:
        return sum(1 for _ in _lines(content)) > 0
    except (OSError, EOFError, zlib.error):
        return False


def _lines(content: bytes) -> Iterator[bytes]:
    # One by one: as text a whole segment is some hundred megabytes.
    with gzip.open(BytesIO(content)) as stream:
        yield from stream


def _written_manifest(hub_id: str, segments: Sequence[Delivered], target: Target) -> dict[str, Any]:
    manifest = {
        "v": MANIFEST_VERSION,
        "hub": hub_id,
        "dates": sorted({segment.date for segment in segments}),
        "segments": [to_builtins(segment) for segment in segments],
    }
    content = orjson.dumps(manifest, option=orjson.OPT_APPEND_NEWLINE)
    # Dates need not rise with commits: those of no known date come last.
    first = min(segment.first_commit for segment in segments)
    last = max(segment.last_commit for segment in segments)
    name = f"{first:012d}-{last:012d}"
    path = f"_exports/hub={hub_id}/{name}.json"
    there = target.read(path)
    if there not in (None, content):
        # The numbers of commits began again, with another database file.
        store = segments[0].path.rsplit("/", 1)[1].split(".", 1)[0].rsplit("-", 1)[1]
        path = f"_exports/hub={hub_id}/{name}-{store}.json"
        there = target.read(path)
    if there != content:
        target.write(path, content)
    return {**manifest, "path": path}


class FolderTarget:
    """A folder.

    Attributes:
        root: The folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def read(self, path: str) -> bytes | None:
        """Return a file's content, None = there is none."""
        try:
            return (self.root / path).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failed(path, error) from error

    def write(self, path: str, content: bytes) -> None:
        """Write a file whole."""
        file = self.root / path
        partial = file.with_name(_partial(file.name))
        try:
            make_folder(file.parent)
            try:
                with partial.open("xb") as stream:
                    stream.write(content)
                    stream.flush()
                    os.fsync(stream.fileno())
                partial.replace(file)
            finally:
                # Ours after a failure, those of exports that were killed, and that of one that runs
                # at the same time: it finds what it wanted to write.
                for old in file.parent.glob(f".{file.name}.*.part"):
                    old.unlink(missing_ok=True)
            sync_folder(file.parent)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and self.read(path) == content:
                return
            raise self._failed(path, error) from error

    def _failed(self, path: str, error: OSError) -> ExportError:
        return ExportError(f"{self.root / path}: {error.strerror or error}")


class UrlTarget:
    """A file system of fsspec."""

    def __init__(self, system: Any, root: str, *, url: str) -> None:
        self._system = system
        self._root = root.rstrip("/")
        self._url = url

    def read(self, path: str) -> bytes | None:
        """Return a file's content, None = there is none."""
        try:
            content: bytes = self._system.cat_file(f"{self._root}/{path}")
        except FileNotFoundError:
            return None
        except Exception as error:
            # What a file system raises is its library's own; none of it is let through as that.
            raise self._failed(path, error) from error
        return content

    def write(self, path: str, content: bytes) -> None:
        """Write a file whole."""
        folder, _, name = f"{self._root}/{path}".rpartition("/")
        partial = f"{folder}/{_partial(name)}"
        try:
            self._system.makedirs(folder, exist_ok=True)
            self._system.pipe_file(partial, content)
            self._system.mv(partial, f"{folder}/{name}")
        except Exception as error:
            # As in `read`.
            raise self._failed(path, error) from error

    def _failed(self, path: str, error: Exception) -> ExportError:
        return ExportError(f"{self._url.rstrip('/')}/{path}: {str(error) or type(error).__name__}")


def _partial(name: str) -> str:
    """Name a file that grows: no other process's, and by the format no segment."""
    return f".{name}.{uuid.uuid4().hex[:12]}.part"


def _described(path: str, content: bytes) -> Delivered:
    first_line = last_line = b""
    count = 0
    try:
        for line in _lines(content):
            first_line = first_line or line
            last_line = line
            count += 1
        last = orjson.loads(last_line)["commit"]
        first = orjson.loads(first_line)["commit"]
    except (OSError, EOFError, zlib.error, ValueError, LookupError, TypeError) as error:
        raise _SegmentError(f"{path} is damaged: {error} (move it out of the journal)") from error
    return Delivered(
        path=path,
        bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        lines=count,
        first_commit=first,
        last_commit=last,
    )

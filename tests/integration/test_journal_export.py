"""Exports and the bounds of the journal's folder: once each, whole, the same when repeated."""

from __future__ import annotations

import gzip
import hashlib
import json
from typing import TYPE_CHECKING

import fsspec
import pytest

from edgehub.journal.delivery import ExportError, deliver, open_target
from edgehub.journal.exports import TARGETS_MAX, ExportBook
from edgehub.journal.retention import Bounds, drop_segments
from edgehub.journal.segments import Segments

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration

DAY = 20_000


def segments_in(folder: Path, count: int, *, lines: int = 3) -> Segments:
    """Make whole segments of consecutive days, one each."""
    segments = Segments(folder, hub_id="gw", store_id="00112233445566aa")
    for number in range(count):
        segment = segments.begin(DAY + number, 24 * (DAY + number), 10 * number + 1)
        commits = [10 * number + 1 + line for line in range(lines)]
        segments.append(segment, [json.dumps({"commit": commit}) + "\n" for commit in commits])
        segments.close(segment)
    return segments


def paths(segments: Segments) -> list[str]:
    """List the whole segments."""
    return [segment.path for segment in segments.closed()]


def content(folder: Path) -> dict[str, bytes]:
    """Read all files below a folder."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


def test_an_export_has_segments_and_a_manifest(tmp_path: Path) -> None:
    """As the page says, with checksums of what is there."""
    segments = segments_in(tmp_path / "journal", 2)
    out = tmp_path / "out"
    manifest = deliver(segments.folder, "gw", paths(segments), open_target(str(out)))
    files = content(out)
    stored = json.loads(files.pop("_exports/hub=gw/000000000001-000000000013.json"))
    assert stored == {key: value for key, value in manifest.items() if key != "path"}
    assert (stored["v"], stored["hub"]) == (1, "gw")
    assert stored["dates"] == ["2024-10-04", "2024-10-05"]
    assert [entry["path"] for entry in stored["segments"]] == sorted(files)
    for entry in stored["segments"]:
        data = files[entry["path"]]
        assert entry["bytes"] == len(data)
        assert entry["sha256"] == hashlib.sha256(data).hexdigest()
        assert entry["lines"] == len(gzip.decompress(data).splitlines()) == 3
        assert entry["last_commit"] == entry["first_commit"] + 2


@pytest.mark.parametrize("kind", ["folder", "file", "memory"])
def test_a_repeated_export_gives_the_same_names_and_bytes(tmp_path: Path, kind: str) -> None:
    """Also after one that was cut off before its manifest; folders and URLs alike."""
    segments = segments_in(tmp_path / "journal", 3)
    out = tmp_path / "out"
    name = {"folder": str(out), "file": f"file://{out}", "memory": f"memory://{out}"}[kind]
    target = open_target(name)
    first = paths(segments)[0]
    target.write(first, (segments.folder / first).read_bytes())
    deliver(segments.folder, "gw", paths(segments), target)
    system, root = fsspec.core.url_to_fs(name)
    once = {path: system.cat_file(path) for path in system.find(root)}
    deliver(segments.folder, "gw", paths(segments), open_target(name))
    assert {path: system.cat_file(path) for path in system.find(root)} == once
    assert len(once) == 4
    assert not any("/." in path.removeprefix(root) for path in once)


def test_a_target_that_takes_nothing_is_named(tmp_path: Path) -> None:
    """Where, and why; a URL that nobody knows too."""
    segments = segments_in(tmp_path / "journal", 1)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ExportError, match="file/date="):
        deliver(segments.folder, "gw", paths(segments), open_target(str(tmp_path / "file")))
    with pytest.raises(ExportError, match="nowhere"):
        open_target("nowhere://bucket")


def test_a_damaged_segment_is_named(tmp_path: Path) -> None:
    """It is not handed on as if it were whole."""
    segments = segments_in(tmp_path / "journal", 1)
    (path,) = paths(segments)
    (segments.folder / path).write_bytes(b"no gzip")
    with pytest.raises(ExportError, match=f"{path} is damaged"):
        deliver(segments.folder, "gw", [path], open_target(str(tmp_path / "out")))


def test_a_database_made_anew_does_not_replace_an_older_manifest(tmp_path: Path) -> None:
    """Commits count from 1 again: the manifest gets the store's digits to its name."""
    out = open_target(str(tmp_path / "out"))
    for lines, folder in ((3, "old"), (3, "new")):
        segments = segments_in(tmp_path / folder, 1 if folder == "old" else 2, lines=lines)
        deliver(segments.folder, "gw", paths(segments)[:1], out)
    assert len(content(tmp_path / "out" / "_exports")) == 1
    other = Segments(tmp_path / "other", hub_id="gw", store_id="ffeeddccbbaa0099")
    segment = other.begin(DAY, 24 * DAY, 1)
    other.append(segment, ['{"commit":1}\n', '{"commit":3}\n'])
    other.close(segment)
    deliver(other.folder, "gw", paths(other), out)
    assert sorted(content(tmp_path / "out" / "_exports" / "hub=gw")) == [
        "000000000001-000000000003-ffeeddcc.json",
        "000000000001-000000000003.json",
    ]


def test_a_plan_is_kept_until_it_is_done(tmp_path: Path) -> None:
    """Segments that are closed meanwhile wait for the next one; each target has its own."""
    book = ExportBook(tmp_path / "exports.json")
    assert book.plan("a", ["1", "2"]) == ["1", "2"]
    assert ExportBook(tmp_path / "exports.json").plan("a", ["1", "2", "3"]) == ["1", "2"]
    book.done("a", ["1", "2", "3"])
    assert book.exported() == {"1", "2"}
    again = ExportBook(tmp_path / "exports.json")
    assert again.plan("a", ["2", "3"]) == ["3"]
    assert again.plan("b", ["2", "3"]) == ["2", "3"]
    again.done("b", ["2", "3"])
    assert again.targets() == ["a", "b"]
    again.done("c", [])


def test_targets_are_bounded_and_a_broken_book_is_begun_anew(tmp_path: Path) -> None:
    """At worst segments go a second time."""
    book = ExportBook(tmp_path / "exports.json")
    for number in range(TARGETS_MAX + 3):
        book.plan(str(number), ["1"])
        book.done(str(number), ["1"])
    assert book.targets() == [str(number) for number in range(3, TARGETS_MAX + 3)]
    (tmp_path / "exports.json").write_text("{")
    assert ExportBook(tmp_path / "exports.json").plan("0", ["1"]) == ["1"]


def test_old_segments_go_and_those_never_exported_are_counted(tmp_path: Path) -> None:
    """By age."""
    segments = segments_in(tmp_path, 4)
    book = ExportBook(tmp_path / "exports.json")
    book.plan("out", paths(segments)[:1])
    book.done("out", paths(segments))
    found = drop_segments(segments, book, Bounds(keep_days=1, bytes_max=1 << 30), today=DAY + 3)
    assert list(found.kept) == paths(segments)
    assert len(found.kept) == 2
    assert found.not_exported == 1
    assert not list(tmp_path.glob("date=2024-10-04*"))


def test_exported_segments_make_room_first(tmp_path: Path) -> None:
    """By space: the exported ones, then the oldest."""
    segments = segments_in(tmp_path, 4)
    sizes = [segment.bytes for segment in segments.closed()]
    book = ExportBook(tmp_path / "exports.json")
    third = paths(segments)[2]
    book.plan("out", [third])
    book.done("out", paths(segments))
    bounds = Bounds(keep_days=999, bytes_max=sum(sizes) - 1)
    assert drop_segments(segments, book, bounds, today=DAY).not_exported == 0
    assert third not in paths(segments)
    bounds = Bounds(keep_days=999, bytes_max=sizes[3])
    found = drop_segments(segments, book, bounds, today=DAY)
    assert found.not_exported == 2
    assert found.not_exported_bytes == sizes[0] + sizes[1]
    assert len(found.kept) == 1


def test_a_target_that_got_nothing_is_not_listed(tmp_path: Path) -> None:
    """Neither with nothing to export, nor before the first export has come through."""
    book = ExportBook(tmp_path / "exports.json")
    assert book.plan("mistyped", []) == []
    book.done("mistyped", [])
    assert book.targets() == []
    assert book.plan("unreachable", ["a"]) == ["a"]
    assert book.plan("good", ["a"]) == ["a"]
    book.done("good", ["a"])
    assert book.targets() == ["good"]
    assert ExportBook(tmp_path / "exports.json").targets() == ["good"]
    # Once it has got something it stays, also when there is nothing more for it.
    assert book.plan("good", []) == []
    assert book.targets() == ["good"]
    assert book.plan("unreachable", ["a", "b"]) == ["a"]

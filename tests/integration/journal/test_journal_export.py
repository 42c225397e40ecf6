"""Exports and the bounds of the journal's folder: once each, whole, the same when repeated."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import fsspec
import pytest

from edgehub.cli.journal import CLOSINGS_MAX
from edgehub.control.server import ControlServer
from edgehub.journal.delivery import (
    Delivery,
    ExportError,
    FolderTarget,
    deliver,
    open_target,
)
from edgehub.journal.exports import TARGETS_MAX, ExportBook
from edgehub.journal.retention import Bounds, drop_segments
from edgehub.journal.segments import Segments
from tests.support.command_line import edgehub

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

pytestmark = pytest.mark.integration

DAY = 20_000


def segments_in(folder: Path, count: int, *, lines: int = 3) -> Segments:
    """Make whole segments of consecutive days, one each."""
    segments = Segments(folder, hub_id="gw", store_id="00112233445566aa")
    for number in range(count):
        segment = segments.begin(DAY + number, 24 * (DAY + number), 10 * number + 1)
        commits = [10 * number + 1 + line for line in range(lines)]
        segments.append(segment, [b'{"commit":%d}\n' % commit for commit in commits])
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
    delivery = deliver(segments.folder, "gw", paths(segments), open_target(str(out)))
    manifest = delivery.manifest
    assert manifest is not None
    assert (delivery.done, delivery.problems) == (paths(segments), {})
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


@pytest.mark.parametrize("damage", ["no gzip", "cut", "a bit", "no lines", "gone", "a folder"])
def test_a_segment_that_cannot_go_holds_up_no_other(tmp_path: Path, damage: str) -> None:
    """It is named, and not handed on as if it were whole; what was deleted is no trouble."""
    segments = segments_in(tmp_path / "journal", 3)
    bad = paths(segments)[1]
    file = segments.folder / bad
    whole = file.read_bytes()
    file.unlink()
    match damage:
        case "no gzip":
            file.write_bytes(b"no gzip")
        case "cut":
            file.write_bytes(whole[:-9])
        case "a bit":
            file.write_bytes(whole[:12] + bytes([whole[12] ^ 0xFF]) + whole[13:])
        case "no lines":
            file.write_bytes(gzip.compress(b"[1]\n"))
        case "a folder":
            file.mkdir()
        case _:
            assert damage == "gone"
    out = tmp_path / "out"
    delivery = deliver(
        segments.folder,
        "gw",
        [*paths(segments)[:1], bad, *paths(segments)[-1:]],
        open_target(str(out)),
    )
    others = [paths(segments)[0], paths(segments)[-1]]
    assert sorted(path for path in content(out) if path.startswith("date=")) == others
    assert delivery.manifest is not None
    assert [entry["path"] for entry in delivery.manifest["segments"]] == others
    assert delivery.manifest["dates"] == ["2024-10-04", "2024-10-06"]
    if damage == "gone":
        assert (sorted(delivery.done), delivery.problems) == (sorted([*others, bad]), {})
    else:
        assert delivery.done == others
        assert bad in delivery.problems[bad]


def test_another_hub_of_the_name_loses_nothing(tmp_path: Path) -> None:
    """A clone of a hub has segments of the same names; what is whole and not ours stays."""
    ours, theirs = (segments_in(tmp_path / name, 2, lines=n) for name, n in (("a", 3), ("b", 4)))
    out = tmp_path / "out"
    deliver(theirs.folder, "gw", paths(theirs)[:1], open_target(str(out)))
    before = content(out)
    delivery = deliver(ours.folder, "gw", paths(ours), open_target(str(out)))
    assert delivery.done == paths(ours)[1:]
    assert "another hub" in delivery.problems[paths(ours)[0]]
    after = content(out)
    assert {path: after[path] for path in before} == before
    # What was cut off there, by a copy or a power cut, is no segment of anybody.
    (out / paths(ours)[0]).write_bytes(before[paths(ours)[0]][:-4])
    assert deliver(ours.folder, "gw", paths(ours), open_target(str(out))).problems == {}
    assert (out / paths(ours)[0]).read_bytes() == (ours.folder / paths(ours)[0]).read_bytes()


def test_exports_at_once_leave_whole_segments_and_no_parts(tmp_path: Path) -> None:
    """A timer and a person: both end well; parts of one that was killed go with the next."""
    segments = segments_in(tmp_path / "journal", 6, lines=2_000)
    out = tmp_path / "out"
    part = out / paths(segments)[0]
    part.parent.mkdir(parents=True)
    part.with_name(f".{part.name}.0123456789ab.part").write_bytes(b"killed")
    gate = threading.Barrier(4)

    def export() -> Delivery:
        gate.wait(10)
        return deliver(segments.folder, "gw", paths(segments), open_target(str(out)))

    with ThreadPoolExecutor(4) as pool:
        ended = [pool.submit(export) for _ in range(4)]
    assert [each.result().problems for each in ended] == [{}] * 4
    files = content(out)
    assert len(files) == 7
    for path in paths(segments):
        assert files[path] == (segments.folder / path).read_bytes()


KILLED = """
import os, signal, stat, sys
from pathlib import Path
from edgehub.journal.delivery import deliver, open_target
from edgehub.journal.exports import ExportBook
from edgehub.journal.segments import Segments
from tests.support.command_line import edgehub
def step():
    global left
    left -= 1
    return left == 0
def count(event, arguments):
    changes = event in {"os.rename", "os.mkdir", "os.remove"}
    if changes or event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR):
        if step():
            os.kill(os.getpid(), signal.SIGKILL)
def sync(file, wait=os.fsync):
    if step():
        if not stat.S_ISDIR(os.fstat(file).st_mode):
            os.ftruncate(file, os.fstat(file).st_size // 2)
        os.kill(os.getpid(), signal.SIGKILL)
    wait(file)
def export(folder, out):
    segments = Segments(folder, hub_id="gw", store_id="00112233445566aa")
    closed = [segment.path for segment in segments.closed()]
    book = ExportBook(folder / "exports.json")
    sys.addaudithook(count)
    os.fsync = sync
    plan = book.plan(out, closed)
    if plan:
        book.done(out, closed, deliver(folder, "gw", plan, open_target(out)).done)
for line in sys.stdin:
    folder, out, left = line.rstrip("\\n").split("\\t")
    left = int(left)
    child = os.fork()
    if not child:
        export(Path(folder), out)
        os._exit(0)
    print(os.waitpid(child, 0)[1], flush=True)
"""


def test_an_export_killed_at_any_step_is_made_up_for(tmp_path: Path) -> None:
    """Before each change of a file or folder, and with half of what was not synced: never torn."""
    segments = segments_in(tmp_path / "journal", 1)
    expected = {path: (segments.folder / path).read_bytes() for path in paths(segments)}
    killed, status = 0, int(signal.SIGKILL)
    with subprocess.Popen(
        [sys.executable, "-c", KILLED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        while status:
            out = tmp_path / f"out-{killed}"
            (segments.folder / "exports.json").unlink(missing_ok=True)
            process.stdin.write(f"{segments.folder}\t{out}\t{killed + 1}\n")
            process.stdin.flush()
            status = int(process.stdout.readline())
            assert status in {0, signal.SIGKILL}
            found = content(out) if out.exists() else {}
            whole = {path: data for path, data in found.items() if path in expected}
            assert whole.items() <= expected.items()
            book = ExportBook(segments.folder / "exports.json")
            if plan := book.plan(str(out), paths(segments)):
                done = deliver(segments.folder, "gw", plan, open_target(str(out))).done
                book.done(str(out), paths(segments), done)
            after = content(out)
            assert len(after) == 2
            assert {path: after[path] for path in expected} == expected
            assert book.exported() == set(expected)
            killed += status != 0
    assert killed > 15


def test_a_file_url_is_a_folder(tmp_path: Path) -> None:
    """Synced to the disk as one, with spaces and signs as they stand; a relative one is refused."""
    segments = segments_in(tmp_path / "journal", 1)
    out = tmp_path / "of the #3 line"
    target = open_target(f"file://{out}")
    assert isinstance(target, FolderTarget)
    deliver(segments.folder, "gw", paths(segments), target)
    assert len(content(out)) == 2
    with pytest.raises(ExportError, match="absolute"):
        open_target("file://reports/here")


def test_a_new_database_does_not_replace_an_older_manifest(tmp_path: Path) -> None:
    """Commits count from 1 again: the manifest gets the store's digits to its name."""
    out = open_target(str(tmp_path / "out"))
    for lines, folder in ((3, "old"), (3, "new")):
        segments = segments_in(tmp_path / folder, 1 if folder == "old" else 2, lines=lines)
        deliver(segments.folder, "gw", paths(segments)[:1], out)
    assert len(content(tmp_path / "out" / "_exports")) == 1
    other = Segments(tmp_path / "other", hub_id="gw", store_id="ffeeddccbbaa0099")
    segment = other.begin(DAY, 24 * DAY, 1)
    other.append(segment, [b'{"commit":1}\n', b'{"commit":3}\n'])
    other.close(segment)
    deliver(other.folder, "gw", paths(other), out)
    assert sorted(content(tmp_path / "out" / "_exports" / "hub=gw")) == [
        "000000000001-000000000003-ffeeddcc.json",
        "000000000001-000000000003.json",
    ]


class BusyHub:
    """Answers as a hub whose events come faster than it can write their lines.

    Args:
        folder: Of its segments.
        behind: So many times some events have no lines yet when the growing segment is closed.
    """

    def __init__(self, folder: Path, behind: int) -> None:
        self.segments = Segments(folder, hub_id="gw", store_id="00112233445566aa")
        self.behind = behind
        self.closings = 0
        self.exported: list[str] = []

    async def plan(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Close a segment, if asked to, and list those that were not exported."""
        if closing := arguments["close"]:
            self.closings += 1
            day = DAY + self.closings
            segment = self.segments.begin(day, 24 * day, self.closings)
            self.segments.append(segment, [b'{"commit":%d}\n' % self.closings])
            self.segments.close(segment)
        left = [path for path in paths(self.segments) if path not in self.exported]
        return {
            "folder": str(self.segments.folder),
            "hub_id": "gw",
            "segments": left,
            "complete": not closing or self.closings > self.behind,
            "held_segments": 0,
            "clock": {"trusted": True, "reason": ""},
        }

    async def note(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Record what arrived."""
        self.exported += arguments["segments"]
        return {}


@pytest.mark.parametrize(
    ("behind", "closings", "code"), [(0, 1, 0), (3, 4, 0), (999, CLOSINGS_MAX, 75)]
)
async def test_closing_goes_on_until_all_events_have_lines(
    tmp_path: Path, behind: int, closings: int, code: int
) -> None:
    """Within a bound; then exit code 75 says that some could not go."""
    hub = BusyHub(tmp_path / "journal", behind)
    commands = {"journal plan": hub.plan, "journal exported": hub.note}
    server = ControlServer(tmp_path / "control.sock", commands)
    await server.open()
    (tmp_path / "edgehub.toml").write_text(f'data_dir = "{tmp_path}"\n')
    command = partial(edgehub, "journal", "export", "out", "--close", "--json", cwd=tmp_path)
    done = await asyncio.to_thread(command)
    await server.close()
    assert done.returncode == code, done.stderr
    assert hub.closings == closings
    assert json.loads(done.stdout)["complete"] == (code == 0)
    assert ("come too fast" in done.stderr) == (code == 75)
    assert sorted(hub.exported) == paths(hub.segments)
    assert len(hub.exported) == closings


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


def test_what_could_not_go_comes_again_and_holds_up_nothing(tmp_path: Path) -> None:
    """It is planned anew, with what was closed since; a target without anything is no target."""
    book = ExportBook(tmp_path / "exports.json")
    assert book.plan("a", ["1", "2"]) == ["1", "2"]
    book.done("a", ["1", "2"], [])
    assert book.targets() == []
    assert book.plan("a", ["1", "2", "3"]) == ["1", "2", "3"]
    book.done("a", ["1", "2", "3"], ["1", "3", "somebody else's"])
    assert book.exported() == {"1", "3"}
    assert book.plan("a", ["1", "2", "3"]) == ["2"]


@pytest.mark.parametrize(
    "text",
    ["{", "", "null", "[1]", '"a"', '{"0":1}', '{"0":{}}', '{"0":{"plan":[1],"exported":[]}}'],
)
def test_a_book_of_another_form_is_replaced(tmp_path: Path, text: str) -> None:
    """Whatever somebody left there stops no journal."""
    (tmp_path / "exports.json").write_text(text)
    book = ExportBook(tmp_path / "exports.json")
    assert book.exported() == set()
    assert book.plan("0", ["1"]) == ["1"]


def test_targets_are_bounded_and_a_broken_book_is_replaced(tmp_path: Path) -> None:
    """At worst segments go a second time."""
    book = ExportBook(tmp_path / "exports.json")
    for number in range(TARGETS_MAX + 3):
        book.plan(str(number), ["1"])
        book.done(str(number), ["1"])
    assert book.targets() == [str(number) for number in range(3, TARGETS_MAX + 3)]
    # The one that was used least lately goes, not the one that is known longest.
    book.plan("3", ["1", "2"])
    book.done("3", ["1", "2"])
    assert book.targets() == [str(number) for number in (*range(4, TARGETS_MAX + 3), 3)]
    (tmp_path / "exports.json").write_text("{")
    assert ExportBook(tmp_path / "exports.json").plan("0", ["1"]) == ["1"]


def test_old_segments_go_and_those_never_exported_are_counted(tmp_path: Path) -> None:
    """By age."""
    segments = segments_in(tmp_path, 4)
    book = ExportBook(tmp_path / "exports.json")
    book.plan("out", paths(segments)[:1])
    book.done("out", paths(segments))
    bounds = Bounds(keep_days=1, bytes_max=1 << 30)
    # An hour each, so that a clock that jumps ahead and back does not cost all of them.
    far = drop_segments(segments, book, bounds, today=DAY + 9_999)
    assert len(far.kept) == 3
    assert far.not_exported == 0
    found = drop_segments(segments, book, bounds, today=DAY + 3)
    assert list(found.kept) == paths(segments)
    assert len(found.kept) == 2
    assert found.not_exported == 1
    assert not list(tmp_path.glob("date=2024-10-04*"))
    # What is left is as old as it may be.
    assert len(drop_segments(segments, book, bounds, today=DAY + 3).kept) == 2


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


def test_the_journal_takes_a_share_of_a_small_volume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenth of it, whatever the bound: what waits to be sent needs the rest."""
    segments = segments_in(tmp_path, 4)
    size = sum([segment.bytes for segment in segments.closed()])
    usage = shutil.disk_usage(tmp_path)
    small = usage._replace(total=10 * (size - 1))
    monkeypatch.setattr("edgehub.journal.retention.disk_usage", lambda _: small)
    bounds = Bounds(keep_days=999, bytes_max=1 << 30)
    found = drop_segments(segments, ExportBook(tmp_path / "exports.json"), bounds, today=DAY)
    assert found.bytes_max == size - 1
    assert (len(found.kept), found.not_exported) == (3, 1)


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

"""The file endpoint on a real file system."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
import json
import os
import random
from typing import TYPE_CHECKING, Any

import pytest

from edgehub.clock import ManualClock
from edgehub.endpoints.file import FileEndpoint
from edgehub.endpoints.json_lines import JsonLinesFile
from edgehub.message import EndpointId, FailureKind
from tests.support.memory_queue import a_row
from tests.support.recording_listener import RecordingListener

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.integration

NOW_MS = 1_790_000_000_000


class Parts:
    """A file endpoint and a recording listener."""

    def __init__(self, path: Path, clock: ManualClock, **options: Any) -> None:
        self.path = path
        self.clock = clock
        self.listener = RecordingListener()
        self.endpoint = FileEndpoint(
            EndpointId("archive"),
            JsonLinesFile(path, **options),
            clock=clock,
            rng=random.Random(5),
            utc_ms=lambda hub_ms: NOW_MS + hub_ms,
        )

    def send(self, *rows: Any) -> None:
        """Hand rows over."""
        self.endpoint.send_batch(rows, self.listener.settle)

    async def settled(self, count: int) -> None:
        """Wait for that many results."""
        await self.listener.until(lambda: len(self.listener.results) >= count)

    def records(self) -> list[dict[str, Any]]:
        """Read the file back."""
        return [json.loads(line) for line in self.path.read_text().splitlines()]


@contextlib.asynccontextmanager
async def file_endpoint(path: Path, **options: Any) -> AsyncIterator[Parts]:
    """Run an endpoint for the length of the block; gives it once its link is up."""
    parts = Parts(path, ManualClock(), **options)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(parts.endpoint.run(parts.listener))
        yield parts
        task.cancel()


async def up(parts: Parts) -> None:
    """Wait for the link."""
    await parts.listener.until(lambda: parts.endpoint.state == "up")


async def test_the_file_is_for_its_user_and_group(tmp_path: Path) -> None:
    """Whatever the umask lets others do."""
    path = tmp_path / "rows.jsonl"
    file = JsonLinesFile(path)
    before = os.umask(0)
    try:
        file.open()
    finally:
        os.umask(before)
    file.close()
    assert path.stat().st_mode & 0o777 == 0o640


async def test_a_row_becomes_one_json_line(tmp_path: Path) -> None:
    """Every field of the record; text bodies as text, others as base64."""
    async with file_endpoint(tmp_path / "out" / "rows.jsonl") as parts:
        await up(parts)
        row = a_row(1, module="cam", body="grün\n".encode(), properties={"k": "v", "n": None})
        row.message.system["outputName"] = "alerts"
        row.enqueued_ms = 1234
        parts.send(row, a_row(2, body=b"\xff\x00"))
        assert parts.endpoint.unsent_bytes() > 0
        await parts.settled(2)
        first, second = parts.records()
        assert first == {
            "id": "m1",
            "device": "dev-1",
            "module": "cam",
            "output": "alerts",
            "enqueued": "2026-09-21T14:13:21.234Z",
            "properties": {"k": "v", "n": None},
            "body": "grün\n",
        }
        assert base64.b64decode(second["body_base64"]) == b"\xff\x00"
        assert "body" not in second
        assert parts.endpoint.unsent_bytes() == 0
        assert all(result.kind is None for result in parts.listener.results.values())


async def test_a_row_counts_only_after_its_fsync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delivered comes after the data reached the disk, and rows that wait share one fsync."""
    events: list[str] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (events.append("fsync"), real(descriptor)))
    async with file_endpoint(tmp_path / "rows.jsonl") as parts:
        await up(parts)
        events.clear()
        parts.send(*(a_row(number) for number in range(500)))
        assert parts.listener.results == {}
        await parts.settled(500)
        assert events == ["fsync"]


async def test_a_torn_last_line_is_cut_off(tmp_path: Path) -> None:
    """What a power cut left behind the last line end goes; whole lines stay."""
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"id":"old"}\n{"id":"torn' + b"x" * 200_000)
    async with file_endpoint(path) as parts:
        await up(parts)
        parts.send(a_row(1))
        await parts.settled(1)
        assert [record["id"] for record in parts.records()] == ["old", "m1"]


async def test_a_file_without_any_line_end_is_begun_again(tmp_path: Path) -> None:
    """A first line that never became whole is no line."""
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"id":"torn')
    async with file_endpoint(path) as parts:
        await up(parts)
        assert path.read_bytes() == b""


@pytest.mark.parametrize("change", ["moved", "deleted", "folder deleted", "emptied", "torn"])
async def test_a_file_changed_by_others_is_opened_again(tmp_path: Path, change: str) -> None:
    """Log rotation by name or by copy, a clean-up: the next row is whole and there."""
    path = tmp_path / "out" / "rows.jsonl"
    async with file_endpoint(path) as parts:
        await up(parts)
        parts.send(a_row(1))
        await parts.settled(1)
        match change:
            case "moved":
                path.rename(path.with_suffix(".1"))
            case "deleted":
                path.unlink()
            case "folder deleted":
                path.unlink()
                path.parent.rmdir()
            case "emptied":
                os.truncate(path, 0)
            case "torn":
                os.truncate(path, path.stat().st_size - 5)
        parts.send(a_row(2))
        await parts.settled(2)
        assert [record["id"] for record in parts.records()] == ["m2"]
        assert all(result.kind is None for result in parts.listener.results.values())


async def test_files_rotate_by_size_and_old_ones_go(tmp_path: Path) -> None:
    """No file grows beyond the bound, none is lost beyond those that are kept."""
    path = tmp_path / "rows.jsonl"
    async with file_endpoint(path, rotate_bytes=1000, keep_files=3) as parts:
        await up(parts)
        for number in range(20):
            parts.send(a_row(number))
            await parts.settled(number + 1)
    files = sorted(tmp_path.glob("rows-*Z-*.jsonl"))  # noqa: ASYNC240 - the endpoint has ended
    assert len(files) == 3
    assert all(file.stat().st_size <= 1000 for file in [*files, path])
    lines = [line for file in [*files, path] for line in file.read_text().splitlines()]
    first = 20 - len(lines)
    assert [json.loads(line)["id"] for line in lines] == [f"m{n}" for n in range(first, 20)]


async def test_a_full_disk_takes_the_link_down_and_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows come back uncounted, nothing torn stays, and the link returns after a back-off."""
    full = True
    real = os.write

    def write(descriptor: int, data: memoryview) -> int:
        if full and len(data) > 50:
            real(descriptor, data[:50])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    async with file_endpoint(tmp_path / "rows.jsonl") as parts:
        await up(parts)
        parts.send(a_row(1), a_row(2))
        await parts.settled(2)
        assert parts.listener.results[1].kind is FailureKind.DISCONNECTED
        assert parts.listener.links[-1] == f"down: {parts.path}: No space left on device"
        assert parts.path.read_bytes() == b""
        full = False
        parts.listener.results.clear()
        await parts.clock.advance(1.3)
        await up(parts)
        parts.send(a_row(1))
        await parts.settled(1)
        assert [record["id"] for record in parts.records()] == ["m1"]


async def test_a_path_that_cannot_be_written_keeps_the_link_down(tmp_path: Path) -> None:
    """A folder in the file's place is said by name of the error, and asked again."""
    path = tmp_path / "rows.jsonl"
    path.mkdir()
    async with file_endpoint(path) as parts:
        await parts.listener.until(lambda: bool(parts.listener.links))
        assert parts.listener.links == [f"down: {path}: Is a directory"]
        path.rmdir()
        parts.endpoint.retry_now()
        await up(parts)


async def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """Of several file endpoints the reason alone says which path is at fault."""
    (tmp_path / "file").write_text("", "utf-8")
    async with file_endpoint(tmp_path / "file" / "rows.jsonl") as parts:
        await parts.listener.until(lambda: bool(parts.listener.links))
        assert str(tmp_path / "file") in parts.listener.links[0]


async def test_stopping_waits_for_the_write_that_runs(tmp_path: Path) -> None:
    """What the thread has written counts as delivered; the rest is given back."""
    async with file_endpoint(tmp_path / "rows.jsonl") as parts:
        await up(parts)
        parts.send(a_row(1))
        await asyncio.sleep(0)
    written = [record["id"] for record in parts.records()]
    kind = parts.listener.results[1].kind
    assert (written, kind) in [(["m1"], None), ([], FailureKind.DISCONNECTED)]

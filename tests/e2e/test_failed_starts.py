"""Starts that fail half-way: the process ends by itself, and says what is in the way."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.local_load import publish_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.daemon import Daemon

pytestmark = pytest.mark.e2e

UNSTARTABLE = Path(__file__).parents[1] / "support" / "unstartable_daemon.py"
END_TIMEOUT_S = 15.0


def run(daemon: Daemon, fault: str) -> tuple[int, str]:
    """Start a hub with something in its way; gives its exit code and what it said."""
    ended = subprocess.run(
        [sys.executable, UNSTARTABLE, "run", "--config", daemon.config],
        cwd=daemon.folder,
        capture_output=True,
        text=True,
        env={**os.environ, "TEST_FAULT": fault},
        timeout=END_TIMEOUT_S,
        check=False,
    )
    return ended.returncode, ended.stderr


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("fault", "code", "said"),
    [
        ("boot id", 3, "let the hub read /proc/sys/kernel/random/boot_id"),
        ("recovery", 3, "cannot be opened (SQLITE_IOERR: disk I/O error)"),
        ("damage", 1, "planted"),
        ("parts", 1, "planted"),
        ("journal", 1, "planted"),
        ("egress", 1, "planted"),
    ],
)
def test_a_start_that_fails_half_way_ends(
    make_daemon: Callable[..., Daemon], fault: str, code: int, said: str
) -> None:
    """No thread of the database keeps the process alive for ever."""
    found, text = run(make_daemon(), fault)
    assert said in text
    assert found == code
    assert ("Traceback" in text) is (code == 1)


@pytest.mark.parametrize(
    ("package", "hint"),
    [("cryptography", "install the extra"), ("orjson", "install edgehub again")],
)
def test_a_package_that_cannot_be_loaded_is_named(
    make_daemon: Callable[..., Daemon], package: str, hint: str
) -> None:
    """Of an extra or not: one line says which, why, and how to install it."""
    daemon = make_daemon(top="", extra='[lora]\nport = 0\nstations = ["::1"]\n')
    broken = daemon.folder / "packages" / package
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('no libfoo.so')", "utf-8")
    ended = subprocess.run(
        [sys.executable, "-m", "edgehub", "--config", daemon.config, "run"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(broken.parent)},
        timeout=END_TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == 3
    assert "Traceback" not in ended.stderr
    said = ended.stderr.splitlines()[-1]
    assert said.startswith(f"edgehub: the package {package} cannot be loaded: no libfoo.so ({hint}")


def modes(folder: Path) -> dict[str, str]:
    """Return the permission bits of all in a folder, and of itself as `.`."""
    paths = [folder, *folder.rglob("*")]
    return {str(p.relative_to(folder)): f"{stat.S_IMODE(p.lstat().st_mode):o}" for p in paths}


@pytest.mark.timeout(60)
def test_its_user_alone_may_read_what_a_hub_keeps(make_daemon: Callable[..., Daemon]) -> None:
    """Files made at any time, by SQLite, for damage or the journal too, and those of before."""
    daemon = make_daemon(top="", extra="")
    data = daemon.folder / "data"
    old = data / "journal" / "date=2026-11-28" / "hub=x"
    old.mkdir(parents=True, mode=0o755)
    for path in (old / "old.jsonl.gz", data / "broker.json", data / "queue.db.damaged-old"):
        path.write_bytes(b"old")
        path.chmod(0o644)
    for name in ("state.db", "queue.db"):
        (data / name).write_bytes(b"no database" * 1000)
    (data / "notes.txt").write_bytes(b"an operator's own")
    data.chmod(0o755)
    before = os.umask(0)
    try:
        (data / "notes.txt").chmod(0o644)
        daemon.start()
    finally:
        os.umask(before)
    publish_all(daemon.mqtt_port, [("devices/d/messages/events/", b"x")], client_id="d")
    # Writes the lines that are due later.
    assert daemon.edgehub("journal", "show").returncode == 0
    seen = modes(data)
    daemon.stop()
    seen |= modes(data)
    assert seen.pop("notes.txt") == "644"
    wanted = {name: "700" if (data / name).is_dir() else "600" for name in seen}
    assert seen == wanted
    assert {"queue.db-wal", "queue.db-shm", "state.db-wal", "hub_id", "control.sock"} <= set(seen)
    assert any(name.startswith("state.db.damaged") for name in seen)
    assert any(name.endswith(".events") for name in seen)

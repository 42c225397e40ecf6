"""The hub's own name: chosen by the settings, or made at the first start and kept."""

from __future__ import annotations

import re
import secrets
import socket
from typing import TYPE_CHECKING

from edgehub.errors import StartupError
from edgehub.storage.durable_files import make_folder, replace_file, restrict, restrict_all

if TYPE_CHECKING:
    from pathlib import Path

_STATE_NAMES = ("queue.db", "state.db", "hub_id", "broker.json", "journal", "control.sock")
"""How the names of what a hub keeps in its folder begin; the folder may hold other things too."""

_VALID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


def load_hub_id(data_dir: Path, configured: str | None) -> str:
    """Make the data folder where it is missing and give the hub's id.

    Args:
        data_dir: State folder; gets mode 0700, and what an earlier start left there 0600.
        configured: `hub_id` of the settings; wins, and is not written down.

    Raises:
        StartupError: If the folder or the file cannot be used.
    """
    try:
        make_folder(data_dir, mode=0o700)
        _make_private(data_dir.resolve())
        if configured is not None:
            return configured
        file = data_dir / "hub_id"
        if file.exists():
            return _checked(file)
        host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()).strip("-.")[:100] or "hub"
        made = f"{host}-{secrets.token_hex(2)}"
        replace_file(file, f"{made}\n".encode("ascii"))
    except OSError as error:
        raise StartupError(
            f"cannot use the data folder {data_dir}: {error.strerror or error}"
            " (set data_dir to a folder this user may write)"
        ) from error
    return made


def is_hub_id(text: str) -> bool:
    """Return whether `text` can name a hub."""
    return _VALID.fullmatch(text) is not None


def stored_hub_id(data_dir: Path) -> str | None:
    """Return the id that an earlier start made; None = there was none, or it cannot be read."""
    try:
        return _checked(data_dir / "hub_id")
    except (OSError, StartupError):
        return None


def _make_private(data_dir: Path) -> None:
    restrict(data_dir)
    for path in data_dir.iterdir():
        if path.name.startswith(_STATE_NAMES):
            restrict_all(path)


def _checked(file: Path) -> str:
    text = file.read_text("utf-8-sig", errors="replace").strip()
    if not _VALID.fullmatch(text):
        raise StartupError(
            f"{file} does not hold a hub id (remove it for a new one, or set hub_id)"
        )
    return text

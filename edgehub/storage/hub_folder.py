"""Where a hub keeps its state and its control socket.

Pure but for the environment. It is apart from the settings, which take longer to import than a
command takes to ask a hub.
"""

from __future__ import annotations

import hashlib
import os
import tomllib
from pathlib import Path
from typing import Final

from edgehub.storage.regular_file import read_regular

_KEYS: Final = ("data_dir", "control_socket")


def service_folder(variable: str) -> Path | None:
    """Return the folder that systemd names in a variable, None = none."""
    # Several folders are joined with colons; the unit's own is the first.
    first = os.environ.get(variable, "").partition(":")[0]
    return Path(first) if first else None


def default_data_dir() -> Path:
    """Return the state folder of a hub whose settings name none."""
    return service_folder("STATE_DIRECTORY") or Path("edgehub-data")


def control_path(data_dir: Path | None, control_socket: Path | None) -> Path:
    """Return the path of the control socket.

    Args:
        data_dir: The state folder, None = it is not set.
        control_socket: The socket, None = it is not set.
    """
    # Two hubs of one environment differ in data_dir, so a given one decides.
    folder = data_dir or service_folder("RUNTIME_DIRECTORY") or default_data_dir()
    return control_socket or folder / "control.sock"


def settings_digest(file: Path | None) -> str:
    """Return what tells one content of a settings file from another, empty = there is no file.

    Raises:
        OSError: It cannot be read.
    """
    return "" if file is None else hashlib.sha256(read_regular(file)).hexdigest()


def quick_control_path(file: Path | None) -> Path | None:
    """Return the path of the control socket, None = the settings have to be read for that.

    Args:
        file: Settings file, None = none.
    """
    if any(name.upper().startswith("EDGEHUB_") for name in os.environ if name != "EDGEHUB_CONFIG"):
        return None
    try:
        document = {} if file is None else tomllib.loads(read_regular(file).decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        return None
    given = [document.get(key) for key in _KEYS]
    if any(value is not None and (not isinstance(value, str) or not value) for value in given):
        return None
    folder = Path() if file is None else file.parent
    return control_path(*(None if value is None else folder / value for value in given))

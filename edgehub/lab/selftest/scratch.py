"""The self-test's own folder: is there room for it, and what its hub is to do.

Owns the names inside the folder and the settings of the hub under test; blocks on the disk.
Invariant: nothing outside the folder is written, and the folder is removed at the end.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from edgehub.errors import EdgeHubError

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFIX: Final = "edgehub-selftest-"
SETTINGS: Final = "edgehub.toml"
MANIFEST: Final = "routes.json"
DATA: Final = "hub"
DELIVERED: Final = "delivered.jsonl"
PROBE: Final = "probe"
DRAIN_TIMEOUT_S: Final = 5

DELIVERED_KIND: Final = "delivered"
KEPT_KIND: Final = "kept"

_MIB: Final = 2**20
_RESERVE_BYTES: Final = 128 * _MIB
"""For the log of the database, the measurements, and what else lives on the file system."""
_BYTES_PER_S: Final = _MIB
"""What the devices' fastest pace leaves on disk in a second, rounded up; see `device.py`."""


class SelfTestError(EdgeHubError):
    """The self-test could not go on; the text says why."""


def needed_bytes(seconds: float) -> int:
    """Return the free space that a test with so many seconds of load asks for."""
    return _RESERVE_BYTES + round(seconds * _BYTES_PER_S)


@contextmanager
def scratch_folder(directory: Path, *, free_bytes_min: int) -> Iterator[Path]:
    """Make the folder with settings and manifest inside `directory`; remove it at the end.

    Args:
        directory: An existing folder on the disk to test.
        free_bytes_min: Free space without which the test does not begin.

    Raises:
        SelfTestError: If the folder cannot be made, or there is too little space.
    """
    directory = directory.absolute()
    try:
        made = tempfile.TemporaryDirectory(prefix=PREFIX, dir=directory)
    except OSError as error:
        raise SelfTestError(
            f"cannot make a folder in {directory}: {error.strerror or error}"
            " (name one that this user may write with --directory)"
        ) from error
    with made as name:
        free_bytes = shutil.disk_usage(name).free
        if free_bytes < free_bytes_min:
            raise SelfTestError(
                f"{directory} has {free_bytes // _MIB} MiB free, "
                f"the test wants {-(-free_bytes_min // _MIB)} MiB"
                " (free some, name another disk with --directory, or shorten it with --seconds)"
            )
        folder = Path(name)
        (folder / MANIFEST).write_text(json.dumps(_manifest()), "utf-8")
        (folder / SETTINGS).write_text(_settings(), "utf-8")
        yield folder


def _settings() -> str:
    # All else is what a hub does without any settings; a disk that is nearly full is no reason to
    # refuse the test's own messages.
    return f"""\
hub_id = "selftest"
data_dir = "{DATA}"
manifest = "{MANIFEST}"
drain_timeout_s = {DRAIN_TIMEOUT_S}
[store]
bytes_max = 0
free_bytes_min = 0
[mqtt]
port = 0
[upstream]
type = "file"
path = "{DELIVERED}"
rotate_bytes = 0
[log]
format = "json"
"""


def _manifest() -> dict[str, object]:
    # Half of the messages leave at once, the other half wait for a module that never comes, so that
    # a kill finds rows that are being written, sent, confirmed, and rows at rest.
    kept = 'BrokeredEndpoint("/modules/absent/inputs/kept")'
    return {
        "schemaVersion": "1.1",
        "routes": {
            "delivered": f"FROM /messages/* WHERE kind = '{DELIVERED_KIND}' INTO $upstream",
            "kept": f"FROM /messages/* WHERE kind = '{KEPT_KIND}' INTO {kept}",
        },
        "storeAndForwardConfiguration": {"timeToLiveSecs": -1},
    }

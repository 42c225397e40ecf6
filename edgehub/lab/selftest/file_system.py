"""What kind of file system a folder is on, and what that means for the test's figures.

Owns the reading of the kernel's list of mounts. Invariant: an unknown file system gets no remark,
never a wrong one.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Final

from msgspec import Struct

_MOUNTS: Final = Path("/proc/self/mountinfo")
_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
_LAYERED: Final = frozenset({"overlay", "aufs"})
_NETWORK: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "glusterfs", "lustre", "afs", "ocfs2", "gfs2"}
)
_PASSED_ON: Final = frozenset({"9p", "virtiofs", "fuse", "fuseblk", "vboxsf"})
_NO_JOURNAL: Final = frozenset({"vfat", "msdos", "exfat", "ext2"})


class FileSystem(Struct, frozen=True, kw_only=True):
    """Where the test ran.

    Attributes:
        kind: The kernel's name of the file system, for example `ext4`; empty = not known.
        mount_point: Where it is mounted.
        free_bytes: Space that this user may still take.
    """

    kind: str
    mount_point: str
    free_bytes: int

    @property
    def remark(self) -> str:
        """Return what the kind of file system means for the figures; empty = nothing special."""
        family = "fuse" if self.kind.startswith("fuse.") else self.kind
        if family in _MEMORY:
            return (
                f"{self.kind} is memory: the figures say nothing about a disk, and nothing in it "
                "outlives a restart of the machine; keep no hub's state there"
            )
        if family in _LAYERED:
            return (
                f"{self.kind} is a container's own layer: what is in it goes with the container, "
                "and its figures are not those of a volume; give the state a volume"
            )
        if family in _NETWORK:
            return (
                f"{self.kind} is a network file system: a sync is as good as the server's word for "
                "it, and the figures change with the network; keep a hub's state on a local disk"
            )
        if family in _PASSED_ON:
            return (
                f"{self.kind} passes calls on to another program or to the host: whether a sync "
                "reaches the disk is decided there"
            )
        if family in _NO_JOURNAL:
            return (
                f"{self.kind} has no journal: a power cut may damage folders and files that no one "
                "wrote to; keep a hub's state on ext4 or f2fs"
            )
        return ""


def file_system_of(folder: Path) -> FileSystem:
    """Look up the file system of an existing folder; blocks on the disk."""
    folder = folder.resolve()
    try:
        mounts = _MOUNTS.read_text("utf-8", errors="surrogateescape")
    except OSError:
        mounts = ""
    kind, mount_point = find_mount(mounts, folder)
    free_bytes = shutil.disk_usage(folder).free
    return FileSystem(kind=kind, mount_point=mount_point, free_bytes=free_bytes)


def find_mount(mounts: str, folder: Path) -> tuple[str, str]:
    """Find the mount that a folder is on.

    Args:
        mounts: Text of `/proc/self/mountinfo`.
        folder: Absolute path without symbolic links.

    Returns:
        Kind of file system and mount point; the kind is empty when none is found.

    Source: proc(5), /proc/pid/mountinfo.
    """
    best = ("", "/")
    for line in mounts.splitlines():
        left, separator, right = line.partition(" - ")
        fields = left.split(" ")
        if not separator or len(fields) < 5:  # noqa: PLR2004 - the mount point is the fifth field
            continue
        mount_point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[4])
        # Of two on one place the later one hides the earlier.
        if folder.is_relative_to(mount_point) and len(mount_point) >= len(best[1]):
            best = (right.split(" ")[0], mount_point)
    return best

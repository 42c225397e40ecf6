"""Which file system a folder is on, and what that means for the figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgehub.lab.selftest.file_system import FileSystem, find_mount

MOUNTS = r"""22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw
25 22 0:22 / /tmp rw,nosuid - tmpfs tmpfs rw,size=65536k
26 22 179:3 / /var/lib rw,noatime - f2fs /dev/mmcblk0p3 rw
27 22 0:40 / /mnt/my\040disk rw master:3 propagate_from:2 - nfs4 server:/export rw
28 26 179:4 / /var/lib rw - btrfs /dev/mmcblk0p4 rw
nonsense
"""


@pytest.mark.parametrize(
    ("folder", "found"),
    [
        ("/etc", ("ext4", "/")),
        ("/tmp/x", ("tmpfs", "/tmp")),
        ("/tmpx", ("ext4", "/")),
        ("/mnt/my disk/a", ("nfs4", "/mnt/my disk")),
    ],
)
def test_the_deepest_mount_is_the_folder_s(folder: str, found: tuple[str, str]):
    """Whole names count, blanks are decoded."""
    assert find_mount(MOUNTS, Path(folder)) == found


def test_a_later_mount_on_one_place_hides_the_earlier():
    """What was mounted last is what a program sees."""
    assert find_mount(MOUNTS, Path("/var/lib/edgehub")) == ("btrfs", "/var/lib")


def test_without_a_list_of_mounts_nothing_is_known():
    """An empty kind, and no remark on it."""
    kind, mount_point = find_mount("", Path("/var"))
    assert FileSystem(kind=kind, mount_point=mount_point, free_bytes=0).remark == ""


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("tmpfs", "memory"),
        ("overlay", "container"),
        ("nfs4", "network"),
        ("fuse.sshfs", "another program"),
        ("vfat", "no journal"),
    ],
)
def test_a_file_system_that_bends_the_figures_gets_a_remark(kind: str, words: str):
    """It says what the kind means."""
    assert words in FileSystem(kind=kind, mount_point="/", free_bytes=0).remark


@pytest.mark.parametrize("kind", ["ext4", "f2fs", "btrfs", "xfs"])
def test_a_local_disk_gets_none(kind: str):
    """Nothing special."""
    assert FileSystem(kind=kind, mount_point="/", free_bytes=0).remark == ""

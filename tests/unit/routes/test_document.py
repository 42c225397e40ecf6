"""A manifest's file: what cannot be read is a fault of the manifest."""

import sys
from pathlib import Path

import pytest

from edgehub.errors import ManifestError
from edgehub.routes.document import FILE_BYTES_MAX, read_file


def fault(path: Path) -> str:
    """Return the one fault of a file that is refused."""
    with pytest.raises(ManifestError) as caught:
        read_file(path)
    (found,) = caught.value.faults
    assert str(path) in str(caught.value)
    return str(found)


def test_what_cannot_be_read_is_said(tmp_path):
    """A missing file, a folder, bytes that are no text."""
    assert "No such file" in fault(tmp_path / "none")
    assert "is no regular file" in fault(tmp_path)
    (tmp_path / "latin").write_bytes(b'{"name": "\xe4"}')
    assert "not UTF-8" in fault(tmp_path / "latin")


@pytest.mark.skipif(sys.platform != "linux", reason="needs a device that never ends")
def test_a_large_file_is_refused(tmp_path):
    """A wrong path never fills the memory."""
    with (tmp_path / "m").open("wb") as file:
        file.truncate(FILE_BYTES_MAX + 1)
    assert f"more than {FILE_BYTES_MAX} bytes" in fault(tmp_path / "m")


def test_a_byte_order_mark_is_passed_over(tmp_path):
    """Editors on Windows write one."""
    (tmp_path / "m").write_bytes(b"\xef\xbb\xbf{}")
    assert read_file(tmp_path / "m") == "{}"

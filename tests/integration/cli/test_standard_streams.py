"""The command line as a process: broken and closed standard streams."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import edgehub

pytestmark = pytest.mark.integration

EDGEHUB = [sys.executable, "-m", "edgehub"]


@pytest.mark.parametrize("arguments", [["version"], ["route", "test", "-"]])
def test_a_full_disk_behind_the_output_is_one_line(arguments):
    """No traceback: the reason and exit code 1."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*EDGEHUB, *arguments],
            input=b'{"condition": "true"}\n',
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, b"edgehub: No space left on device\n")


def test_a_reader_that_goes_away_is_no_error_to_speak_of():
    """`edgehub route test - | head -1` ends quietly."""
    lines = b'{"condition": "true"}\n' * 5_000
    with subprocess.Popen(
        [*EDGEHUB, "route", "test", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(lines[:22])
        process.stdin.flush()
        assert process.stdout.readline().startswith(b'{"id"')
        process.stdout.close()
        try:
            process.stdin.write(lines)
            process.stdin.close()
        except BrokenPipeError:
            pass
        assert process.stderr.read() == b""


@pytest.mark.parametrize("command", [["status"], ["config", "reload"]], ids=" ".join)
def test_a_command_in_another_folder_names_the_file_it_looked_for(tmp_path, command):
    """Without edgehub.toml and without a hub: where to run it, or which option to give."""
    done = edgehub(*command, cwd=tmp_path)
    assert done.returncode == 4
    assert "there is no edgehub.toml here: run the command in the hub's folder" in done.stderr
    (tmp_path / "edgehub.toml").write_text("", "utf-8")
    done = edgehub(*command, cwd=tmp_path)
    assert done.returncode == 4
    assert "no hub answers on" in done.stderr
    assert "edgehub.toml" not in done.stderr


def test_a_service_without_settings_is_not_looked_for_elsewhere(tmp_path):
    """Its folders are named by systemd, so the working folder does not matter."""
    folders = {"CONFIGURATION_DIRECTORY": str(tmp_path), "RUNTIME_DIRECTORY": str(tmp_path)}
    done = edgehub("status", cwd=tmp_path, env=folders)
    assert done.returncode == 4
    assert f"no hub answers on {tmp_path}/control.sock" in done.stderr
    assert "edgehub.toml" not in done.stderr


def test_a_closed_standard_input_is_no_password(tmp_path):
    """Where there is nothing to read a password from, that is said."""
    command = [*EDGEHUB, "identity", "add", "dev1", "--file", str(tmp_path / "ids")]
    done = subprocess.run(
        ["/bin/sh", "-c", 'exec "$@" <&-', "sh", *command],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == (
        b"Error: the password has 0 bytes, allowed are 1 to 1024 "
        b"(give --password-file, or write it to the standard input)\n"
    )

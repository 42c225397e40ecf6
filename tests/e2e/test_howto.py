"""A reader who copies the commands of a page, one after the other, gets where it leads."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.daemon import Daemon
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]

HOWTO = Path(__file__).parents[2] / "docs" / "howto"
BLOCKS = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DEVICES = "dev_eui,app_key\n70B3D57ED0000002,2B7E151628AED2A6ABF7158809CF4F3C\n"


class Reader:
    """Someone with terminals in the folder of a hub.

    Args:
        hub: The hub, on other ports than those of the documents.
        ports: Those ports, by the ones that stand in the documents.
        token: For the HTTP API.
    """

    def __init__(self, hub: Daemon, ports: dict[str, int], token: str) -> None:
        self.hub = hub
        self._ports = ports
        self._token = token
        self._other: subprocess.Popen[str] | None = None

    def follow(self, page: str, *left_out: str) -> str:
        """Do what the shell blocks of a page say.

        Args:
            page: Its name.
            left_out: Headings of sections that need other settings.

        Returns:
            What the commands printed.
        """
        text = re.sub(
            r"\b(1883|8090|8887)\b",
            lambda found: str(self._ports[found[1]]),
            (HOWTO / f"{page}.md").read_text("utf-8"),
        )
        parts = text.split("\n## ")
        assert set(left_out) < {part.partition("\n")[0] for part in parts}
        text = "\n## ".join(part for part in parts if part.partition("\n")[0] not in left_out)
        printed = ""
        for language, block in BLOCKS.findall(text):
            if language == "python":
                (self.hub.folder / "pump.py").write_text(block, "utf-8")
            if language == "sh":
                for line in block.replace("\\\n", " ").splitlines():
                    printed += self._do(line)
        return printed + self._turn_to_the_other_terminal()

    def close(self) -> None:
        """Close the terminals."""
        if self._other is not None:
            self._other.kill()
            self._other.communicate()

    def _do(self, line: str) -> str:
        command, _, comment = line.partition(" # ")
        if "in one terminal" in comment:
            return self._start(command)
        output = ""
        for each in command.split(" | "):
            output = self._run(each, output)
        return output

    def _run(self, command: str, entered: str) -> str:
        program, *arguments = shlex.split(command.replace("$TOKEN", self._token))
        if program == "edgehub":
            done = self.hub.edgehub(*arguments, stdin=entered.encode())
        else:
            assert program == "curl"
            done = subprocess.run(
                [program, "--silent", "--fail-with-body", *arguments],
                capture_output=True,
                text=True,
                check=False,
            )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def _start(self, command: str) -> str:
        """Start what stays in the first terminal, in place of what was there."""
        printed = self._turn_to_the_other_terminal()
        program, *arguments = shlex.split(command)
        module = ["-m", "edgehub"] if program == "edgehub" else []
        self._other = subprocess.Popen(
            [sys.executable, *module, *arguments],
            cwd=self.hub.folder,
            env={**os.environ, **self.hub.env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if module:
            assert self._other.stderr is not None
            assert "listening at" in self._other.stderr.readline()
        return printed

    def _turn_to_the_other_terminal(self) -> str:
        """Return a line that what runs there has printed, and end it."""
        if self._other is None:
            return ""
        assert self._other.stdout is not None
        line = self._other.stdout.readline()
        self.close()
        self._other = None
        return line


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """A hub as the pages have it, with a token for its API."""
    ports = {name: free_port() for name in ("1883", "8090", "8887")}
    text = (
        f'data_dir = "data"\n[mqtt]\nport = {ports["1883"]}\n[log]\nformat = "json"\n'
        f'[web]\nport = {ports["8090"]}\ntoken_file = "tokens"\n'
        f'[lora]\nport = {ports["8887"]}\nregion = "EU868"\nstations = ["b827:ebff:fe12:3456"]\n'
    )
    daemon = Daemon(tmp_path_factory.mktemp("hub"), text)
    token = daemon.edgehub("token", "add", "deploy", "--role", "write").stdout.strip()
    (daemon.folder / "devices.csv").write_text(DEVICES, "utf-8")
    with contextlib.closing(daemon.start()):
        reader = Reader(daemon, ports, token)
        with contextlib.closing(reader):
            yield reader
        assert daemon.stop() == 0


def test_a_message_reaches_its_device(reader: Reader) -> None:
    """From the command line, and from a program."""
    printed = reader.follow("messages-to-devices")
    assert "stored: " in printed
    assert re.search(r'devices/pump-7/messages/devicebound/\S* {"open": true}\n', printed)
    assert '"waiting":' in printed


def test_a_property_is_set_and_reported_and_a_method_called(reader: Reader) -> None:
    """The device sees the property and the call, and the operator its report and answer."""
    printed = reader.follow("twins-and-methods")
    assert '/desired/?$version=2 {"interval_s":5,"$version":2}' in printed
    assert '"firmware": "1.4"' in printed
    assert "reboot " in printed
    assert '"status": 200' in printed
    assert '"done": true' in printed


def test_a_simulated_device_joins_and_is_heard(reader: Reader) -> None:
    """Its frames wait in the queue, with what is known of the radio."""
    printed = reader.follow("lorawan", "Keep devices in twins upstream")
    assert "joined: 3" in printed
    assert "loraPort=" in printed
    assert "B827EBFFFE123456  connected" in printed or "B827EBFFFE123456  absent" in printed

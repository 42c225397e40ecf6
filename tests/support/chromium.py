"""A headless Chromium without a network: does a file open, and what does its console say?"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path


_OPTIONS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--proxy-server=127.0.0.1:9",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


@dataclass(frozen=True, slots=True)
class Opened:
    """What a browser made of a file.

    Attributes:
        document: Its document after loading.
        console: What was written to the console; errors of loading among them.
    """

    document: str
    console: list[str]


def open_page(page: Path, profile: Path) -> Opened:
    """Open a file with every host name unknown and a proxy where nobody listens."""
    return open_url(page.as_uri(), profile)


def open_url(url: str, profile: Path) -> Opened:
    """Open an address of this machine's loopback likewise; scripts run for some seconds."""
    chromium = shutil.which("chromium")
    assert chromium, "install Debian's chromium"
    told = subprocess.run(
        [
            chromium,
            *_OPTIONS,
            f"--user-data-dir={profile}",
            "--enable-logging=stderr",
            "--virtual-time-budget=2000",
            "--dump-dom",
            url,
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    console = [line for line in told.stderr.splitlines() if ":CONSOLE" in line]
    return Opened(told.stdout, console)


class Browser:
    """A headless Chromium that goes on running, spoken to over its debugging pipe.

    Source: Chrome DevTools Protocol 1.3 (`--remote-debugging-pipe`: JSON, each message ended by a
    zero byte, to descriptor 3 and from descriptor 4).

    Args:
        profile: Folder for its profile.
    """

    def __init__(self, profile: Path) -> None:
        chromium = shutil.which("chromium")
        assert chromium, "install Debian's chromium"
        theirs, to_it = os.pipe()
        from_it, theirs_too = os.pipe()
        self._to, self._from = os.fdopen(to_it, "wb", 0), os.fdopen(from_it, "rb", 0)
        self._number, self._rest, self._session, self._loaded = 0, b"", "", False
        options = (*_OPTIONS, "--remote-debugging-pipe", f"--user-data-dir={profile}")
        # Descriptors 3 and 4 are fixed; a shell puts ours there.
        move = f'exec 8<&{theirs} 9>&{theirs_too}; exec "$0" "$@" 3<&8 4>&9'
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", move, chromium, *options],
            pass_fds=(theirs, theirs_too),
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs)
        os.close(theirs_too)

    def open(self, url: str) -> None:
        """Show an address in a new tab, and wait until it is loaded."""
        self._session = ""
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self._ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self._ask("Page.enable")
        self._load("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """Return what a script of the page gives; one that waits is waited for."""
        told = self._ask(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def reload(self) -> None:
        """Load the page anew."""
        self._load("Page.reload")

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(10)
        self._to.close()
        self._from.close()

    def _load(self, method: str, **parameters: Any) -> None:
        self._loaded = False
        self._ask(method, **parameters)
        while not self._loaded:
            self._read()

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._to.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], 20)
            assert ready, "Chromium does not answer"
            read = os.read(self._from.fileno(), 65536)
            assert read, "Chromium ended"
            self._rest += read
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._loaded = self._loaded or message.get("method") == "Page.loadEventFired"
        return message

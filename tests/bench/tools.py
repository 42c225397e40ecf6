"""The processes around a measurement: load tool, hub, Mosquitto; each bounded and cleaned up."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.support.daemon import Daemon
from tests.support.mosquitto import Mosquitto

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

FOLDER: Final = Path(__file__).parent
MQTTLOAD: Final = FOLDER / "bin" / "mqttload"
MANIFEST: Final = "routes.json"
LOAD_TIMEOUT_S: Final = 120
EDGEHUB: Final = Path(sys.executable).with_name("edgehub")
FLOOD: Final = 10_000_000
"""Messages of a publisher that ends with the measurement."""


def build() -> None:
    """Compile the load tool if its sources are newer than the binary."""
    sources = [FOLDER / "mqttload.c", FOLDER / "link.c", FOLDER / "link.h"]
    newest = max(source.stat().st_mtime for source in sources)
    if MQTTLOAD.exists() and MQTTLOAD.stat().st_mtime >= newest:
        return
    MQTTLOAD.parent.mkdir(exist_ok=True)
    units = [str(source) for source in sources if source.suffix == ".c"]
    subprocess.run(["cc", "-O2", "-o", str(MQTTLOAD), *units], check=True)


def publish(port: int, messages: int, **options: Any) -> dict[str, Any]:
    """Run the load tool's publisher to its end and give its figures."""
    arguments = ["publish", "--port", str(port), "--messages", str(messages), *_flags(options)]
    done = subprocess.run(
        [MQTTLOAD, *arguments],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        timeout=LOAD_TIMEOUT_S,
    )
    return _figures(done.stdout)


@contextmanager
def flood(port: int, **options: Any) -> Iterator[None]:
    """Run the load tool's publisher beside a measurement, to its end."""
    # A measurement that takes too long ends by its own limit, which is half of this one.
    flags = _flags({"timeout": 2 * LOAD_TIMEOUT_S, **options})
    arguments = ["publish", "--port", str(port), "--messages", str(FLOOD), *flags]
    process = subprocess.Popen([MQTTLOAD, *arguments], stdout=subprocess.DEVNULL)
    try:
        yield
        if process.poll() is not None:
            msg = "the publisher ended before the measurement"
            raise RuntimeError(msg)
    finally:
        process.kill()
        process.wait()


def _flags(options: dict[str, Any]) -> list[str]:
    flags = []
    for name, value in {"timeout": LOAD_TIMEOUT_S, **options}.items():
        flags += [f"--{name}", str(value)]
    return flags


def _figures(text: str) -> dict[str, Any]:
    figures = json.loads(text.splitlines()[-1])
    assert isinstance(figures, dict)
    return figures


class Receiver:
    """The load tool as the far end: a sink, or a subscriber at a broker.

    Attributes:
        port: Where a sink listens, or the broker.
    """

    def __init__(self, mode: str, port: int, messages: int, **options: Any) -> None:
        arguments = [mode, "--port", str(port), "--messages", str(messages), *_flags(options)]
        self._process = subprocess.Popen([MQTTLOAD, *arguments], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        first = json.loads(self._process.stdout.readline())
        self.port: int = first.get("port", port)

    def wait_client(self) -> None:
        """Wait until the first client of a sink has connected."""
        assert self._process.stdout is not None
        json.loads(self._process.stdout.readline())

    def result(self) -> dict[str, Any]:
        """Wait for the last message and give the figures."""
        out, _ = self._process.communicate(timeout=LOAD_TIMEOUT_S)
        if self._process.returncode != 0:
            msg = f"the receiver did not get all messages: {out}"
            raise RuntimeError(msg)
        return _figures(out)

    def close(self) -> None:
        """Leave no process behind."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


class HubProcess(Daemon):
    """`edgehub run`, with what the kernel says of it.

    A process of its own: forks of one that has loaded the modules start faster and share memory.
    """

    def __init__(self, folder: Path, config: str) -> None:
        super().__init__(folder, config, program=(str(EDGEHUB),))

    def cpu_s(self) -> float:
        """Return the processor time used so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text("ascii").rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def written_bytes(self) -> int:
        """Return the bytes that it has caused to be written to disk."""
        lines = Path(f"/proc/{self.pid}/io").read_text("ascii").splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("write_bytes:")))

    def rss_mb(self) -> float:
        """Return the resident memory."""
        lines = Path(f"/proc/{self.pid}/status").read_text("ascii").splitlines()
        kilobytes = next(line.split()[1] for line in lines if line.startswith("VmRSS"))
        return int(kilobytes) / 1024


def write_manifest(folder: Path, routes: Mapping[str, Any]) -> None:
    """Write a manifest with these routes, by name, into the folder of the settings."""
    document = {
        "schemaVersion": "1.1",
        "routes": routes,
        "storeAndForwardConfiguration": {"timeToLiveSecs": 7200},
    }
    (folder / MANIFEST).write_text(json.dumps(document))


@contextmanager
def a_hub(
    folder: Path,
    *,
    upstream_port: int | None = None,
    journal: bool = True,
    routes: Sequence[str] = (),
    clients_max: int = 1000,
    further: str = "",
) -> Iterator[HubProcess]:
    """Run a hub on loopback.

    Args:
        folder: For settings and data; what is in its `data` is used.
        upstream_port: Where to send to, None = collect only.
        journal: Whether there is a journal.
        routes: Texts of routes; none = everything upstream.
        clients_max: Connections at once.
        further: Further sections of the settings.
    """
    config = 'data_dir = "data"\n'
    if routes:
        write_manifest(folder, {f"r{number}": route for number, route in enumerate(routes)})
        config += f'manifest = "{MANIFEST}"\n'
    config += f'[mqtt]\nport = 0\nclients_max = {clients_max}\n[log]\nformat = "json"\n{further}'
    if not journal:
        config += "[journal]\nenabled = false\n"
    if upstream_port is not None:
        config += f'[upstream]\ntype = "mqtt"\nhost = "127.0.0.1"\nport = {upstream_port}\n'
    hub = HubProcess(folder, config)
    try:
        hub.start()
        yield hub
        hub.stop()
    finally:
        hub.close()
        shutil.rmtree(folder / "data", ignore_errors=True)


def a_mosquitto(folder: Path, *further: str, bridge_to: int | None = None) -> Mosquitto:
    """Return a Mosquitto without limits of its own, as a bridge with a session on disk if asked."""
    lines = ["max_inflight_messages 0", *further]
    if bridge_to is not None:
        lines += [
            "persistence true",
            f"persistence_location {folder}/",
            "connection upstream",
            f"address 127.0.0.1:{bridge_to}",
            "topic devices/# out 1",
            "cleansession false",
            "notifications false",
        ]
    return Mosquitto(folder, *lines)

"""Messages of entities through the whole daemon: MQTT in, mapper, commit, PUBACK; one JSON line.

Run as `python -m tests.bench.bench_entities`. A hundred registered devices measure with five values
a message, QoS 1, one connection with 500 in flight; then a rogue client sends as fast for entities
that nobody registers.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.bench_mapper import DEVICES, measurements, rogue
from tests.bench.tools import HubProcess
from tests.support.gateway import manifest
from tests.support.local_load import publish_all

if TYPE_CHECKING:
    from collections.abc import Iterable

MESSAGES = 100_000
CONFIG = (
    'data_dir = "data"\nmanifest = "manifest.json"\n[mqtt]\nport = 0\n'
    '[mapper]\nenabled = true\nexternal_id = "gw"\n[log]\nformat = "json"\n'
)


def measure(folder: Path) -> dict[str, object]:
    """Run the hub on a folder and load it."""
    (folder / "manifest.json").write_text(manifest(), "utf-8")
    hub = HubProcess(folder, CONFIG).start()
    assert isinstance(hub, HubProcess)
    try:
        registrations = [
            (f"te/device/d{number}//", b'{"@type":"child-device"}') for number in range(DEVICES)
        ]
        publish_all(hub.mqtt_port, registrations)
        figures: dict[str, object] = {"bench": "entities", "target_msgs_s": 5000}
        for name, stream in (("", measurements), ("rogue_", rogue)):
            figures |= _load(hub, name, stream(MESSAGES))
        figures["rogue_held_bytes"] = hub.call("entity pending")["bytes"]
        figures["rss_mb"] = round(hub.rss_mb(), 1)
        return figures
    finally:
        hub.close()


def _load(hub: HubProcess, name: str, messages: Iterable[tuple[str, bytes]]) -> dict[str, object]:
    cpu_s = hub.cpu_s()
    count, seconds = publish_all(hub.mqtt_port, messages, client_id=f"{name}load")
    return {
        f"{name}msgs_s": round(count / seconds),
        f"{name}cpu_us": round((hub.cpu_s() - cpu_s) * 1e6 / count, 1),
    }


def main() -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(Path(folder))))


if __name__ == "__main__":
    main()

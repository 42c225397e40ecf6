"""The measurements: each runs once and gives named figures."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.bench import growth, peers, thin_link
from tests.bench.bare import a_bare_server
from tests.bench.class_c import class_c
from tests.bench.neighbours import neighbours
from tests.bench.report import report
from tests.bench.tools import HubProcess, Receiver, a_hub, a_mosquitto, publish

if TYPE_CHECKING:
    from collections.abc import Callable

    Figures = dict[str, float]

FILTER: Final = "devices/+/messages/events/#"
DRAIN_TIMEOUT_S: Final = 60
IDLE_S: Final = 5.0
FLEET: Final = (2_900_000, *(52_000,) * 40)
"""Messages of each hub; ten million lines of a day in all."""
FSYNCS: Final = 200
BODY_BYTES: Final = 200


def ingest_10x50(folder: Path) -> Figures:
    """Durable ingest: 10 clients with 50 in flight."""
    return _ingest(folder, "ingest_10x50", messages=300_000, connections=10, window=50)


def ingest_500x1(folder: Path) -> Figures:
    """Durable ingest: 500 clients with one in flight."""
    return _ingest(folder, "ingest_500x1", messages=150_000, connections=500, window=1)


def many_clients(folder: Path) -> Figures:
    """Compare 500 clients with ten, and with 500 of a server that only answers."""
    few = ingest_10x50(folder)["ingest_10x50_msgs_s"]
    many = ingest_500x1(folder)["ingest_500x1_msgs_s"]
    with a_bare_server() as port:
        bare = publish(port, 150_000, connections=500, window=1)["msgs_s"]
    return {
        "many_clients_bare_msgs_s": bare,
        "many_clients_over_bare": many / bare,
        "many_clients_over_few": many / few,
    }


def _ingest(folder: Path, name: str, *, messages: int, connections: int, window: int) -> Figures:
    with a_hub(folder) as hub:
        cpu_s = hub.cpu_s()
        load = publish(hub.mqtt_port, messages, connections=connections, window=window)
        cpu_s = hub.cpu_s() - cpu_s
        stored = sum(queue["depth"] for queue in hub.call("queue list")["queues"])
        if stored != messages:
            msg = f"{name}: {messages} acknowledged but {stored} stored"
            raise RuntimeError(msg)
    return {
        f"{name}_msgs_s": load["msgs_s"],
        f"{name}_p99_ms": load["p99_ms"],
        f"{name}_cpu_us": cpu_s * 1e6 / messages,
    }


def journal(folder: Path) -> Figures:
    """Ingest with the journal against ingest without, and the same through to a sink, by turns."""
    figures: Figures = {}
    messages = 150_000
    for name, enabled in (("off", False), ("on", True)):
        with a_hub(folder, journal=enabled) as hub:
            cpu_s, written = hub.cpu_s(), hub.written_bytes()
            load = publish(hub.mqtt_port, messages, connections=10, window=50)
            figures[f"journal_{name}_ingest_msgs_s"] = load["msgs_s"]
            figures[f"journal_{name}_ingest_cpu_us"] = (hub.cpu_s() - cpu_s) * 1e6 / messages
            figures[f"journal_{name}_written_per_byte"] = _written_per_byte(hub, written, messages)
        sink = Receiver("sink", 0, messages)
        with a_hub(folder, journal=enabled, upstream_port=sink.port) as hub:
            written = hub.written_bytes()
            through = _through_hub(f"journal_{name}_through", hub, sink, messages)
            cpu_s = hub.cpu_s()
            figures[f"journal_{name}_through_written_per_byte"] = _written_per_byte(
                hub, written, messages
            )
            # Lines wait while so many messages come.
            figures[f"journal_{name}_lines_cpu_us"] = (hub.cpu_s() - cpu_s) * 1e6 / messages
        for figure in ("msgs_s", "cpu_us"):
            figures[f"journal_{name}_through_{figure}"] = through[
                f"journal_{name}_through_{figure}"
            ]
    figures["journal_ingest_slower"] = (
        1 - figures["journal_on_ingest_msgs_s"] / figures["journal_off_ingest_msgs_s"]
    )
    return figures


def _written_per_byte(hub: HubProcess, written: int, messages: int) -> float:
    """Return what was written since for each byte of payload, the journal's segments included."""
    while hub.call("status")["journal"].get("waiting_bytes"):
        hub.call("journal plan", target="bench", close=True)
    return (hub.written_bytes() - written) / (messages * BODY_BYTES)


def latency(folder: Path) -> Figures:
    """PUBLISH to PUBACK at 2 000 messages a second, beside the bare cost of an fsync."""
    fsync_ms = _fsync_ms(folder)
    with a_hub(folder) as hub:
        load = publish(hub.mqtt_port, 10_000, connections=50, window=10, rate=2000)
    return {
        "latency_2000_p50_ms": load["p50_ms"],
        "latency_2000_p99_ms": load["p99_ms"],
        "fsync_p50_ms": statistics.median(fsync_ms),
        "fsync_p99_ms": sorted(fsync_ms)[int(len(fsync_ms) * 0.99)],
    }


def _fsync_ms(folder: Path) -> list[float]:
    taken = []
    with (folder / "fsync").open("wb", buffering=0) as file:
        for _ in range(FSYNCS):
            file.write(b"x" * 4096)
            before = time.perf_counter()
            os.fdatasync(file.fileno())
            taken.append((time.perf_counter() - before) * 1000)
    return taken


def end_to_end(folder: Path) -> Figures:
    """Device, disk, Mosquitto upstream, row gone; then a Mosquitto bridge in its place."""
    figures = {}
    messages = 60_000
    with a_mosquitto(folder) as broker:
        upstream = broker.port
        counter = Receiver("subscribe", upstream, messages, topic=FILTER, client="counter")
        with a_hub(folder, upstream_port=upstream) as hub:
            figures |= _through_hub("end_to_end", hub, counter, messages)
    with a_mosquitto(folder) as broker:
        upstream = broker.port
        counter = Receiver("subscribe", upstream, messages, topic=FILTER, client="counter")
        with a_mosquitto(folder, bridge_to=upstream) as bridge:
            publish(bridge.port, messages, connections=10, window=20)
            figures["bridge_msgs_s"] = counter.result()["msgs_s"]
    figures["end_to_end_over_bridge"] = figures["end_to_end_msgs_s"] / figures["bridge_msgs_s"]
    return figures


def end_to_end_sink(folder: Path) -> Figures:
    """The same towards a sink that acknowledges at once: what the hub itself can do."""
    messages = 60_000
    sink = Receiver("sink", 0, messages)
    with a_hub(folder, upstream_port=sink.port) as hub:
        return _through_hub("end_to_end_sink", hub, sink, messages)


def _through_hub(name: str, hub: HubProcess, far_end: Receiver, messages: int) -> Figures:
    try:
        cpu_s = hub.cpu_s()
        load = publish(hub.mqtt_port, messages, connections=10, window=20)
        arrived = far_end.result()
        _wait_until_gone(hub)
        cpu_s = hub.cpu_s() - cpu_s
    finally:
        far_end.close()
    return {
        f"{name}_msgs_s": arrived["msgs_s"],
        f"{name}_p50_ms": arrived["p50_ms"],
        f"{name}_p99_ms": arrived["p99_ms"],
        f"{name}_in_msgs_s": load["msgs_s"],
        f"{name}_cpu_us": cpu_s * 1e6 / messages,
        f"{name}_duplicates": arrived["duplicates"],
    }


def _wait_until_gone(hub: HubProcess) -> None:
    deadline = time.monotonic() + DRAIN_TIMEOUT_S
    while any(queue["depth"] for queue in hub.call("queue list")["queues"]):
        if time.monotonic() > deadline:
            msg = "rows are still in the file after all messages have arrived upstream"
            raise RuntimeError(msg)
        time.sleep(0.05)


def idle(folder: Path) -> Figures:
    """Start time, memory and processor of a hub that has nothing to do; memory with an upstream."""
    before = time.perf_counter()
    with a_hub(folder) as hub:
        start_s = time.perf_counter() - before
        cpu_s = hub.cpu_s()
        time.sleep(IDLE_S)
        figures = {
            "start_s": start_s,
            "idle_rss_mb": hub.rss_mb(),
            "idle_cpu_percent": (hub.cpu_s() - cpu_s) / IDLE_S * 100,
        }
    sink = Receiver("sink", 0, 1)
    try:
        with a_hub(folder, upstream_port=sink.port) as hub:
            sink.wait_client()
            return figures | {"idle_upstream_rss_mb": hub.rss_mb()}
    finally:
        sink.close()


def _script(name: str) -> Callable[[Path], Figures]:
    """Wrap a measurement that is a script of its own: its last line is a JSON object of figures."""

    def run(folder: Path) -> Figures:
        done = subprocess.run(
            [sys.executable, "-m", f"tests.bench.{name}"],
            stdout=subprocess.PIPE,
            check=True,
            text=True,
            env={**os.environ, "TMPDIR": str(folder)},
        )
        figures = json.loads(done.stdout.splitlines()[-1])
        return _numbers(figures, name.removeprefix("bench_"))

    return run


def _numbers(document: Any, prefix: str = "") -> Figures:
    if isinstance(document, dict):
        figures: Figures = {}
        for key, value in document.items():
            # What the script holds its own figures against is no measurement.
            if str(key).startswith(("target", "floor")):
                continue
            figures |= _numbers(value, f"{prefix}_{key}" if prefix else str(key))
        return figures
    if isinstance(document, int | float) and not isinstance(document, bool):
        return {prefix: float(document)}
    return {}


CASES: Final[dict[str, Callable[[Path], Figures]]] = {
    "ingest-10x50": ingest_10x50,
    "ingest-500x1": ingest_500x1,
    "many-clients": many_clients,
    "journal": journal,
    "latency": latency,
    "class-c": class_c,
    "end-to-end": end_to_end,
    "end-to-end-sink": end_to_end_sink,
    "idle": idle,
    "neighbours": neighbours,
    "report-small": report("report_small", (3_000,) * 3),
    **{
        name.removeprefix("bench_"): _script(name)
        for name in ("bench_routes", "bench_mapper", "bench_store", "bench_pump", "bench_entities")
        if (Path(__file__).parent / f"{name}.py").exists()
    },
}

ON_REQUEST: Final[dict[str, Callable[[Path], Figures]]] = {
    "report-10m": report("report_10m", FLEET, is_prepared=True),
    "report-30m": report("report_30m", FLEET, times=3),
    **peers.CASES,
    **thin_link.CASES,
    **growth.CASES,
}
"""Measurements of minutes, and comparisons, which run only where they are named."""

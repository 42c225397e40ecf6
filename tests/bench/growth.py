"""What a message costs the hub as waiting rows, clients, routes, endpoints and bodies grow."""

from __future__ import annotations

import asyncio
import os
import re
import resource
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tests.bench.svg import plot
from tests.bench.tools import Receiver, a_hub, publish
from tests.support.backlog import PLAIN, make_backlog

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from tests.bench.tools import HubProcess

CLIENTS_MAX: Final = 2_000
MESSAGES: Final = 30_000
ROUND_TRIPS: Final = 2_000
"""Most messages of a client that waits for each PUBACK: one alone is as slow as the disk."""
BODIES_BYTES: Final = 100_000_000
DEVICES: Final = 50
DEEP_ROWS: Final = (10_000_000,) if os.environ.get("EDGEHUB_SOAK") else ()
POINTS: Final[Mapping[str, tuple[str, Sequence[int]]]] = {
    "rows": (
        "rows that wait",
        (1_000, 10_000, 100_000, 1_000_000, *DEEP_ROWS),
    ),
    "clients": ("clients with one message in flight each", (1, 10, 100, 500, CLIENTS_MAX)),
    "routes": ("routes with a condition, the last of which matches", (1, 10, 100, 1_000, 10_000)),
    "endpoints": ("endpoints, of which a message goes to one", (1, 5, 10, 20, 50)),
    "bodies": ("bytes of a body", (100, 1_000, 10_000, 100_000, 256_000)),
}  # fmt: skip
PANELS: Final = {"msgs_s": "messages/s", "cpu_us": "CPU µs a message"}


def measure(folder: Path, *, series: str, points: Sequence[int], messages: int) -> dict[str, float]:
    """Return speed and processor time of each point of a series."""
    figures = {}
    for point in points:
        place = folder / str(point)
        place.mkdir()
        load, cpu_us = MEASURES[series](place, point, messages)
        figures[f"growth_{series}@{point}_msgs_s"] = load["msgs_s"]
        figures[f"growth_{series}@{point}_cpu_us"] = cpu_us
    return figures


def _rows(folder: Path, rows: int, messages: int) -> tuple[dict[str, Any], float]:
    """Take in messages while rows wait for an upstream that is not there."""
    (folder / "data").mkdir()
    asyncio.run(make_backlog(folder / "data" / "queue.db", rows, PLAIN))
    with a_hub(folder, further="[store]\nbytes_max = 0\nfree_bytes_min = 0\n") as hub:
        stored = sum(queue["depth"] for queue in hub.call("queue list")["queues"])
        assert stored == rows, f"{stored} rows wait, not {rows}"
        return _load(hub, None, messages, connections=10, window=50)


def _clients(folder: Path, clients: int, messages: int) -> tuple[dict[str, Any], float]:
    """Take in messages and send them to a sink."""
    # Each client is an open file of the load tool, which inherits the limit of this process.
    granted, highest = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(granted, CLIENTS_MAX + 100), highest))
    count = min(messages, ROUND_TRIPS * clients)
    return _through(folder, count, connections=clients, window=1)


def _routes(folder: Path, routes: int, messages: int) -> tuple[dict[str, Any], float]:
    """Look at routes with a condition on a property; the messages have that of the last."""
    texts = [f"FROM /messages/* WHERE kind = 'k{n}' INTO $upstream" for n in range(1, routes + 1)]
    topic = f"devices/dev{{i}}/messages/events/kind=k{routes}"
    return _through(folder, messages, routes=texts, connections=10, window=50, topic=topic)


def _endpoints(folder: Path, endpoints: int, messages: int) -> tuple[dict[str, Any], float]:
    """Send the messages of always as many devices, by as many routes, to a number of endpoints."""
    texts = [
        f"FROM /messages/* WHERE $connectionDeviceId = 'dev{n}' INTO Endpoint(\"e{n % endpoints}\")"
        for n in range(DEVICES)
    ]
    return _through(
        folder, messages, routes=texts, endpoints=endpoints, connections=DEVICES, window=10
    )


def _bodies(folder: Path, size: int, messages: int) -> tuple[dict[str, Any], float]:
    """Send bodies of a size, fewer of large ones."""
    count = min(messages, BODIES_BYTES // size)
    return _through(folder, count, connections=10, window=10, size=size)


def _through(
    folder: Path, messages: int, *, routes: Sequence[str] = (), endpoints: int = 0, **load: Any
) -> tuple[dict[str, Any], float]:
    sink = Receiver("sink", 0, messages)
    named = "".join(
        f'[endpoints.e{n}]\ntype = "mqtt"\nhost = "127.0.0.1"\nport = {sink.port}\n'
        for n in range(endpoints)
    )
    try:
        with a_hub(
            folder,
            upstream_port=sink.port,
            routes=routes,
            clients_max=CLIENTS_MAX,
            further=named,
        ) as hub:
            sink.wait_client()
            return _load(hub, sink, messages, **load)
    finally:
        sink.close()


def _load(
    hub: HubProcess, sink: Receiver | None, messages: int, **load: Any
) -> tuple[dict[str, Any], float]:
    cpu_s = hub.cpu_s()
    figures = publish(hub.mqtt_port, messages, **load)
    if sink is not None:
        figures = sink.result()
    return figures, (hub.cpu_s() - cpu_s) * 1e6 / messages


MEASURES: Final[Mapping[str, Callable[[Path, int, int], tuple[dict[str, Any], float]]]] = {
    "rows": _rows,
    "clients": _clients,
    "routes": _routes,
    "endpoints": _endpoints,
    "bodies": _bodies,
}

CASES: Final[Mapping[str, Callable[[Path], dict[str, float]]]] = {
    f"growth-{series}": partial(measure, series=series, points=points, messages=MESSAGES)
    for series, (_, points) in POINTS.items()
}


def plots(medians: Mapping[str, float]) -> dict[str, str]:
    """Return SVG documents by the name of their file."""
    documents = {}
    for series, (title, _) in POINTS.items():
        point = re.compile(rf"growth_{series}@(\d+)_msgs_s")
        xs = sorted(int(found[1]) for figure in medians if (found := point.fullmatch(figure)))
        if len(xs) > 1:
            panels = {
                text: [medians[f"growth_{series}@{x}_{figure}"] for x in xs]
                for figure, text in PANELS.items()
            }
            documents[f"growth-{series}.svg"] = plot(title, xs, panels)
    return documents

"""The figures of the status in the text format of Prometheus.

Pure: text out of one status document, which is made at once on the event loop; so gauges of queues
equal the rows there are, at any scrape. Labels come from closed sets: endpoints, priorities,
reasons and kinds; never a device or a topic. Counters count from the start of the process.

Source: Prometheus, exposition formats 0.0.4; naming by its conventions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edgehub.message import DEFAULT_PRIORITY
from edgehub.web.figures import ENDPOINTS, FIGURES, LIMITS, QUEUES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from edgehub.web.figures import Document, Labels, Sample

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

PHASES: Final = ("starting", "running", "draining", "stopped")
STATES: Final = ("up", "connecting", "down", "draining", "parked", "waiting")
"""States of an endpoint that always have a series; any other gets one while it lasts."""


def text(status: Document) -> str:
    """Return the whole exposition.

    Args:
        status: What `edgehub status --json` prints.
    """
    lines: list[str] = []
    for name, about, samples in _metrics(status):
        _write(lines, name, about, samples)
    return "\n".join(lines) + "\n"


def _metrics(status: Document) -> Iterator[tuple[str, str, Iterable[Sample]]]:
    yield "build_info", "Version.", [({"version": status["version"]}, 1)]
    phases = [({"phase": phase}, phase == status["phase"]) for phase in PHASES]
    yield "phase", "1 for where the hub stands between start and end.", phases
    yield "warnings", "What an operator should look at.", [({}, len(status["warnings"]))]
    yield "pumps_stalled", "Pumps that stand still.", [({}, len(status["stalled"]))]
    for name in dict.fromkeys(figure.name for figure in FIGURES):
        group = [figure for figure in FIGURES if figure.name == name]
        yield name, group[0].about, [s for figure in group for s in figure.samples(status)]
    limits = [(_limit_labels(limit), limit) for limit in status.get("store", {}).get("limits", ())]
    for name, about, member in LIMITS:
        yield name, about, _members(limits, member)
    queues = [(_queue_labels(queue), queue) for queue in status["queues"]]
    for name, about, member in QUEUES:
        yield name, about, _members(queues, member)
    yield (
        "message_latency_seconds",
        "From enqueue to confirmation, of the last rows.",
        [
            ({**labels, "quantile": quantile}, queue[member])
            for labels, queue in queues
            for quantile, member in (("0.5", "latency_p50_s"), ("0.99", "latency_p99_s"))
            if queue.get(member) is not None
        ],
    )
    endpoints = [({"endpoint": each["id"]}, each) for each in status["endpoints"]]
    yield (
        "endpoint_state",
        "1 for the state that an endpoint is in.",
        [
            ({**labels, "state": state}, state == each["state"])
            for labels, each in endpoints
            for state in dict.fromkeys((*STATES, each["state"]))
        ],
    )
    for name, about, member in ENDPOINTS:
        yield name, about, _members(endpoints, member)
    yield (
        "send_failures_total",
        "Results other than delivered, by kind.",
        [
            ({**labels, "kind": kind}, count)
            for labels, each in endpoints
            for kind, count in each["failures"].items()
        ],
    )


def _members(documents: Iterable[tuple[Labels, Document]], member: str) -> list[Sample]:
    return [(labels, each[member]) for labels, each in documents if each.get(member) is not None]


def _limit_labels(limit: Document) -> Labels:
    # A limit of the hub has no queue, and an empty label is none to Prometheus.
    return {"cap": limit["cap"], "queue": limit["queue"] or ""}


def _queue_labels(queue: Document) -> Labels:
    priority = queue["priority"]
    return {
        "endpoint": queue["endpoint"],
        "priority": "default" if priority == DEFAULT_PRIORITY else str(priority),
    }


def _write(lines: list[str], name: str, about: str, samples: Iterable[Sample]) -> None:
    kind = "counter" if name.endswith("_total") else "gauge"
    lines.append(f"# HELP edgehub_{name} {about}")
    lines.append(f"# TYPE edgehub_{name} {kind}")
    for labels, value in samples:
        inside = ",".join(f'{key}="{_escaped(str(text))}"' for key, text in labels.items())
        braces = f"{{{inside}}}" if inside else ""
        lines.append(f"edgehub_{name}{braces} {float(value):.17g}")


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

"""Cost of the Cumulocity mapper: entities registered, held and unknown, one JSON line.

Run as `python -m tests.bench.bench_mapper`. A hundred registered devices measure with five values a
message, send events and alarms, and change twin values; a rogue client sends for entities that
nobody registers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import TYPE_CHECKING

from edgehub.entities.effects import Instant
from edgehub.entities.mapper import Mapper
from edgehub.entities.tables import EntityContents
from tests.support.entities import options_of

if TYPE_CHECKING:
    from collections.abc import Iterator

ROUNDS = 7
MESSAGES_PER_ROUND = 10_000
DEVICES = 100
WALL_MS = 1_770_091_506_000
TIME = "2026-02-03T04:05:06.120Z"


def a_mapper() -> Mapper:
    """Return a mapper that knows the devices."""
    mapper = Mapper(options_of("hub", alarm_sync_ms=0), EntityContents())
    now = Instant(0, WALL_MS)
    mapper.start(now)
    for number in range(DEVICES):
        mapper.handle(f"te/device/d{number}//", b'{"@type":"child-device"}', now)
    return mapper


def measurements(count: int) -> Iterator[tuple[str, bytes]]:
    """Return measurements of registered devices."""
    payload = {"time": TIME, "temp": 21.5, "bar": 4, "env": {"t": 1, "h": 2, "p": 3.25}}
    body = json.dumps(payload).encode()
    return ((f"te/device/d{number % DEVICES}///m/env", body) for number in range(count))


def mixed(count: int) -> Iterator[tuple[str, bytes]]:
    """Return events, alarms and twin values of registered devices."""
    event = json.dumps({"time": TIME, "text": "door open", "user": 7}).encode()
    alarm = json.dumps({"time": TIME, "text": "hot", "severity": "major"}).encode()
    for number in range(count):
        device = f"te/device/d{number % DEVICES}//"
        yield (
            (f"{device}/e/door", event),
            (f"{device}/a/hot", alarm),
            (f"{device}/twin/count", b"%d" % number),
        )[number % 3]


def rogue(count: int) -> Iterator[tuple[str, bytes]]:
    """Return measurements for ever new entities that nobody registers."""
    body = json.dumps({"time": TIME, "v": 1}).encode()
    return ((f"te/device/r{number}///m/", body) for number in range(count))


def measure(rounds: int) -> dict[str, object]:
    """Hand in streams again and again; the median round counts."""
    figures: dict[str, object] = {"bench": "mapper", "target_us": 60}
    for name, stream in (("", measurements), ("mixed_", mixed), ("rogue_", rogue)):
        mapper = a_mapper()
        costs = []
        for _ in range(rounds):
            messages = list(stream(MESSAGES_PER_ROUND))
            start = time.perf_counter()
            for topic, payload in messages:
                mapper.handle(topic, payload, Instant(0, WALL_MS), client="c")
            costs.append((time.perf_counter() - start) / len(messages) * 1e6)
        figures[f"{name}us_per_message"] = round(statistics.median(costs), 2)
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Cumulocity mapper, microseconds per message")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    print(json.dumps(measure(parser.parse_args().rounds)))


if __name__ == "__main__":
    main()

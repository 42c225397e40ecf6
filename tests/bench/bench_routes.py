"""Cost of route evaluation: 100 routes with conditions of all kinds, one JSON line.

Run as `python -m tests.bench.bench_routes`. Messages are of the kind that gateways see: five
properties, half of them with a JSON body of some 200 bytes; half match a route or two, half none.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

from edgehub.message import Message
from edgehub.routes.manifest import parse_manifest
from edgehub.routes.table import RouteTable

ROUNDS = 7
MESSAGES_PER_ROUND = 20_000


def conditions() -> list[str]:
    """Return 100 conditions: text, numbers, body values, chains of AND, OR and NOT, functions."""
    texts = [f"kind = 'kind-{n}'" for n in range(20)]
    pairs = [f"kind = 'alarm' AND site = 'site-{n}'" for n in range(20)]
    numbers = [f"as_number(level) > {n * 10} AND site = 'site-{n}'" for n in range(15)]
    body = [
        f"$body.temperature > {n * 10} AND $body.machine.state = 'state-{n}'" for n in range(15)
    ]
    choices = [
        f"site = 'site-{n}' OR line = 'line-{n}' OR $outputName = 'out-{n}'" for n in range(10)
    ]
    guards = [f"NOT is_defined(line) OR line != 'line-{n}' AND site = 'x{n}'" for n in range(10)]
    searches = [f"starts_with(site, 'plant-{n}') AND contains(line, '{n}')" for n in range(5)]
    computed = [f"as_number(level) * 2 + {n} > 1000" for n in range(5)]
    return texts + pairs + numbers + body + choices + guards + searches + computed


def table() -> RouteTable:
    """Compile the 100 routes; priorities go round, every fourth route has its own time to live."""
    routes = {
        f"route-{n}": {
            "route": f"FROM /messages/* WHERE {condition} INTO $upstream",
            "priority": n % 10,
            **({"timeToLiveSecs": 60 * (n + 1)} if n % 4 == 0 else {}),
        }
        for n, condition in enumerate(conditions())
    }
    document = {
        "schemaVersion": "1.1",
        "routes": routes,
        "storeAndForwardConfiguration": {"timeToLiveSecs": 7200},
    }
    return RouteTable.compile(parse_manifest(document, file="bench"), endpoints=())


def messages() -> list[Message]:
    """Return messages that differ in what they match."""
    made = []
    for n in range(100):
        properties: dict[str, str | None] = {
            "kind": "alarm" if n % 3 == 0 else f"kind-{n}",
            "site": f"site-{n % 40}",
            "line": f"line-{n % 25}",
            "level": str(n),
            "sequence": str(100_000 + n),
        }
        system: dict[str, str | None] = {"messageId": f"m-{n}"}
        body = b"\x00" * 200
        if n % 2:
            system |= {"contentType": "application/json", "contentEncoding": "utf-8"}
            value = {"temperature": n, "machine": {"state": f"state-{n % 20}"}, "note": "x" * 140}
            body = json.dumps(value).encode()
        made.append(Message(f"device-{n}", None, "/messages/", properties, system, body))
    return made


def measure(rounds: int) -> dict[str, object]:
    """Evaluate again and again; the median round counts."""
    evaluate = table().evaluate
    stream = messages() * (MESSAGES_PER_ROUND // 100)
    matched = sum(1 for message in stream if evaluate(message))
    costs = []
    for _ in range(rounds):
        start = time.perf_counter()
        for message in stream:
            evaluate(message)
        costs.append((time.perf_counter() - start) / len(stream) * 1e6)
    return {
        "bench": "routes",
        "routes": 100,
        "us_per_message": round(statistics.median(costs), 2),
        "us_best_round": round(min(costs), 2),
        "matched_share": round(matched / len(stream), 2),
        "target_us": 10,
        "floor_us": 25,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="route evaluation, microseconds per message")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    print(json.dumps(measure(parser.parse_args().rounds)))


if __name__ == "__main__":
    main()

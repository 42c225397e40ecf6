"""Affinity scenarios: short ways to write them, and the comparison with what is expected."""

import copy
import json
from typing import Any

from edgehub.lab.simulation.form import ONE_DEVICE
from edgehub.lab.simulation.network import in_process
from edgehub.lab.simulation.run import simulate

COORDINATORS = [in_process]
"""The last one makes the coordinator of `run`; other modules put theirs here for their tests."""


def as_conventions_say(case: dict) -> dict:
    """Return a case with what its file leaves out: the device's name, and usual results."""
    case = copy.deepcopy(case)
    devices = case["initial"].get("devices_with_same_address", [ONE_DEVICE])
    for event in case["events"]:
        payload = event.get("payload")
        if isinstance(payload, dict) and payload.get("dev_eui") == "known":
            payload["dev_eui"] = event.get("device", devices[0])
    for frame in case["expected"].get("uplinks", ()):
        if frame["result"] == "processed":
            frame.setdefault("upstream", True)
            frame.setdefault("marked_duplicate", False)
    return case


def differences(expected: Any, actual: Any, place: str = "") -> list[str]:
    """List where an outcome is not as expected; what is not expected may be anything."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        return [
            line
            for key in expected
            for line in differences(expected[key], actual.get(key), f"{place}.{key}")
        ]
    if isinstance(expected, list) and isinstance(actual, list):
        if len(expected) != len(actual):
            return [f"{place}: {actual} is not {expected}"]
        return [
            line
            for index, (want, got) in enumerate(zip(expected, actual, strict=True))
            for line in differences(want, got, f"{place}[{index}]")
        ]
    return [] if expected == actual else [f"{place}: {actual!r} is not {expected!r}"]


def in_order(log: list[dict]) -> list[dict]:
    """Sort a connection log: entries of one moment are a set."""
    return sorted(log, key=lambda entry: (entry["t_ms"], json.dumps(entry, sort_keys=True)))


def outcome_differences(expected: dict, outcome: dict) -> list[str]:
    """Compare a whole outcome."""
    logs = {"connection_log": in_order(expected.get("connection_log", []))}
    if "connection_log" not in expected:
        logs = {}
    return differences(
        expected | logs, outcome | {"connection_log": in_order(outcome["connection_log"])}
    )


def uplink(t_ms: int, gateway: str, f_cnt: int, **members: Any) -> dict:
    """Write a data frame."""
    return {"t_ms": t_ms, "type": "uplink", "gateway": gateway, "f_cnt": f_cnt, **members}


def join(t_ms: int, gateway: str, dev_nonce: int = 7, **members: Any) -> dict:
    """Write a join request."""
    return {
        "t_ms": t_ms,
        "type": "join_request",
        "gateway": gateway,
        "dev_nonce": dev_nonce,
        **members,
    }


def event(t_ms: int, type_: str, gateway: str | None = None, **members: Any) -> dict:
    """Write another event."""
    where = {} if gateway is None else {"gateway": gateway}
    return {"t_ms": t_ms, "type": type_, **where, **members}


def owner(f_cnt: int, **members: Any) -> dict:
    """Write the state of a gateway that owns the device, its connection open."""
    return {"ownership": "owner", "connection": "open", "f_cnt_up": f_cnt, **members}


def loser(f_cnt: int = 0, **members: Any) -> dict:
    """Write the state of a gateway that lost the device."""
    return {"ownership": "loser", "connection": "closed", "f_cnt_up": f_cnt, **members}


def run(
    *events: dict, record: tuple[int | None, str] | None = None, twin: dict | None = None, **parts
) -> dict:
    """Run a scenario.

    Gateways are written as `g1=owner(4)`; everything else that has a name is of its `config`.
    """
    gateways = {name: parts.pop(name) for name in list(parts) if name[1:].isdigit()}
    named = {item["gateway"] for item in events if "gateway" in item}
    initial: dict[str, Any] = {"gateways": gateways}
    if record is not None:
        initial["coordinator"] = {"f_cnt": record[0], "gateway": record[1]}
    if twin is not None:
        initial["twin"] = twin
    if "notify_latency_ms" in parts:
        initial["notify_latency_ms"] = parts.pop("notify_latency_ms")
    if "devices" in parts:
        initial["devices_with_same_address"] = parts.pop("devices")
    outcome = simulate(
        {
            "config": {"keepalive_s": 300, **parts},
            "gateways": sorted(named | gateways.keys()),
            "initial": initial,
            "events": list(events),
        },
        make_coordinator=COORDINATORS[-1],
    )
    assert outcome["ignored"] == []
    return outcome


def results(outcome: dict) -> list[tuple]:
    """Return result and time of the election of each data frame."""
    return [(frame["result"], frame["elected_at_ms"]) for frame in outcome["uplinks"]]


def connections(outcome: dict) -> list[tuple]:
    """Return the connection log, one moment after the other."""
    return [
        (entry["t_ms"], entry["gateway"], entry["action"])
        for entry in in_order(outcome["connection_log"])
    ]


def state(outcome: dict, gateway: str) -> tuple[str, str]:
    """Return ownership and connection of a gateway at the end."""
    final = outcome["final"]["gateways"][gateway]
    return final["ownership"], final["connection"]

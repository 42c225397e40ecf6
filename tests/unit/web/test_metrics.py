"""The exposition: names, labels, values, and that any Prometheus can read it."""

from __future__ import annotations

import re
from typing import Any

from edgehub.web.figures import ENDPOINTS, FIGURES, QUEUES
from edgehub.web.metrics import text

SAMPLE = re.compile(r'(edgehub_[a-z_]+)(?:\{([a-z_]+="[^"\n]*"(?:,[a-z_]+="[^"\n]*")*)\})? (\S+)')
QUEUE = {member: 0 for _, _, member in QUEUES}
ENDPOINT = {member: 0 for _, _, member in ENDPOINTS}


def a_status(**members: Any) -> dict[str, Any]:
    """Build a small status document."""
    return {
        "version": "0.1.0",
        "phase": "running",
        "warnings": [],
        "stalled": [],
        "degraded": False,
        "routes": 3,
        "unrouted": 0,
        "mqtt": {"connections": 1, "dropped": {"too_large": 2}},
        "http": None,
        "broker": {"enabled": True, "received_total": 9, "dropped": {"limit": 4}},
        "entities": {"enabled": True, "entities": 3, "held": 2, "pending": {}},
        "store": {"rows": 7, "clock": {"trusted": True}},
        "endpoints": [],
        "queues": [],
        **members,
    }


def samples(exposition: str) -> dict[str, float]:
    """Read an exposition: name with labels, and value."""
    found = {}
    for line in exposition.splitlines():
        if not line.startswith("#"):
            match = SAMPLE.fullmatch(line)
            assert match, line
            found[f"{match[1]}{{{match[2] or ''}}}"] = float(match[3])
    return found


def test_figures_stand_under_their_names():
    """Numbers, flags and members of mappings; what is not there has no sample."""
    found = samples(text(a_status()))
    assert found["edgehub_routes{}"] == 3
    assert found["edgehub_store_rows{}"] == 7
    assert found["edgehub_clock_trusted{}"] == 1
    assert found['edgehub_messages_dropped_total{head="mqtt",reason="too_large"}'] == 2
    assert found['edgehub_messages_dropped_total{head="broker",reason="limit"}'] == 4
    assert (found["edgehub_entities{}"], found["edgehub_entities_held{}"]) == (3, 2)
    assert found['edgehub_head_connections{head="mqtt"}'] == 1
    assert 'edgehub_head_connections{head="http"}' not in found
    assert found['edgehub_phase{phase="running"}'] == 1
    assert found['edgehub_phase{phase="draining"}'] == 0


def test_queues_and_endpoints_have_their_labels():
    """Priorities as people write them; a state that is not known yet gets its own series."""
    queues = [
        {**QUEUE, "endpoint": "upstream", "priority": 0, "depth": 5, "latency_p50_s": 0.5},
        {**QUEUE, "endpoint": "upstream", "priority": 2_000_000_000, "oldest_age_s": None},
    ]
    endpoint = {**ENDPOINT, "id": "upstream", "state": "pondering", "failures": {"timeout": 2}}
    found = samples(text(a_status(queues=queues, endpoints=[endpoint])))
    best, last = ('endpoint="upstream",priority="0"', 'endpoint="upstream",priority="default"')
    assert found[f"edgehub_queue_length{{{best}}}"] == 5
    assert found[f"edgehub_queue_length{{{last}}}"] == 0
    assert f"edgehub_queue_oldest_age_seconds{{{last}}}" not in found
    assert found[f'edgehub_message_latency_seconds{{{best},quantile="0.5"}}'] == 0.5
    assert found['edgehub_endpoint_state{endpoint="upstream",state="pondering"}'] == 1
    assert found['edgehub_endpoint_state{endpoint="upstream",state="up"}'] == 0
    assert found['edgehub_send_failures_total{endpoint="upstream",kind="timeout"}'] == 2


def test_limits_that_are_reached_are_named():
    """S-12, S-20: which, whose, since when, and what it has cost; no sample while none is."""
    limits = [
        {"cap": "queue bytes", "queue": "upstream_Pri7", "for_s": 9.5, "dropped": 3, "refused": 0},
        {"cap": "hub rows", "queue": None, "for_s": 1.0, "dropped": 0, "refused": 8},
    ]
    store = {"limits": limits, "checkpoint_repaired_total": 1, "zone_repaired_total": 0}
    found = samples(text(a_status(store=store)))
    of_queue, of_hub = 'cap="queue bytes",queue="upstream_Pri7"', 'cap="hub rows",queue=""'
    assert found[f"edgehub_store_limit_reached_seconds{{{of_queue}}}"] == 9.5
    assert found[f"edgehub_store_limit_dropped{{{of_queue}}}"] == 3
    assert found[f"edgehub_store_limit_refused{{{of_hub}}}"] == 8
    assert found["edgehub_store_checkpoints_repaired_total{}"] == 1
    assert "edgehub_store_limit_reached_seconds" not in str(samples(text(a_status())))


def test_what_is_written_to_disk_is_shown_where_the_kernel_counts_it():
    """S-05: bytes, and the same for each byte of rows; elsewhere there is no sample."""
    written = {"bytes": 4096, "row_bytes": 1024, "per_row_byte": 4.0}
    found = samples(text(a_status(written=written)))
    assert found["edgehub_disk_written_bytes_total{}"] == 4096
    assert found["edgehub_store_write_amplification{}"] == 4
    unknown = samples(text(a_status(written={"bytes": None, "per_row_byte": None})))
    assert "edgehub_store_write_amplification{}" not in unknown


def test_every_metric_is_described_once_before_its_samples():
    """HELP and TYPE stand in front; counters are named so, and nothing else is."""
    lines = text(a_status()).splitlines()
    names = [line.split()[2] for line in lines if line.startswith("# HELP ")]
    types = {line.split()[2]: line.split()[3] for line in lines if line.startswith("# TYPE ")}
    assert len(names) == len(set(names))
    assert list(types) == names
    for name, kind in types.items():
        assert kind == ("counter" if name.endswith("_total") else "gauge")
    for line in lines:
        if line.startswith("# HELP "):
            assert len(line.split(maxsplit=3)) == 4, line


def test_texts_of_labels_are_escaped():
    """A quote or a line break in a text cannot begin another sample."""
    failures = {'a"b\\c\nd': 1}
    endpoint = {**ENDPOINT, "id": "e", "state": "up", "failures": failures}
    assert 'kind="a\\"b\\\\c\\nd"} 1' in text(a_status(endpoints=[endpoint]))


def test_names_follow_the_conventions():
    """Base units, no repetition of a name with another meaning."""
    names = {figure.name for figure in FIGURES} | {name for name, _, _ in (*QUEUES, *ENDPOINTS)}
    for name in names:
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", name), name
        assert not name.endswith(("_s", "_ms", "_count")), name

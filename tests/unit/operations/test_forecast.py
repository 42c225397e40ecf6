"""What another manifest would do to queues and disk."""

from __future__ import annotations

from typing import Any

from edgehub.message import DEFAULT_PRIORITY, EndpointId, Priority, QueueId, queue_id
from edgehub.operations.forecast.rates import Rate
from edgehub.operations.manifest_change import Present, difference_document, manifest_document
from edgehub.operations.room import Room
from edgehub.routes.manifest import parse_manifest
from edgehub.store.caps import Caps
from edgehub.store.statistics import QueueState, QueueStatistics
from tests.support.routes import a_manifest

STATUS = "FROM /messages/* WHERE kind = 'status' INTO $upstream"
BULK = "FROM /messages/* WHERE kind = 'bulk' INTO $upstream"
REST = "FROM /messages/* INTO $upstream"


def _manifest(routes: dict[str, object], ttl_s: int = 100):
    store = {"timeToLiveSecs": ttl_s}
    return parse_manifest(a_manifest(routes, storeAndForwardConfiguration=store), file="m.json")


def _queue(endpoint: str, priority: int = DEFAULT_PRIORITY, rows: int = 0) -> QueueStatistics:
    endpoint_id = EndpointId(endpoint)
    return QueueStatistics(
        id=queue_id(endpoint_id, Priority(priority)),
        endpoint_id=endpoint_id,
        priority=Priority(priority),
        state=QueueState.WAITING,
        depth=rows,
        bytes=rows * 100,
        oldest_enqueued_ms=None,
        in_flight=0,
        checkpoint=0,
        enqueued_total=rows,
        enqueued_bytes_total=rows * 100,
        sent_total=0,
        expired_total=0,
        dead_lettered_total=0,
        dropped_total=0,
        moved_total=0,
        purged_total=0,
        requeued_total=0,
    )


def _rate(bytes_s: float) -> Rate:
    return Rate(rows_s=bytes_s / 100, bytes_s=bytes_s, measured_s=60)


def _present(routes: dict[str, object], *queues: QueueStatistics, **more: Any) -> Present:
    return Present(
        **{
            "manifest": _manifest(routes),
            "queues": queues,
            "rates": {},
            "served": {EndpointId("upstream")},
            "room": Room(free_bytes=10_000),
            **more,
        }
    )


def _queues(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {queue["id"]: queue for queue in document["queues"]}


def test_a_class_change_names_the_rows_that_stay_behind():
    """Rows keep what they were stored with; the old queue drains, the new one begins."""
    present = _present(
        {"status": {"route": STATUS, "priority": 2}, "rest": REST},
        _queue("upstream", 2, rows=500),
        _queue("upstream", rows=7),
    )
    document = difference_document(
        present, _manifest({"status": {"route": STATUS, "priority": 1}, "rest": REST})
    )
    assert document["class_changes"] == [
        {
            "route": "status",
            "before": 2,
            "after": 1,
            "old_queue": "upstream_Pri2",
            "new_queue": "upstream_Pri1",
            "rows_in_old_queue": 500,
        }
    ]
    assert document["snapshots"] == [
        {"queue": "upstream_Pri2", "rows": 500, "bytes": 50_000, "routes": ["status"]}
    ]
    fates = {name: queue["fate"] for name, queue in _queues(document).items()}
    assert fates == {"upstream": "kept", "upstream_Pri1": "new", "upstream_Pri2": "drains"}
    assert not document["same"]


def test_unmeasured_is_said_and_not_guessed():
    """Without rates there are no figures and no verdict."""
    present = _present({"rest": REST}, _queue("upstream", rows=1))
    document = difference_document(present, _manifest({"rest": REST}))
    queue = _queues(document)["upstream"]
    assert document["same"]
    assert (queue["rate_bytes_s"], queue["need_bytes"]) == (None, None)
    assert queue["rate_is"] == "not measured yet"
    assert document["disk"]["fits"] is None
    assert document["disk"]["need_bytes"] is None


def test_nothing_that_came_in_is_no_measurement():
    """A minute without a message does not say that all fits."""
    rates = {QueueId("upstream"): _rate(0)}
    present = _present({"rest": REST}, _queue("upstream", rows=1), rates=rates)
    disk = difference_document(present, _manifest({"rest": REST}))["disk"]
    assert (disk["fits"], disk["need_bytes"]) == (None, None)


def test_routes_that_nothing_has_come_by_are_no_measurement():
    """What came by a route that goes says nothing of the routes that come."""
    rates = {QueueId("upstream"): _rate(5)}
    present = _present({"rest": REST}, _queue("upstream"), rates=rates)
    after = {"status": {"route": STATUS, "priority": 1}}
    disk = difference_document(present, _manifest(after))["disk"]
    assert (disk["fits"], disk["need_bytes"], disk["measured_s"]) == (None, None, 60)


def test_the_loss_of_the_catch_all_is_a_warning():
    """Where a manifest had one, another one without it drops what matches no route."""
    bare = {"status": STATUS}
    present = _present({"status": STATUS, "rest": REST})
    (warning,) = difference_document(present, _manifest(bare))["warnings"]
    assert warning == (
        "from now on messages that match no route are acknowledged and dropped; "
        'add `"rest": "FROM /messages/* INTO $upstream"` to keep them'
    )
    assert not difference_document(present, _manifest({"other": REST}))["warnings"]
    assert not difference_document(_present(bare), _manifest(bare))["warnings"]
    others = _manifest({"by-api": REST}).routes
    kept = _present({"status": STATUS, "rest": REST}, others=others)
    assert not difference_document(kept, _manifest(bare))["warnings"]


def test_disk_need_is_rate_times_time_to_live_beside_what_drains():
    """Measured bytes per second move with their route to its new queue and time to live."""
    present = _present(
        {"status": {"route": STATUS, "priority": 2}, "rest": REST},
        _queue("upstream", 2, rows=10),
        _queue("upstream"),
        rates={QueueId("upstream_Pri2"): _rate(5), QueueId("upstream"): _rate(1)},
    )
    after = {"status": {"route": STATUS, "priority": 1, "timeToLiveSecs": 1_000}, "rest": REST}
    document = difference_document(present, _manifest(after))
    new = _queues(document)["upstream_Pri1"]
    assert (new["rate_bytes_s"], new["rate_is"], new["need_bytes"]) == (5, "measured", 5_000)
    assert document["disk"] == {
        "measured_s": 60,
        "need_bytes": 1_000 + 5_000 + 100,
        "endless": False,
        "stored_bytes": 1_000,
        "free_bytes": 10_000,
        "floor_bytes": 0,
        "cap_bytes": None,
        "exceeds": [],
        "fits": True,
        "unmeasured_routes": [],
    }
    longer = {"status": {"route": STATUS, "priority": 1, "timeToLiveSecs": 9_999}, "rest": REST}
    disk = difference_document(present, _manifest(longer))["disk"]
    assert disk["fits"] is False
    assert disk["exceeds"] == [
        {"cap": "free disk space", "queue": None, "need": 51_095, "limit": 11_000}
    ]


def test_the_need_is_held_against_every_cap():
    """What the settings allow comes before what the disk has: of the hub and of each queue."""
    room = Room(
        free_bytes=10**9,
        floor_bytes=10**6,
        hub_bytes=5_000,
        hub_rows=60,
        queue_bytes=4_000,
        queue_rows=45,
    )
    rates = {QueueId("upstream_Pri2"): _rate(5), QueueId("upstream"): _rate(1)}
    routes = {"status": {"route": STATUS, "priority": 2}, "rest": REST}
    present = _present(routes, rates=rates, room=room)
    after = {**routes, "status": {"route": STATUS, "priority": 2, "timeToLiveSecs": 1_000}}
    document = difference_document(present, _manifest(after))
    assert document["disk"]["exceeds"] == [
        {"cap": "hub bytes", "queue": None, "need": 5_100, "limit": 5_000}
    ]
    assert (document["disk"]["fits"], document["disk"]["cap_bytes"]) == (False, 5_000)
    assert _queues(document)["upstream"]["exceeds"] == []
    assert _queues(document)["upstream_Pri2"]["exceeds"] == [
        {"cap": "queue bytes", "queue": "upstream_Pri2", "need": 5_000, "limit": 4_000},
        {"cap": "queue rows", "queue": "upstream_Pri2", "need": 50, "limit": 45},
    ]


def test_shares_of_a_volume_become_bytes():
    """As the store counts them: the floor is at most a tenth of a small volume."""
    caps = Caps(bytes_percent=75, free_bytes_min=256, queue_rows=9)
    assert Room.of(caps, total_bytes=1_000, free_bytes=700) == Room(
        free_bytes=700, floor_bytes=100, hub_bytes=750, queue_rows=9
    )
    assert Room.of(Caps(bytes=5, free_percent=50), total_bytes=1_000, free_bytes=7) == Room(
        free_bytes=7, floor_bytes=500, hub_bytes=5
    )


def test_a_queue_for_older_rows_does_not_only_drain():
    """Recency: what is too old for its own queue goes there, and is no need of its own."""
    plain = {"route": STATUS, "priority": 1}
    status = {**plain, "Recency": {"Seconds": 9, "FallbackPriority": 7}}
    present = _present(
        {"status": status, "rest": REST},
        _queue("upstream", 1, rows=2),
        _queue("upstream", 7, rows=8),
        rates={QueueId("upstream_Pri1"): _rate(5)},
    )
    document = difference_document(present, _manifest({"status": status}))
    aged = _queues(document)["upstream_Pri7"]
    assert (aged["fate"], aged["older_rows_of"], aged["need_bytes"]) == ("kept", ["status"], 0)
    assert document["disk"]["need_bytes"] == 500
    gone = difference_document(present, _manifest({"status": plain}))
    assert _queues(gone)["upstream_Pri7"]["fate"] == "drains"
    assert {"queue": "upstream_Pri7", "rows": 8, "bytes": 800, "routes": ["status"]} in gone[
        "snapshots"
    ]
    new = {**status, "Recency": {"Seconds": 9, "FallbackPriority": 8}}
    assert _queues(difference_document(present, _manifest({"s": new})))["upstream_Pri8"][
        "fate"
    ] == ("new")


def test_rows_that_never_expire_have_no_bound():
    """A measured flow without time to live does not fit any disk."""
    present = _present({"rest": REST}, rates={QueueId("upstream"): _rate(1)})
    disk = difference_document(present, _manifest({"rest": REST}, ttl_s=-1))["disk"]
    assert (disk["endless"], disk["need_bytes"], disk["fits"]) == (True, None, False)


def test_routes_that_part_give_an_upper_bound():
    """A queue's rate cannot be split: each new queue may get all of it, the disk counts it once."""
    present = _present({"status": STATUS, "bulk": BULK}, rates={QueueId("upstream"): _rate(8)})
    after = {
        "status": {"route": STATUS, "priority": 1, "timeToLiveSecs": 10},
        "bulk": {"route": BULK, "priority": 7, "timeToLiveSecs": 20},
    }
    document = difference_document(present, _manifest(after))
    queues = _queues(document)
    assert queues["upstream_Pri1"]["rate_is"] == "at most"
    assert queues["upstream_Pri7"]["need_bytes"] == 160
    assert document["disk"]["need_bytes"] == 160


def test_what_was_never_measured_is_named():
    """New routes, and routes that take other messages, are left out of the figures by name."""
    present = _present({"rest": REST, "bulk": BULK}, rates={QueueId("upstream"): _rate(1)})
    after = {"rest": REST, "bulk": STATUS, "fresh": {"route": BULK, "priority": 7}}
    document = difference_document(present, _manifest(after))
    assert document["disk"]["unmeasured_routes"] == ["fresh", "bulk"]
    queues = _queues(document)
    assert queues["upstream_Pri7"]["rate_is"] == "not measured yet"
    assert queues["upstream"]["rate_is"] == "without bulk, not measured yet"


def test_queues_that_are_not_served_are_orphaned():
    """Rows for an endpoint that is gone only wait; empty queues of the past are not listed."""
    present = _present(
        {"rest": REST}, _queue("lab", rows=3), _queue("old"), _queue("upstream", 5, rows=1)
    )
    queues = _queues(difference_document(present, _manifest({"rest": REST})))
    assert {name: queue["fate"] for name, queue in queues.items()} == {
        "lab": "orphaned",
        "upstream": "kept",
        "upstream_Pri5": "drains",
    }


def test_a_manifest_is_shown_with_effective_values():
    """Queue, priority and time to live of each route as they hold."""
    document = manifest_document(_manifest({"rest": REST}, ttl_s=-1))
    assert document["global_ttl_s"] is None
    assert document["routes"] == [
        {
            "name": "rest",
            "route": REST,
            "endpoint": "upstream",
            "priority": DEFAULT_PRIORITY,
            "queue": "upstream",
            "ttl_s": None,
        }
    ]

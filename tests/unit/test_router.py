"""The router: what no route takes is acknowledged, counted and told at a bounded rate."""

from __future__ import annotations

from edgehub.endpoints.packet_limits import PacketLimits
from edgehub.message import Message, Refusal
from edgehub.mqtt.batch import BATCH_TYPE
from edgehub.router import Router
from edgehub.routes.manifest import DEFAULT_MANIFEST, parse_manifest
from edgehub.routes.table import RouteTable

NOTHING = parse_manifest(
    {"schemaVersion": "1.1", "routes": {}, "storeAndForwardConfiguration": {"timeToLiveSecs": 60}},
    file="m.json",
)


class _Store:
    """Takes rows as the store does, and acknowledges at once."""

    def __init__(self) -> None:
        self.appended: list[Message] = []
        self.went_to: list[str] = []
        self.dropped: list[tuple[str, str]] = []
        self.refused: list[str] = []

    def drop(self, _message, result, reason) -> None:
        """Record one that is not stored."""
        self.dropped.append((result.endpoint_id, reason))

    def refuse(self, _message, reason) -> None:
        """Record one that is refused."""
        self.refused.append(reason)

    def append(self, message, results, settle, token) -> None:
        """Take one."""
        assert results
        self.went_to += [result.endpoint_id for result in results]
        self.appended.append(message)
        settle(token, None)


class _Peer:
    """An endpoint whose peer takes packets of so many bytes."""

    def __init__(self, endpoint_id: str, row_bytes_max: int | None) -> None:
        self.id = endpoint_id
        self.row_bytes_max = row_bytes_max

    def wire_bytes(self, rows) -> list[int]:
        """Return the sizes of packets with a topic of 80 bytes."""
        return [len(row.message.body) + 80 for row in rows]


def _message(size: int = 1) -> Message:
    return Message("press-1", None, "/messages/", {}, {}, b"x" * size)


def _table(manifest, *endpoints: str) -> RouteTable:
    return RouteTable.compile(manifest, endpoints=endpoints)


TWO = parse_manifest(
    {
        "schemaVersion": "1.1",
        "routes": {
            "up": "FROM /messages/* INTO $upstream",
            "lab": 'FROM /messages/* INTO Endpoint("lab")',
        },
        "storeAndForwardConfiguration": {"timeToLiveSecs": 60},
    },
    file="m.json",
)


def test_what_no_peer_can_take_is_refused_with_its_size() -> None:
    """P-10: the whole packet is measured before it is stored, topic and all; others go on."""
    store, limits = _Store(), PacketLimits()
    router = Router(_table(TWO, "lab"), store, limits)
    for endpoint in (_Peer("upstream", 131_072), _Peer("lab", 1000)):
        limits.watch(endpoint)
    settled: list[tuple[int, object]] = []
    for token, size in enumerate((131_000, 130_992, 920, 131_000)):
        router.submit(_message(size), lambda *answer: settled.append(answer), token)
    assert settled == [(0, Refusal.INVALID), (1, None), (2, None), (3, Refusal.INVALID)]
    assert store.refused[0] == "too_large: packet of 131080 bytes, lab takes 1000"
    assert sorted(store.went_to) == ["lab", "upstream", "upstream"]
    assert store.dropped == [("lab", "too_large: packet of 131072 bytes, lab takes 1000")]
    too_large, unrouted = router.losses()
    assert (too_large.event, too_large.total) == ("router.message_too_large", 3)
    assert too_large.fields["reason"] == "too_large: packet of 131080 bytes, lab takes 1000"
    assert unrouted.total == 0


def test_a_peer_without_a_limit_takes_all() -> None:
    """What is not known is not refused, and an endpoint that has gone is not asked."""
    store, limits = _Store(), PacketLimits()
    limits.watch(_Peer("upstream", None))
    assert not limits.endpoints
    limits.watch(_Peer("upstream", 100))
    limits.unwatch("upstream")
    router = Router(_table(DEFAULT_MANIFEST), store, limits)
    router.submit(_message(300_000), lambda *_: None, 0)
    assert len(store.appended) == 1


def test_what_no_route_takes_is_acknowledged_counted_and_logged() -> None:
    """The count and the newest of them are what log and status tell, at a bounded rate."""
    store = _Store()
    router = Router(_table(NOTHING), store)
    settled: list[tuple[int, object]] = []
    for token in range(1000):
        router.submit(_message(), lambda number, why: settled.append((number, why)), token)
    assert settled == [(token, Refusal.UNROUTED) for token in range(1000)]
    assert store.appended == []
    assert router.unrouted_total == 1000
    loss = router.losses()[1]
    assert (loss.event, loss.total) == ("router.messages_unrouted", 1000)
    assert loss.fields == {"device_id": "press-1", "source": "/messages/", "properties": ""}


def test_what_no_route_takes_is_shown_with_its_properties() -> None:
    """In the log line and in what the status warns of: they are what routes look at."""
    router = Router(_table(NOTHING), _Store())
    message = Message("press-1", None, "/messages/", {"kind": "alarm", "unit": "C"}, {}, b"x")
    router.submit(message, lambda *_: None, 0)
    loss = router.losses()[1]
    assert loss.fields["properties"] == "kind=alarm unit=C"
    assert (loss.total, loss.example) == (1, "/messages/ of device press-1 kind=alarm unit=C")


def test_another_table_holds_from_the_next_message_on() -> None:
    """Replacing the table changes where later messages go."""
    store = _Store()
    router = Router(_table(NOTHING), store)
    router.submit(_message(), lambda *_: None, 0)
    router.replace(_table(DEFAULT_MANIFEST))
    router.submit(_message(), lambda *_: None, 1)
    assert len(store.appended) == 1
    assert router.unrouted_total == 1


def test_a_message_that_calls_itself_a_batch_is_refused() -> None:
    """From any way in, also for routes of local topics; what no such route takes is left alone."""
    store = _Store()
    settled: list[tuple[int, object]] = []
    batch = Message("press-1", None, "/messages/", {}, {"contentType": BATCH_TYPE}, b"x")
    router = Router(_table(DEFAULT_MANIFEST), store)
    router.submit(batch, lambda *answer: settled.append(answer), 0)
    router.offer(batch, lambda *answer: settled.append(answer), 1)
    router.replace(_table(NOTHING))
    router.offer(batch, lambda *answer: settled.append(answer), 2)
    assert settled == [(0, Refusal.RESERVED), (1, Refusal.RESERVED), (2, None)]
    assert store.appended == []
    assert store.refused == ["reserved", "reserved"]

"""The router: what no route takes is acknowledged, counted and told at a bounded rate."""

from __future__ import annotations

from structlog.testing import capture_logs

from edgehub.message import Message
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

    def append(self, message, results, settle, token) -> None:
        """Take one."""
        assert results
        self.appended.append(message)
        settle(token, None)


def _message() -> Message:
    return Message("press-1", None, "/messages/", {}, {}, b"x")


def _table(manifest) -> RouteTable:
    return RouteTable.compile(manifest, endpoints=[])


def test_what_no_route_takes_is_acknowledged_counted_and_told() -> None:
    """A thousand of them make four warnings, each with the count so far."""
    store = _Store()
    router = Router(_table(NOTHING), store)
    settled: list[tuple[int, object]] = []
    with capture_logs() as logs:
        for token in range(1000):
            router.submit(_message(), lambda number, why: settled.append((number, why)), token)
    assert settled == [(token, None) for token in range(1000)]
    assert store.appended == []
    assert router.unrouted_total == 1000
    assert [line["total"] for line in logs] == [1, 10, 100, 1000]


def test_another_table_holds_from_the_next_message_on() -> None:
    """Replacing the table changes where later messages go."""
    store = _Store()
    router = Router(_table(NOTHING), store)
    router.submit(_message(), lambda *_: None, 0)
    router.replace(_table(DEFAULT_MANIFEST))
    router.submit(_message(), lambda *_: None, 1)
    assert len(store.appended) == 1
    assert router.unrouted_total == 1

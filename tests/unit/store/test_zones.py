"""Zones: depth and bytes by zone, widening, reading ranges."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgehub.message import NEVER_MS, Message, Row
from edgehub.store.zones import ZoneChanges, Zones


def a_row(
    offset: int, *, expires_ms: int = NEVER_MS, fresh_until_ms: int = NEVER_MS, size: int = 100
) -> Row:
    """Build a row of which only the figures count."""
    message = Message("d", None, "/messages/", {}, {}, b"")
    row = Row(offset, message, 0, expires_ms, (), size)
    row.fresh_until_ms = fresh_until_ms
    return row


def zones_of(*rows: Row) -> Zones:
    """Build zones that hold these rows."""
    zones = Zones()
    changes = ZoneChanges()
    changes.add_rows(rows)
    zones.replace(zones.values_after(changes))
    return zones


def test_rows_are_counted_in_their_zones() -> None:
    """A zone is a thousand offsets; its expiries span those of its rows."""
    zones = zones_of(
        a_row(998, expires_ms=50), a_row(999, expires_ms=70), a_row(1000), a_row(5500, size=7)
    )
    assert list(zones) == [
        (0, 50, 70, NEVER_MS, 2, 200, NEVER_MS),
        (1, NEVER_MS, NEVER_MS, NEVER_MS, 1, 100, NEVER_MS),
        (5, NEVER_MS, NEVER_MS, NEVER_MS, 1, 7, NEVER_MS),
    ]
    assert (zones.depth, zones.bytes, zones.min_expires_ms, zones.span()) == (4, 307, 50, (0, 5))


def test_values_only_widen_until_the_zone_is_empty() -> None:
    """Removing rows keeps the span; the last one takes the entry away."""
    zones = zones_of(a_row(1, expires_ms=50), a_row(2, expires_ms=70))
    changes = ZoneChanges()
    changes.remove_rows([1], [100])
    zones.replace(zones.values_after(changes))
    assert list(zones) == [(0, 50, 70, NEVER_MS, 1, 100, NEVER_MS)]
    changes = ZoneChanges()
    changes.remove_rows([2], [100])
    zones.replace(zones.values_after(changes))
    assert list(zones) == []
    assert (zones.depth, zones.bytes, zones.min_expires_ms) == (0, 0, NEVER_MS)


def test_ends_of_freshness_widen() -> None:
    """The earliest and the latest end are kept; a row without recency never becomes stale."""
    zones = Zones()
    for fresh_until_ms in (60, 30, 90):
        changes = ZoneChanges()
        changes.add_rows([a_row(fresh_until_ms, fresh_until_ms=fresh_until_ms)], recency=True)
        zones.replace(zones.values_after(changes))
    assert next(iter(zones))[3::3] == (90, 30)
    assert (zones.stale(29), zones.stale(30), zones.stale_from_ms) == ([], [0], 30)
    changes = ZoneChanges()
    changes.add_rows([a_row(100)])
    zones.replace(zones.values_after(changes))
    assert next(iter(zones))[3::3] == (NEVER_MS, 30)


def test_reading_passes_stale_zones_and_says_so() -> None:
    """A zone of which no row is fresh any more is not read."""
    zones = Zones()
    for first, fresh_until_ms in ((0, 50), (1000, 60), (2000, 90)):
        changes = ZoneChanges()
        changes.add_rows([a_row(first, fresh_until_ms=fresh_until_ms)], recency=True)
        zones.replace(zones.values_after(changes))
    assert zones.readable(0, 2000, 49, 10) == ([(0, 2000)], 2000, False)
    assert zones.readable(0, 2000, 60, 10) == ([(2000, 2000)], 2000, True)


def test_reading_passes_empty_and_expired_zones() -> None:
    """Ranges cover what may hold live rows, joined where they touch."""
    zones = zones_of(a_row(500), a_row(1500), a_row(2500, expires_ms=10), a_row(3500), a_row(9500))
    ranges, end, _ = zones.readable(600, 9500, 20, 10_000)
    assert ranges == [(600, 1999), (3000, 3999), (9000, 9500)]
    assert end == 9500
    assert zones.readable(9501, 12_000, 20, 10)[0] == [(9501, 9999)]
    assert zones.readable(10_000, 12_000, 20, 10) == ([], 12_000, False)


def test_reading_stops_when_enough_rows_are_chosen() -> None:
    """No statement runs long: a range ends with the zone that fills it."""
    zones = zones_of(*[a_row(offset) for offset in range(6000)])
    ranges, end, _ = zones.readable(0, 5999, 0, 500)
    assert ranges == [(0, 1999)]
    assert end == 1999


def test_expired_zones_in_both_modes() -> None:
    """The whole queue, or the head up to the first zone in which nothing has expired."""
    zones = zones_of(
        a_row(1, expires_ms=5), a_row(1001, expires_ms=6), a_row(2001), a_row(3001, expires_ms=7)
    )
    assert zones.expired(7) == [0, 1, 3]
    assert zones.expired(7, head_only=True) == [0, 1]
    assert zones.expired(4) == []


@given(
    st.lists(
        st.tuples(st.sets(st.integers(0, 5000), max_size=40), st.booleans(), st.integers(1, 9)),
        min_size=4,
        max_size=12,
    )
)
def test_zones_equal_a_recount(steps: list[tuple[set[int], bool, int]]) -> None:
    """Whatever joins and leaves, entries equal those counted from the rows."""
    zones = Zones()
    live: dict[int, int] = {}
    for offsets, joins, size in steps:
        changes = ZoneChanges()
        if joins:
            fresh = sorted(offsets - live.keys())
            changes.add_rows([a_row(offset, size=size) for offset in fresh])
            live |= dict.fromkeys(fresh, size)
        else:
            gone = [offset for offset in offsets if offset in live]
            changes.remove_rows(gone, [live.pop(offset) for offset in gone])
        zones.replace(zones.values_after(changes))
        expected = {
            zone: (
                sum(offset // 1000 == zone for offset in live),
                sum(size for offset, size in live.items() if offset // 1000 == zone),
            )
            for zone in {offset // 1000 for offset in live}
        }
        assert {values[0]: values[4:6] for values in zones} == expected
        assert (zones.depth, zones.bytes) == (len(live), sum(live.values()))
        assert [values[0] for values in zones] == sorted(expected)
        assert list(Zones(zones)) == list(zones)


@given(
    st.lists(
        st.tuples(st.integers(0, 1500), st.integers(0, 200), st.integers(0, 200)),
        min_size=12,
        max_size=30,
    ),
    st.lists(st.integers(0, 220), max_size=8),
)
def test_what_is_due_is_found_however_often_it_is_asked(
    changes: list[tuple[int, int, int]], times: list[int]
) -> None:
    """Zones join, tighten and go between looks; no look misses one whose time has come."""
    zones = Zones()
    steps = [*changes, *[None] * len(times)]
    looks = iter(times)
    for place, step in enumerate(steps):
        if step is not None:
            zone, expires_ms, stale_ms = step
            rows = place % 4  # some go again
            zones.replace([(zone, expires_ms, 500, NEVER_MS, rows, rows * 9, stale_ms)])
        now_ms = next(looks, None) if place % 3 == 0 or step is None else None
        if now_ms is not None:
            assert zones.expired(now_ms) == [each[0] for each in zones if each[1] <= now_ms]
            assert zones.stale(now_ms) == [each[0] for each in zones if each[6] <= now_ms]

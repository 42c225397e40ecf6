"""From events to lines: edges of days and lives, links, sums, and clocks that step."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from edgehub.journal.ages import STEP_MS
from edgehub.journal.events import Stretches, unpack
from edgehub.journal.ledger import STEP_BACK_MAX_MS, Ledger
from edgehub.journal.lines import DAY_MS, Origin
from edgehub.journal.row_events import (
    PUMP_IDLE,
    PUMP_OFFLINE,
    PUMP_UNSERVED,
    EventColumns,
    RowEvent,
    moved_to,
    pack,
)
from edgehub.message import DEFAULT_PRIORITY, NEVER_MS, EndpointId, Message, Priority, Row
from tests.support.journal_format import check_equation, check_line

if TYPE_CHECKING:
    from edgehub.journal.row_events import Note

ORIGIN = Origin("gw", "00112233445566aa", "abc-")
DAY = 20_000
NOON_MS = DAY * DAY_MS + DAY_MS // 2
UP, P7 = EndpointId("upstream"), Priority(7)
FIGURES = ("edge", "rows", "bytes")


class Told:
    """A ledger that is fed by hand; hub time 0 is noon of day `DAY`."""

    def __init__(self) -> None:
        self.ledger = Ledger(ORIGIN)
        self.lines: list[dict[str, Any]] = []
        self._number = 0

    def commit(
        self,
        hub_ms: int,
        *notes: Note,
        event: RowEvent = RowEvent.ENQUEUED,
        offsets: tuple[int, ...] = (),
        step_ms: int = 0,
        summed: bool = False,
        priority: Priority = P7,
    ) -> list[dict[str, Any]]:
        """Enter one commit, and give its lines."""
        columns = EventColumns()
        rows = [
            Row(n, Message("d", None, "", {}, {}, b""), hub_ms, NEVER_MS, ("r",), 100)
            for n in offsets
        ]
        if rows:
            columns.add(event, rows, None if event is RowEvent.ENQUEUED else hub_ms)
        if summed:
            columns.shrink()
        self._number += 1
        blob = pack(hub_ms, NOON_MS + hub_ms + step_ms, list(notes), [(UP, priority, columns)])
        pieces = list(self.ledger.take(self._number, unpack(blob)))
        lines = [json.loads(line) for piece in pieces for line in piece.text.splitlines()]
        for line in lines:
            check_line(line)
        self.lines += lines
        return lines


def figures(lines: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return time, edge, rows and bytes of the carried lines."""
    carried = [line for line in lines if line["event"] == "carried"]
    return [(line["time"], *(line[key] for key in FIGURES)) for line in carried]


def test_a_midnight_hands_every_queue_over() -> None:
    """Out at the end of one date, in at the beginning of the next, links again."""
    told = Told()
    told.commit(0, ["start", 0, 0, []], ["pump", UP, 0, PUMP_IDLE], offsets=(1, 2))
    lines = told.commit(DAY_MS // 2 + 5, offsets=(3,))
    assert figures(lines) == [
        ("2024-10-04T23:59:59.999Z", "out", 2, 200),
        ("2024-10-05T00:00:00.000Z", "in", 2, 200),
    ]
    assert [line["event"] for line in lines] == ["carried", "carried", "link", "enqueued"]
    assert lines[2]["state"] == "up"
    check_equation(told.lines)


def test_ages_and_settings_go_over_midnight() -> None:
    """Rows with how long they have waited, and what is in force; after a restart as well."""
    told = Told()
    members = {"route_count": 0, "endpoints": {}, "caps": {}}
    told.commit(0, ["start", 0, 0, []], ["settings", 0, members], offsets=(1, 2))
    told.commit(STEP_MS, offsets=(3, 4, 5))
    told.commit(2 * STEP_MS, event=RowEvent.SENT, offsets=(4,))
    document = json.loads(json.dumps(told.ledger.document()))
    told.ledger = Ledger.load(ORIGIN, document)
    lines = told.commit(DAY_MS // 2, offsets=(6,))
    ages = next(line["ages"] for line in lines if line.get("edge") == "in")
    half = DAY_MS // 2
    assert ages == [[half - STEP_MS, 1], [half - 2 * STEP_MS, 3]]
    settings = next(line for line in lines if line["event"] == "settings")
    assert settings.items() >= members.items()


def test_a_state_of_the_program_before_is_taken_over() -> None:
    """It knows neither ages nor settings; what waits is taken for young."""
    told = Told()
    told.commit(0, ["start", 0, 0, []], offsets=(1, 2))
    told.ledger = Ledger.load(ORIGIN, told.ledger.document()[:-2])
    lines = told.commit(DAY_MS // 2, offsets=(3,))
    ages = next(line["ages"] for line in lines if line.get("edge") == "in")
    assert ages == [[DAY_MS // 2 - STEP_MS, 2]]


def test_what_was_committed_after_midnight_belongs_to_the_new_day() -> None:
    """Its own time lies before midnight; its date is that of the commit."""
    told = Told()
    told.commit(0, offsets=(1,))
    columns = EventColumns()
    row = Row(2, Message("d", None, "", {}, {}, b""), DAY_MS // 2 - 9, NEVER_MS, ("r",), 100)
    columns.add(RowEvent.ENQUEUED, [row], None)
    blob = pack(DAY_MS // 2 + 9, NOON_MS + DAY_MS // 2 + 9, [], [(UP, P7, columns)])
    line = json.loads(b"".join(p.text for p in told.ledger.take(2, unpack(blob))).splitlines()[-1])
    assert line["time"] == "2024-10-05T00:00:00.000Z"
    assert line["hub_ms"] == DAY_MS // 2 - 9


def test_a_killed_hub_writes_its_stop_and_each_missed_midnight() -> None:
    """Dated as they would have been, before anything else of the new life."""
    told = Told()
    told.commit(0, ["start", 0, 0, []], offsets=(1, 2))
    back = 3 * DAY_MS
    start: Note = ["start", 1000, NOON_MS + 1000, [[UP, P7, 2, 200]]]
    lines = told.commit(back, start, event=RowEvent.EXPIRED, offsets=(1,))
    edges = [(time[:10], edge) for time, edge, *_ in figures(lines)]
    assert edges == [
        ("2024-10-04", "stop"),
        ("2024-10-04", "out"),
        ("2024-10-05", "in"),
        ("2024-10-05", "out"),
        ("2024-10-06", "in"),
        ("2024-10-06", "out"),
        ("2024-10-07", "in"),
        ("2024-10-07", "start"),
    ]
    assert lines[-1]["event"] == "expired"
    assert lines[-1]["offline_ms"] == lines[-1]["waited_ms"]
    assert told.ledger.corrections == 0
    check_equation(told.lines)


def test_an_orderly_stop_is_written_once() -> None:
    """After what happened last; the next start does not repeat it."""
    told = Told()
    told.commit(0, ["start", 0, 0, []], offsets=(1,))
    assert [edge for _, edge, *_ in figures(told.commit(10, ["stop"]))] == ["stop"]
    lines = told.commit(99, ["start", 10, NOON_MS + 10, [[UP, P7, 1, 100]]])
    assert [edge for _, edge, *_ in figures(lines)] == ["start"]


def test_the_rows_in_the_file_decide_at_the_start() -> None:
    """Where the journal was off for a while, figures go on from what is there."""
    told = Told()
    told.commit(0, ["start", 0, 0, []], offsets=(1,))
    told.commit(10, ["stop"])
    told.commit(20, ["start", 10, NOON_MS + 10, [[UP, P7, 5, 500]]])
    assert told.ledger.gauges == {(UP, P7): (5, 500)}
    assert told.ledger.corrections == 1


def test_sums_keep_the_figures() -> None:
    """At the bound: one line per queue and kind; the equation still closes."""
    told = Told()
    (line,) = told.commit(0, offsets=(1, 2, 3), summed=True, priority=DEFAULT_PRIORITY)
    assert (line["count"], line["bytes"], line["event"]) == (3, 300, "enqueued")
    assert "priority" not in line
    told.commit(1, event=RowEvent.SENT, offsets=(1, 2, 3), summed=True, priority=DEFAULT_PRIORITY)
    assert told.ledger.gauges == {}
    assert check_equation(told.lines) == {}


def test_a_link_is_reported_when_it_changes_and_after_each_start() -> None:
    """What a pump does beside that makes no line."""
    told = Told()
    told.commit(0, ["start", 0, 0, []], ["pump", UP, 0, PUMP_OFFLINE], ["pump", UP, 1, 0])
    told.commit(5, ["pump", UP, 5, PUMP_IDLE], ["pump", UP, 6, PUMP_OFFLINE])
    told.commit(9, ["start", 6, NOON_MS, []], ["pump", UP, 9, PUMP_OFFLINE])
    states = [line["state"] for line in told.lines if line["event"] == "link"]
    assert states == ["down", "up", "down", "down"]


def test_an_endpoint_that_nothing_serves_is_distinguished_from_a_link_that_is_down() -> None:
    """The line says `unserved`, at midnight again; rows wait offline during that."""
    told = Told()
    told.commit(0, ["start", 0, 0, []], ["pump", UP, 0, PUMP_UNSERVED], offsets=(1,))
    told.commit(DAY_MS // 2 + 5, offsets=(2,))
    told.commit(DAY_MS, ["pump", UP, DAY_MS, PUMP_OFFLINE], ["pump", UP, DAY_MS + 9, 0])
    states = [line["state"] for line in told.lines if line["event"] == "link"]
    assert states == ["unserved", "unserved", "down", "up"]
    (line,) = told.commit(DAY_MS + 19, event=RowEvent.SENT, offsets=(3,))
    assert "offline_ms" in line
    assert told.ledger.split((UP, P7), "d", 1, 0, DAY_MS + 19) == (DAY_MS + 9, 10, 0, 0)


def test_a_small_step_back_over_midnight_keeps_the_date() -> None:
    """Lines stay on the date that has begun."""
    told = Told()
    told.commit(DAY_MS // 2 + 60_000, offsets=(1,))
    for number, back_ms in enumerate((600_000, STEP_BACK_MAX_MS + 80_000), 7):
        step_ms = -back_ms
        (line,) = told.commit(DAY_MS // 2 + number * 10_000, offsets=(number,), step_ms=step_ms)
        assert line["time"] == "2024-10-05T00:00:00.000Z"


def test_a_clock_that_was_set_closes_one_date_and_opens_the_other() -> None:
    """Years ahead or back: no days between are made up, and the sums close."""
    told = Told()
    told.commit(0, offsets=(1, 2))
    ahead = told.commit(1000, offsets=(3,), step_ms=3000 * DAY_MS)
    back = told.commit(2000, event=RowEvent.SENT, offsets=(1, 2, 3))
    assert [edge for _, edge, *_ in figures(ahead)] == ["out", "in"]
    assert [(time[:10], edge, rows) for time, edge, rows, _ in figures(back)] == [
        ("2032-12-21", "out", 3),
        ("2024-10-04", "in", 3),
    ]
    by_date = sorted(told.lines, key=lambda line: line["time"][:10])
    assert told.ledger.gauges == {}
    assert sum(line["event"] == "carried" for line in by_date) == 4


def test_a_stored_account_goes_on_with_the_same_lines() -> None:
    """Document and back, over JSON, at any commit."""
    one, other = Told(), Told()
    for told in (one, other):
        told.commit(0, ["start", 0, 0, []], ["pump", UP, 0, 3], offsets=(1, 2))
        told.commit(50, ["hold", UP, P7, "d", 40, 1], offsets=(3,))
    other.ledger = Ledger.load(ORIGIN, json.loads(json.dumps(other.ledger.document())))
    for hub_ms in (80, DAY_MS):
        assert one.commit(hub_ms, event=RowEvent.SENT, offsets=(hub_ms,)) == other.commit(
            hub_ms, event=RowEvent.SENT, offsets=(hub_ms,)
        )


def test_counted_things_beside_rows_have_lines() -> None:
    """Refused messages and dead letters that left."""
    told = Told()
    lines = told.commit(
        0, ["refused", "d", 3, 900, "limit"], ["dead_purged", UP, P7, 2, 300, "bounds"]
    )
    assert [(line["event"], line["count"], line["bytes"]) for line in lines] == [
        ("refused", 3, 900),
        ("dead_purged", 2, 300),
    ]


def test_sums_in_any_order_lose_no_bytes() -> None:
    """Rows may be even while bytes are not: what leaves may stand before what joins."""
    told = Told()
    told.commit(0, ["start", 0, 0, []], offsets=(1,))
    columns = EventColumns()
    columns.count(RowEvent.SENT, 1, 90)
    columns.count(RowEvent.ENQUEUED, 1, 80)
    list(told.ledger.take(9, unpack(pack(5, NOON_MS + 5, [], [(UP, P7, columns)]))))
    assert told.ledger.gauges == {(UP, P7): (1, 90)}


def test_a_move_by_command_names_where_rows_went() -> None:
    """Row by row and in sums; out of one queue, into the other, of another endpoint."""
    told = Told()
    told.commit(0, ["start", 0, 0, []], offsets=(1, 2))
    lab = EndpointId("lab")
    for number, summed in ((7, False), (8, True)):
        columns = EventColumns(to_endpoint=lab)
        record = (number, 0, NEVER_MS, 100, 0, ("r",), 0, "d")
        columns.add_records(moved_to(3), [record], 5, "command")
        if summed:
            columns.shrink()
        blob = pack(5, NOON_MS + 5, [], [(UP, P7, columns)])
        pieces = told.ledger.take(number, unpack(blob))
        (line,) = [json.loads(text) for piece in pieces for text in piece.text.splitlines()]
        check_line(line)
        assert (line["event"], line["to_endpoint"], line["to_priority"], line["reason"]) == (
            "moved",
            "lab",
            3,
            "command",
        )
    assert told.ledger.gauges == {("lab", 3): (2, 200)}


def test_under_a_clock_that_is_not_trusted_lines_have_no_date() -> None:
    """Times are those that the machine believed; a midnight there is none."""
    told = Told()
    told.commit(0, ["start", 0, 0, []], offsets=(1,))
    columns = EventColumns()
    columns.count(RowEvent.SENT, 1, 100)
    blob = pack(DAY_MS, 5, [], [(UP, P7, columns)], trusted=False)
    (piece,) = told.ledger.take(2, unpack(blob))
    assert piece.day is None
    assert json.loads(piece.text)["time"] == "1970-01-01T00:00:00.005Z"
    assert told.ledger.day == DAY
    assert told.ledger.gauges == {}


def test_right_times_put_such_lines_in_their_places() -> None:
    """The same events told with what is known of hub time: over the midnight, on the next date."""
    told = Told()
    told.commit(0, ["start", 0, 0, []], offsets=(1,))
    columns = EventColumns()
    columns.count(RowEvent.SENT, 1, 100)
    blob = pack(DAY_MS, 5, [], [(UP, P7, columns)], trusted=False)
    pieces = list(told.ledger.take(2, unpack(blob), Stretches([[0, 7], [9, NOON_MS]])))
    assert [piece.day for piece in pieces] == [DAY, DAY + 1, DAY + 1]
    lines = [json.loads(line) for piece in pieces for line in piece.text.splitlines()]
    assert [line["event"] for line in lines] == ["carried", "carried", "sent"]
    assert lines[2]["time"] == "2024-10-05T12:00:00.000Z"


def test_what_damage_has_cost_leaves_in_the_commit_of_the_start() -> None:
    """As counted, or as many as are missing where more are than could be counted."""
    for counted, expected in ((2, (2, 200)), (1, (2, 200)), (3, (3, 300))):
        told = Told()
        told.commit(0, ["start", 0, 0, []], offsets=(1, 2, 3))
        start: Note = ["start", 0, NOON_MS, [[UP, P7, 1, 100]]]
        lines = told.commit(9, start, ["lost", [[UP, P7, counted, 100 * counted]]])
        (lost,) = [line for line in lines if line["event"] == "lost"]
        assert (lost["count"], lost["bytes"]) == expected
        assert told.ledger.gauges == {(UP, P7): (1, 100)}
        assert told.ledger.corrections == (counted == 3)


def test_percent_signs_are_text() -> None:
    """In every name, whether all lines of a commit have it or each has its own."""
    ledger = Ledger(Origin("gw%d", "00112233445566aa", "%s-"))
    columns = EventColumns()
    rows = [
        Row(n, Message(device, None, "", {}, {}, b""), 0, NEVER_MS, routes, 100)
        for n, device, routes in ((1, "d%d", ("r%b",)), (2, "%", ("r%b",)), (3, "d%d", ("%%",)))
    ]
    columns.add(RowEvent.ENQUEUED, rows, None)
    columns.add(RowEvent.DEAD_LETTERED, rows[:1], 5, "poison: 100 %")
    blob = pack(9, NOON_MS, [], [(EndpointId("e%x"), P7, columns)])
    text = b"".join(piece.text for piece in ledger.take(1, unpack(blob)))
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["seq"] for line in lines] == [0, 1, 2, 3]
    assert {(line["hub"], line["endpoint"]) for line in lines} == {("gw%d", "e%x")}
    assert [(line["message"], line["device"], line["routes"]) for line in lines] == [
        ("%s-1", "d%d", ["r%b"]),
        ("%s-2", "%", ["r%b"]),
        ("%s-3", "d%d", ["%%"]),
        ("%s-1", "d%d", ["r%b"]),
    ]
    assert lines[-1]["reason"] == "poison: 100 %"

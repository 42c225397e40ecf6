"""Announcements: what rows wait for, and what becomes of it."""

from __future__ import annotations

from edgehub.entities.announcements import Announcements, Subject, cleared
from edgehub.entities.effects import TableChange
from edgehub.message import UPSTREAM, EndpointId

LAB = EndpointId("lab")
A = Subject(UPSTREAM, "device/a//", "A")
B = Subject(UPSTREAM, "device/b//", "B")


def stored(*changes: TableChange) -> list[tuple[str, bytes]]:
    """Return the table after some changes."""
    table: dict[str, bytes] = {}
    for change in changes:
        key = str(change.key[0])
        if change.value is None:
            table.pop(key, None)
        else:
            table[key] = bytes(change.value[0])  # type: ignore[arg-type] - it is JSON
    return sorted(table.items())


def test_rows_of_one_endpoint_wait_until_it_is_confirmed():
    """Others never do; afterwards nothing does."""
    known = Announcements()
    known.came(5, A, None, 1)
    assert known.predecessor(UPSTREAM, "A") == 5
    assert known.predecessor(LAB, "A") is None
    assert (known.is_open(5, UPSTREAM), known.is_open(5, LAB)) == (True, False)
    assert known.confirmed(5) == [5]
    assert not known.is_open(5, UPSTREAM)
    assert known.predecessor(UPSTREAM, "A") is None
    assert (known.confirmed(5), known.stand_in(5), len(known)) == ([], None, 0)


def test_a_refused_one_stays_open_until_another_is_confirmed():
    """The other one stands in for it; both are over with its confirmation."""
    known = Announcements()
    told: list[EndpointId] = []
    known.watch(told.append)
    known.came(5, A, None, 1)
    _, subject = known.refused(5)
    assert (subject, known.stand_in(5), known.refused_count) == (A, None, 1)
    assert known.refused(5) == ([], None)
    known.came(9, A, None, 2)
    assert told == [UPSTREAM]
    stand_in = known.stand_in(5)
    assert stand_in is not None
    assert (stand_in.offset, known.predecessor(UPSTREAM, "A")) == (9, 9)
    assert sorted(known.confirmed(9)) == [5, 9]


def test_another_external_id_is_another_entity():
    """Rows under the id that was refused are not let go by one under another id."""
    known = Announcements()
    known.came(5, A, None, 1)
    known.refused(5)
    known.came(9, A._replace(external_id="other"), None, 2)
    assert known.stand_in(5) is None
    assert known.confirmed(9) == [9]
    assert known.is_open(5, UPSTREAM)


def test_the_same_is_not_announced_twice_while_it_waits():
    """Registering and deregistering in a loop adds no rows; a refused one does not count."""
    known = Announcements()
    known.came(5, A, None, 1)
    assert (known.is_pending(A, 1), known.is_pending(A, 2)) == (True, False)
    known.refused(5)
    assert not known.is_pending(A, 1)


def test_what_the_queues_hold_decides_after_a_restart():
    """Waiting stays, dead is refused, neither is confirmed; what came back is as new."""
    known = Announcements()
    changes = [known.came(offset, A._replace(topic_id=f"t{offset}"), None, 0) for offset in (1, 2)]
    changes += [known.came(3, B, 2, 0), known.came(4, A, None, 0)]
    changes += known.refused(4)[0]
    again = Announcements([*stored(*changes), ("creation/x", b"junk"), ("alarm/x", b"{}")])
    written, refused = again.resume(waiting={1, 4}, dead={2})
    assert [subject.topic_id for subject in refused] == ["t2"]
    assert (again.offsets(), again.refused_count) == ({1, 2, 4}, 1)
    assert TableChange in map(type, written)
    assert cleared(3).key in [change.key for change in written if change.value is None]
    assert ("creation/x",) in [change.key for change in written]
    final = Announcements(stored(*changes, *written))
    assert (final.offsets(), final.refused_count) == ({1, 2, 4}, 1)


def test_a_moved_one_is_waited_for_where_it_goes():
    """And a forgotten one nowhere; who watches is told."""
    known = Announcements()
    known.came(5, A, None, 1)
    told: list[EndpointId] = []
    known.watch(told.append)
    assert len(known.moved(5, LAB)) == 1
    assert (known.is_open(5, UPSTREAM), known.is_open(5, LAB), told) == (
        False,
        True,
        [UPSTREAM, LAB],
    )
    assert len(known.forgotten(5)) == 1
    assert (known.forgotten(5), known.moved(5, LAB), known.endpoints()) == ([], [], set())
    known.unwatch(told.append)


def test_one_that_came_back_waits_again():
    """An operator has requeued its dead letter."""
    known = Announcements()
    known.came(5, A, None, 1)
    assert known.came_back(5) == []
    known.refused(5)
    assert len(known.came_back(5)) == 1
    stand_in = known.stand_in(5)
    assert stand_in is not None
    assert (stand_in.offset, [each.offset for each in known.of(UPSTREAM)]) == (5, [5])

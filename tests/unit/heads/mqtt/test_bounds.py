"""Bounds that clients share: who may use how much, who waits for room, and what the status says."""

from __future__ import annotations

import pytest

from edgehub.clock import ManualClock
from edgehub.devices.bounds import Bound
from edgehub.heads.mqtt.backlog import Backlog
from edgehub.heads.mqtt.local.retained import RetainedMessages
from edgehub.heads.mqtt.will import PENDING_BYTES_MAX, PendingWills
from edgehub.hub.status import bound_warnings
from edgehub.local_message import LocalMessage
from edgehub.settings import MqttSettings

KNOWN = {"id1": object()}


def test_anonymous_clients_get_half_and_identities_the_rest() -> None:
    """Neither kind takes what the other uses; without identities there is no half."""
    bound = Bound("things", 10, KNOWN)
    assert (bound.anonymous.limit, bound.identified.limit) == (5, 10)
    bound.of("a1").used += 5
    assert not bound.of("a2").has_room()
    assert bound.of("id1").has_room(5)
    assert not bound.of("id1").has_room(6)
    bound.of("id1").used += 8
    assert bound.anonymous.limit == 2
    assert Bound("things", 10, {}).anonymous.limit == 10


@pytest.mark.parametrize("known", [{}, KNOWN])
@pytest.mark.parametrize("limit", range(7))
def test_a_bound_is_full_exactly_when_there_is_no_room(
    limit: int, known: dict[str, object]
) -> None:
    """Of odd limits and of none, too, where half is rounded down."""
    bound = Bound("things", limit, known)
    for identified in range(limit + 1):
        for anonymous in range(limit + 1 - identified):
            bound.identified.used, bound.anonymous.used = identified, anonymous
            for usage in (bound.identified, bound.anonymous):
                assert usage.is_full is not usage.has_room()


def test_identities_get_their_half_whatever_anonymous_clients_had_before() -> None:
    """What anonymous clients filled while there were no identities keeps out none of them."""
    known: dict[str, object] = {}
    bound = Bound("things", 10, known)
    bound.of("a1").used += 10
    known["id1"] = object()
    assert not bound.of("a1").has_room()
    assert bound.of("id1").has_room(5)
    assert not bound.of("id1").has_room(6)


@pytest.mark.parametrize(
    ("anonymous", "identified", "texts"),
    [
        (44, 45, []),
        (45, 0, ["MQTT: 45 of 50 things that anonymous clients may have are in use (a.b)"]),
        (30, 60, ["MQTT: 90 of 100 things are in use (a.b)"]),
    ],
)
def test_a_bound_of_which_nine_tenths_are_used_is_a_warning(
    anonymous: int, identified: int, texts: list[str]
) -> None:
    """Of the whole, or of the half of anonymous clients."""
    bound = Bound("things", 100, KNOWN, setting="a.b")
    bound.anonymous.used, bound.identified.used = anonymous, identified
    assert bound_warnings("MQTT", [bound.statistics()]) == texts


def test_each_kind_of_client_is_woken_when_half_of_its_room_is_free() -> None:
    """Anonymous clients that keep their half filled do not keep the others waiting."""
    backlog = Backlog("bytes", 100, KNOWN)
    woken: list[str] = []
    backlog.anonymous.used, backlog.identified.used = 50, 50
    backlog.wait(backlog.anonymous, lambda: woken.append("anonymous"))
    backlog.wait(backlog.identified, lambda: woken.append("identified"))
    backlog.check()
    assert not woken
    backlog.identified.used = 25
    backlog.check()
    assert woken == ["identified"]
    backlog.anonymous.used = 25
    backlog.check()
    assert woken == ["identified", "anonymous"]


def test_a_retained_message_counts_as_that_of_its_last_publisher() -> None:
    """A topic that an anonymous client began is an identity's once that has published there."""
    retained = RetainedMessages(MqttSettings(), KNOWN, hub_id="hub")
    used = []
    for publisher in ("a1", "id1", "a2"):
        retained.put(LocalMessage("te/x", b"1", publisher=publisher, retain=True))
        used.append((retained.count.anonymous.used, retained.count.identified.used))
    assert used == [(1, 0), (0, 1), (1, 0)]
    retained.put(LocalMessage("te/x", b"", publisher="id1", retain=True))
    assert (retained.count.used, retained.bytes.used) == (0, 0)


async def test_a_will_that_became_void_does_not_hurry_the_next_one() -> None:
    """A client that returns and leaves again has the whole delay of its new will."""
    clock = ManualClock()
    submitted: list[LocalMessage] = []
    wills = PendingWills(clock, submitted.append, KNOWN)
    will = LocalMessage("te/x", b"gone", publisher="id1")
    wills.add("id1", will, 10)
    await clock.advance(6)
    wills.session_resumed("id1")
    wills.add("id1", will, 10)
    await clock.advance(9)
    assert submitted == []
    await clock.advance(2)
    assert submitted == [will]


def test_delayed_wills_of_anonymous_clients_leave_room_for_those_of_identities() -> None:
    """Half of the bytes that wait may be of anonymous clients; what is more is submitted."""
    submitted: list[LocalMessage] = []
    wills = PendingWills(ManualClock(), submitted.append, KNOWN)
    size = PENDING_BYTES_MAX // 3
    for client_id in ("a1", "a2", "id1"):
        wills.add(client_id, LocalMessage("te/x", bytes(size), publisher=client_id), 10)
    assert [will.publisher for will in submitted] == ["a2"]

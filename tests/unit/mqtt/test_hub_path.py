"""The mark of hubs that a message has passed: who writes it, what it stops, and its bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgehub.message import Message
from edgehub.mqtt.hub_path import HUBS_MAX, HubPath, LoopError
from edgehub.mqtt.property_bag import PATH_PROPERTY, is_reserved, outgoing, without_marks

OWN, OTHER, THIRD = "ownownownown", "otherotherot", "thirdthirdth"
PATH = HubPath(OWN)


def a_message(path: str | None = None, message_id: str | None = None) -> Message:
    """Build a message of device d1 as it is stored."""
    properties = {"kind": "alarm"} | ({} if path is None else {PATH_PROPERTY: path})
    system = {} if message_id is None else {"messageId": message_id}
    return Message("d1", None, "/messages/", properties, system, b"")


@pytest.mark.parametrize("message_id", [None, "17", f"{OWN}x", f"{OWN}-", f"{OWN}-1g"])
def test_a_message_of_an_own_device_leaves_as_it_is(message_id):
    """It needs no mark: its id begins with the hub's, or its device has chosen one."""
    message = a_message(message_id=message_id)
    assert PATH.leaving(message) is message


@pytest.mark.parametrize("first", [OTHER, OWN])
def test_what_came_by_its_id_leaves_with_a_mark(first):
    """The id names the hub where it began, the mark this one; the stored message stays."""
    message = a_message(message_id=f"{first}-1f")
    assert PATH.leaving(message).properties == {"kind": "alarm", PATH_PROPERTY: OWN}
    assert message.properties == {"kind": "alarm"}


def test_a_mark_leaves_towards_hubs_only():
    """Nobody else sees it, and none is believed of who is no hub."""
    message = a_message(f"{OTHER}.{OWN}")
    assert PATH.leaving(message).properties[PATH_PROPERTY] == f"{OTHER}.{OWN}"
    assert outgoing(message).properties == {"kind": "alarm"}
    assert without_marks(message.properties) == {"kind": "alarm"}
    assert is_reserved("EdgeHub-Path")


@pytest.mark.parametrize(
    ("path", "message_id", "marked"),
    [
        (None, None, None),
        (None, f"{OTHER}-1", None),
        (None, f"{OWN}-1", None),  # echoed by who is no hub, or sent by this hub to itself
        (None, "17", OWN),
        (OTHER, "17", f"{OTHER}.{OWN}"),
        (OTHER, f"{THIRD}-1", f"{OTHER}.{OWN}"),
        ("no mark", "17", OWN),
        ("", "17", OWN),
    ],
)
def test_what_comes_in_from_another_hub(path, message_id, marked):
    """This hub stands behind those that it has passed, unless its id tells enough."""
    message = a_message(path, message_id)
    entered = PATH.entered(message.properties, message.system)
    assert entered.get(PATH_PROPERTY) == marked
    assert (entered is message.properties) == (marked is None)


@pytest.mark.parametrize(
    ("path", "message_id"),
    [
        (OWN, "17"),
        (f"{OTHER}.{OWN}.{THIRD}", None),
        (OTHER, f"{OWN}-1f"),
        (".".join([OTHER] * HUBS_MAX), "17"),
        ("x" * 1000, "17"),
    ],
)
def test_what_has_been_here(path, message_id):
    """By the mark, or by the id of a message that began here; a full mark counts as a circle."""
    message = a_message(path, message_id)
    with pytest.raises(LoopError):
        PATH.entered(message.properties, message.system)


@pytest.mark.parametrize(
    ("path", "message_id", "whole"),
    [
        (None, None, OWN),
        (None, "17", OWN),
        (None, f"{OTHER}-1f", f"{OTHER}.{OWN}"),
        (f"{OTHER}.{OWN}", "17", f"{OTHER}.{OWN}"),
    ],
)
def test_the_whole_way(path, message_id, whole):
    """For peers that see no id of a message: where it began, and all after it."""
    assert PATH.of(a_message(path, message_id)) == whole


@given(st.lists(st.text("abcdefghijklmnopqrstuvwxyz234567", min_size=12, max_size=12), unique=True))
def test_a_message_ends_after_a_bounded_number_of_hubs(ids):
    """However many hubs stand in a row, and nowhere is a mark longer than it may be."""
    properties, passed = {PATH_PROPERTY: OTHER}, 1
    for own in [each for each in ids if each != OTHER] + [
        f"hubnumber{a}{b}c" for a in "abc" for b in "defghijk"
    ]:
        try:
            properties = HubPath(own).entered(properties, {"messageId": "17"})
        except LoopError:
            break
        passed += 1
        assert len(properties[PATH_PROPERTY]) < HUBS_MAX * 13
    assert passed == HUBS_MAX

"""The property bag: what is written comes back, and junk is refused by name."""

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgehub.message import Message
from edgehub.mqtt.batch import BATCH_TYPE
from edgehub.mqtt.property_bag import (
    SYSTEM_NAMES,
    BagError,
    build_bag,
    is_reserved,
    outgoing,
    parse_bag,
    without_marks,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
NAMES = TEXT.filter(lambda name: name and name not in SYSTEM_NAMES and not name.startswith("$.c"))
SYSTEM = st.dictionaries(
    st.sampled_from(sorted(set(SYSTEM_NAMES.values()))), st.none() | TEXT.filter(bool)
)


def a_message(
    properties=None, system=None, *, module_id: str | None = None, message_id: str = ""
) -> Message:
    """Build a message of device d1."""
    return Message(
        "d1", module_id, "/messages/", properties or {}, system or {}, b"", message_id=message_id
    )


@given(st.dictionaries(NAMES, st.none() | TEXT.filter(bool)), SYSTEM)
def test_round_trip(app, system):
    """Every property that the dialect can carry comes back as it was."""
    assert parse_bag(build_bag(a_message(app, system))) == (app, system)


@pytest.mark.parametrize(
    ("text", "app", "system"),
    [
        ("", {}, {}),
        ("?", {}, {}),
        ("kind=alarm", {"kind": "alarm"}, {}),
        ("?kind=alarm&n=1", {"kind": "alarm", "n": "1"}, {}),
        ("flag", {"flag": None}, {}),
        ("flag=", {"flag": None}, {}),
        ("a%20b=c%3Dd%26e", {"a b": "c=d&e"}, {}),
        ("a+b=1+1", {"a+b": "1+1"}, {}),
        ("k=1&k=2", {"k": "2"}, {}),
        ("%24.ct=application%2Fjson", {}, {"contentType": "application/json"}),
        ("$.mid=m1&$.on=out", {}, {"messageId": "m1", "outputName": "out"}),
        ("%24.cid=7", {}, {"cid": "7"}),
        ("%24.MID=m1", {"$.MID": "m1"}, {}),
        ("%24.cdid=other&%24.cmid=mod&k=v", {"k": "v"}, {}),
        ("iothub-connection-device-id=other&iothub-Connection-Module-Id=m", {}, {}),
        ("k=100%", {"k": "100%"}, {}),
    ],
)
def test_examples(text, app, system):
    """Known bags are read as the original hub reads them."""
    assert parse_bag(text) == (app, system)


@pytest.mark.parametrize("text", ["a=1&", "&a=1", "=1", "a=1&&b=2", "a=1=2", "k=%ff", "%c3=1", "&"])
def test_malformed(text):
    """Empty items and keys, a second = and bytes that are not UTF-8 are refused."""
    with pytest.raises(BagError):
        parse_bag(text)


def test_the_error_shows_where():
    """The text of the error names the item, escaped, and how to write it."""
    with pytest.raises(BagError, match=r"second = in 'k=\\xe9=1'; write %3D"):
        parse_bag("a=1&k=é=1")


def test_message_id_of_the_hub():
    """Without an id of the sender's the hub's own goes out; with one it does not."""
    assert "%24.mid=h7" in build_bag(a_message(message_id="h7"))
    bag = build_bag(a_message(system={"messageId": "mine"}, message_id="h7"))
    assert "%24.mid=mine" in bag
    assert "h7" not in bag


def test_sender_is_named():
    """Device and module of the sender stand in the bag under their wire names."""
    assert build_bag(a_message()) == "%24.cdid=d1"
    assert build_bag(a_message(module_id="m")) == "%24.cdid=d1&%24.cmid=m"
    assert build_bag(a_message({"k": "v"}, module_id="m"), sender=False) == "k=v"


def test_topic_characters_are_escaped():
    """Nothing in a bag can be taken for a topic level, a wildcard or a separator."""
    bag = build_bag(a_message({"a/b+#": "c&d=e/\0"}))
    assert bag.startswith("a%2Fb%2B%23=c%26d%3De%2F%00&")


def test_unknown_system_names_stay_inside():
    """System properties without a wire name are not sent."""
    assert build_bag(a_message(system={"modelId": "dtmi"})) == "%24.cdid=d1"


def test_a_stored_row_never_leaves_as_control():
    """Whatever an older version stored, no bag names another sender or calls a row a batch."""
    message = a_message(
        {"$.cdid": "other", "$.CMID": "m", "$.Ct": BATCH_TYPE, "$.on": "o", "k": "v"},
        {"contentType": BATCH_TYPE, "contentEncoding": "zstd", "modelId": "x"},
    )
    leaving = outgoing(message)
    assert build_bag(leaving) == "k=v&%24.ce=zstd&%24.cdid=d1"
    assert leaving.properties == {"k": "v"}
    assert leaving.system == {"contentEncoding": "zstd", "modelId": "x"}
    assert message.properties["$.cdid"] == "other"
    assert message.system["contentType"] == BATCH_TYPE
    plain = a_message({"k": "v"}, {"contentType": "a/b"})
    assert outgoing(plain) is plain


@pytest.mark.parametrize(
    ("name", "reserved"),
    [
        ("$.cdid", True),
        ("$.CMID", True),
        ("$.ct", True),
        ("$.mid", True),
        ("iothub-messagetype", True),
        ("iothub-connection-device-id", True),
        ("mqtt-retain", True),
        ("edgehub-duplicate", True),
        ("$.other", False),
        ("ack", False),
        ("kind", False),
    ],
)
def test_names_that_hubs_write(name, reserved):
    """Names of senders, of system properties and of marks are no application properties."""
    assert is_reserved(name) is reserved


def test_marks_are_taken_out_of_a_copy():
    """Marks go in any spelling; without any the same object comes back."""
    plain = {"k": "v", "$.other": "x"}
    assert without_marks(plain) is plain
    marked = {"k": "v", "IoTHub-MessageType": "Will", "mqtt-retain": "true"}
    assert without_marks(marked) == {"k": "v"}
    assert len(marked) == 3


@given(TEXT.filter(lambda name: name and not is_reserved(name)), TEXT)
def test_names_and_values_are_percent_encoded(name, value):
    """All but letters, digits and `_.-~`, whatever the text holds."""
    bag = build_bag(a_message({name: value}), sender=False)
    assert bag == f"{quote(name, safe='')}={quote(value, safe='')}"

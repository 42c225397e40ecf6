"""Topics and topic ids."""

import pytest

from edgehub.entities.faults import MappingError
from edgehub.entities.topics import (
    PARSED_MAX,
    Channel,
    DefaultName,
    TopicScheme,
    default_name,
    read_topic_id,
)


@pytest.mark.parametrize(
    ("topic", "topic_id", "channel", "name", "command_id"),
    [
        ("te/device/main//", "device/main//", Channel.REGISTRATION, "", ""),
        ("te/a/b/c/d", "a/b/c/d", Channel.REGISTRATION, "", ""),
        ("te/device/main/m/x", "device/main/m/x", Channel.REGISTRATION, "", ""),
        ("te/device/main///m/", "device/main//", Channel.MEASUREMENT, "", ""),
        ("te/device/main///m/env", "device/main//", Channel.MEASUREMENT, "env", ""),
        ("te/device/main///m/env/meta", "device/main//", Channel.MEASUREMENT_META, "env", ""),
        ("te/device/main///e/door", "device/main//", Channel.EVENT, "door", ""),
        ("te/device/main///e/door/meta", "device/main//", Channel.EVENT_META, "door", ""),
        ("te/device/main///a/hot", "device/main//", Channel.ALARM, "hot", ""),
        ("te/device/main///a/hot/meta", "device/main//", Channel.ALARM_META, "hot", ""),
        ("te/device/main///twin/room", "device/main//", Channel.TWIN, "room", ""),
        ("te/device/main///config", "device/main//", Channel.CONFIG, "", ""),
        ("te/device/main///cmd/restart", "device/main//", Channel.CAPABILITY, "restart", ""),
        ("te/device/main///cmd/restart/7", "device/main//", Channel.COMMAND, "restart", "7"),
        ("te/x/y/service/z/status/health", "x/y/service/z", Channel.HEALTH, "health", ""),
        ("te/x/y/service/z/status/disk", "x/y/service/z", Channel.STATUS, "disk", ""),
        ("te/device/main///signal/sync", "device/main//", Channel.SIGNAL, "sync", ""),
    ],
)
def test_topic_names_an_entity_and_a_channel(topic, topic_id, channel, name, command_id):
    """Four segments are the entity, what follows is the channel."""
    parsed = TopicScheme("te").parse(topic)
    assert parsed is not None
    assert (parsed.topic_id, parsed.channel) == (topic_id, channel)
    assert (parsed.name, parsed.command_id) == (name, command_id)


@pytest.mark.parametrize(
    "topic",
    [
        "other/device/main//",
        "te",
        "te/device/boiler3",
        "te/device/main///m",
        "te/device/main///m/a/b",
        "te/device/main///a/x/y",
        "te/device/main///foo/bar",
        "te/device/main///cmd/restart/1/2",
        "te/device/main///status/health/x",
        "te/device/main///config/x",
        "tedge/device/main//",
    ],
)
def test_other_topics_are_none_of_the_scheme(topic):
    """Other roots, too few segments, deeper paths and unknown words."""
    assert TopicScheme("te").parse(topic) is None


def test_root_can_be_another():
    """Topics are read and written below the root of the settings."""
    scheme = TopicScheme("plant7")
    assert scheme.topic("device/main//", "twin", "room") == "plant7/device/main///twin/room"
    parsed = scheme.parse("plant7/device/main///twin/room")
    assert parsed is not None
    assert parsed.name == "room"
    assert scheme.parse("te/device/main///twin/room") is None


def test_memory_of_parsed_topics_is_bounded():
    """A client that invents topics does not make the hub grow."""
    scheme = TopicScheme("te")
    for number in range(3 * PARSED_MAX):
        assert scheme.parse(f"te/device/d{number}///m/") is not None
    assert len(scheme._parsed) <= PARSED_MAX  # noqa: SLF001 - the bound shows nowhere else


@pytest.mark.parametrize(
    ("text", "topic_id"),
    [
        ("device/line1", "device/line1//"),
        ("device/line1/", "device/line1//"),
        ("device/line1//", "device/line1//"),
        ("a/b/c/d", "a/b/c/d"),
        ("plant", "plant///"),
        ("", "///"),
    ],
)
def test_short_topic_id_is_completed(text, topic_id):
    """Empty segments are added up to four."""
    assert read_topic_id(text) == topic_id


@pytest.mark.parametrize("text", ["device/line1/x/y/z", "device/+//", "device/a#//"])
def test_wrong_topic_id_is_refused(text):
    """More than four segments, or a wildcard."""
    with pytest.raises(MappingError, match="no topic id"):
        read_topic_id(text)


@pytest.mark.parametrize(
    ("topic_id", "name"),
    [
        ("device/main//", DefaultName("main")),
        ("device/b3/service/pump", DefaultName("b3", "pump")),
        ("device///", None),
        ("device//service/pump", None),
        ("device/b3/service/", None),
        ("device/b3/app/pump", None),
        ("device/b3//x", None),
        ("machine/b3//", None),
        ("factory/hall1/press/a", None),
    ],
)
def test_default_scheme_is_recognised(topic_id, name):
    """Devices and services of the default scheme, and nothing else."""
    assert default_name(topic_id) == name

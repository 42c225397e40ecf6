"""Settings of entities and mapper: what they may be, and what becomes of them."""

import pytest
from pydantic import ValidationError

from edgehub.entities.configured import local_topics, mapper_options
from edgehub.settings import EntitySettings, MapperSettings, Settings
from edgehub.settings.change import is_live
from edgehub.settings.derived import mapper_runs


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("topic_root", "te/x", "one level"),
        ("topic_prefix", "c8y#", "one level"),
        ("topic_root", "", "is empty"),
        ("device_topic_id", "device/main", "four segments"),
        ("device_topic_id", "a/+//", "four segments"),
        ("topics", ["te/#/x"], "`#`"),
        ("external_id", "a/b", "becomes part of a topic"),
        ("external_id", "a\x07", "becomes part of a topic"),
        ("file_transfer_url", "ftp://x", "not http://"),
        ("proxy_url", "http://", "not http://"),
        ("packet_bytes_max", 10, "256"),
        ("disabled_operations", ["dance"], "restart"),
        ("custom_operations", {"restart": "x"}, "the hub knows"),
        ("custom_operations", {"x": "c8y_Restart"}, "the hub knows"),
        ("custom_operations", {"a/b": "x"}, "pattern"),
        ("custom_operations", {"a": "x-y"}, "pattern"),
        ("topic_root", "c8y", "are the same"),
        ("topic_root", "devices", "IoT Hub dialect"),
        ("custom_operations", {"a": "x", "b": "x"}, "same fragment"),
        ("enable", True, "Extra inputs"),
    ],
)
def test_what_a_mapper_cannot_be_is_refused(key, value, reason):
    """Each is told in words that say what was meant."""
    with pytest.raises(ValidationError, match=reason):
        MapperSettings(**{key: value})


def test_every_setting_reaches_the_mapper():
    """The device is called as the settings say, or as the hub."""
    mapper = MapperSettings(
        enabled=True, external_id="gw", topic_root="dev", topic_prefix="cum", topics=("dev/#",)
    )
    settings = Settings(hub_id="hub", entities=EntitySettings(pending_ttl_s=9), mapper=mapper)
    options = mapper_options(settings, hub_id="hub")
    assert options.device_id == "gw"
    assert (options.mapper, options.entities) == (settings.mapper, settings.entities)
    assert local_topics(settings) == ("dev/#", "cum/#", "c8y-internal/alarms/#")


def test_the_mapper_runs_where_there_is_a_platform_or_when_enabled():
    """Without either, topics are local ones like any other."""
    assert not mapper_runs(Settings())
    assert local_topics(Settings()) == ()
    assert mapper_options(Settings(), hub_id="hub").device_id == "hub"
    platform = {"type": "cumulocity", "host": "x", "username": "t/u", "password_file": "p"}
    assert mapper_runs(Settings(upstream=platform))
    assert mapper_runs(Settings(endpoints={"cloud": platform}))
    assert not mapper_options(Settings(upstream=platform), hub_id="hub").asks_for_operations
    assert mapper_options(Settings(), hub_id="hub").asks_for_operations
    assert not mapper_runs(Settings(upstream=platform, mapper=MapperSettings(enabled=False)))


def test_changes_wait_for_a_restart():
    """The mapper's options never change while it runs."""
    names = [f"entities.{name}" for name in EntitySettings.model_fields]
    names += [f"mapper.{name}" for name in MapperSettings.model_fields]
    assert not any(map(is_live, names))

"""Settings of the local topic space: which filters may be added."""

import pytest
from pydantic import ValidationError

from edgehub.settings import MqttSettings


def test_filters_of_ones_own():
    """Any valid filter beside the dialect and the hub's own topics."""
    settings = MqttSettings(local_topics=["site/#", "a/+/x", "a b/+"])
    assert settings.local_topics == ("site/#", "a/+/x", "a b/+")
    assert MqttSettings().local_topics == ()


@pytest.mark.parametrize(
    ("topic_filter", "reason"),
    [
        ("", "empty"),
        ("site/#/x", "whole last level"),
        ("site+", "whole level"),
        ("$edge/#", "belong to the hub"),
        ("$SYS/x", "belong to the hub"),
        ("#", "IoT Hub dialect"),
        ("+/x", "IoT Hub dialect"),
        ("devices/d/x", "IoT Hub dialect"),
        ("devices", "IoT Hub dialect"),
    ],
)
def test_filters_that_belong_to_others(topic_filter: str, reason: str):
    """What is no filter, or would take topics of the dialect or of the hub, is refused."""
    with pytest.raises(ValidationError, match=reason):
        MqttSettings(local_topics=["ok/#", topic_filter])

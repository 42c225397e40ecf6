"""GPS time, by moments that are published in both scales."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from edgehub.lora.gps_time import gps_ms


@pytest.mark.parametrize(
    ("utc", "gps_s"),
    [
        (datetime(2017, 1, 1, tzinfo=UTC), 1_167_264_018),
        (datetime(2019, 4, 7, tzinfo=UTC), 1_238_630_418),
    ],
)
def test_a_moment_has_its_published_second(utc: datetime, gps_s: int) -> None:
    """The last leap second, and the roll-over of the week number."""
    assert gps_ms(int(utc.timestamp()) * 1000) == gps_s * 1000

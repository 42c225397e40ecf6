"""Times of messages."""

import pytest

from edgehub.entities.faults import MappingError
from edgehub.entities.timestamps import read_rfc3339, write_time

NOW_MS = 1_770_091_506_120


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("2026-02-03T04:05:06Z", "2026-02-03T04:05:06Z"),
        ("2026-02-03t04:05:06z", "2026-02-03T04:05:06Z"),
        ("2026-02-03T04:05:06+00:00", "2026-02-03T04:05:06Z"),
        ("2026-02-03T04:05:06-00:00", "2026-02-03T04:05:06Z"),
        ("2026-02-03T04:05:06.120+02:00", "2026-02-03T04:05:06.12+02:00"),
        ("2026-02-03T04:05:06.000Z", "2026-02-03T04:05:06Z"),
        ("2026-02-03T04:05:06.123456789Z", "2026-02-03T04:05:06.123456789Z"),
        ("2026-02-03T04:05:06.1234567899Z", "2026-02-03T04:05:06.123456789Z"),
        ("2026-02-03T04:05:06-05:30", "2026-02-03T04:05:06-05:30"),
        (1701949168, "2023-12-07T11:39:28Z"),
        (1701949168.001, "2023-12-07T11:39:28.001Z"),
        (1.001, "1970-01-01T00:00:01.001Z"),
        (1701949168.5, "2023-12-07T11:39:28.5Z"),
        (0, "1970-01-01T00:00:00Z"),
        (-1, "1969-12-31T23:59:59Z"),
        (None, "2026-02-03T04:05:06.12Z"),
    ],
)
def test_time_is_written_as_the_cloud_wants_it(value, written):
    """Z for UTC, other offsets kept, no zeros at the end of a fraction; arrival where none is."""
    assert write_time(value, NOW_MS) == written


@pytest.mark.parametrize(
    "value",
    [
        "2026-02-03 04:05:06",
        "2026-02-03T04:05:06",
        "2026-02-03 04:05:06Z",
        "2026-13-03T04:05:06Z",
        "2026-02-30T04:05:06Z",
        "2026-02-03T24:05:06Z",
        "2026-02-03T04:05:06+25:00",
        "2026-02-03T04:05:06+02:60",
        "2026-02-03T04:05:06+0200",
        "2026-02-03",
        "1701949168",
        "yesterday",
        "",
        True,
        [],
        {},
        1e300,
        float("-1e300"),
        -377705116801000,
    ],
)
def test_wrong_time_is_refused(value):
    """Neither RFC 3339 with an offset nor unix seconds in range."""
    with pytest.raises(MappingError, match="neither RFC 3339"):
        write_time(value, NOW_MS)


def test_cloud_writes_offsets_without_colon():
    """Times in operations are made plain."""
    assert read_rfc3339("2023-11-28T16:33:50+0100") == "2023-11-28T16:33:50+01:00"

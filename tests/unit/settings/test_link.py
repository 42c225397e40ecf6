"""Settings that say when and how fast an endpoint may use its link."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from edgehub.settings import FileEndpointSettings


def _endpoint(**values: Any) -> FileEndpointSettings:
    return FileEndpointSettings(type="file", path="out.jsonl", **values)


def test_a_link_is_open_at_any_time_and_as_fast_as_it_can_be() -> None:
    """Without settings there is neither a cap nor a window."""
    assert _endpoint().rate_bytes_s_max is None
    assert _endpoint().open_at == ()
    assert _endpoint(open_at=[]).open_at == ()


def test_windows_are_cron_expressions() -> None:
    """Names of months and weekdays, steps and lists as cron has them."""
    endpoint = _endpoint(open_at=["0 */6 * * *", "30 4 1,15 * MON-FRI"], open_for_s=120)
    assert endpoint.open_at == ("0 */6 * * *", "30 4 1,15 * MON-FRI")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"open_at": ["0 25 * * *"]}, "Bad hour in '0 25 [*] [*] [*]'; write minute, hour"),
        ({"open_at": ["hourly"]}, "Wrong number of fields"),
        ({"open_at": ["0 0 6 * * *"]}, "Wrong number of fields in '0 0 6 [*] [*] [*]'; write"),
        ({"open_at": ["0 0 30 2 *"]}, "Bad day-of-month"),
        ({"open_at": ["0 * * * *"], "open_for_s": 5}, "open_for_s"),
        ({"open_at": ["0 * * * *"], "urgent_priority": 10}, "urgent_priority"),
        ({"open_for_s": 60}, "open_for_s without open_at"),
        ({"urgent_priority": 3}, "urgent_priority without open_at"),
        ({"rate_bytes_s_max": 0}, "rate_bytes_s_max"),
    ],
)
def test_wrong_settings_of_a_link(values: dict[str, Any], words: str) -> None:
    """Each is named, and says how to mend it."""
    with pytest.raises(ValidationError, match=words):
        _endpoint(**values)

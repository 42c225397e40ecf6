"""Arguments that several commands have."""

from __future__ import annotations

import pytest

from edgehub.cli.arguments import duration_s


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("10min", 600), ("10m", 600), ("1h", 3600), ("2d", 172_800)],
)
def test_a_length_of_time(text: str, seconds: int) -> None:
    """A number and a unit; without one it is seconds."""
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "1 year", "-1h", "1.5h", "1h30m"])
def test_anything_else_is_refused_with_the_form(text: str) -> None:
    """The error shows what to write."""
    with pytest.raises(ValueError, match="write 90s, 10min, 1h or 2d"):
        duration_s(text)

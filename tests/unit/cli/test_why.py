"""What `edgehub why` writes of a message that the peer may refuse."""

from __future__ import annotations

import pytest

from edgehub.cli.why import leaves_text, suspicion_texts

KEPT_OUT = (
    "not sent for a minute, or until a connection without it confirms another message or lasts"
)
ONCE_MORE = "; then sent once more, alone"


def _suspected(step: str, **members: object) -> dict[str, object]:
    return {
        "closes": 3,
        "alone": 1,
        "cleared": False,
        "next": step,
        "closes_left": 2,
        "quiet_left_s": None,
        **members,
    }


@pytest.mark.parametrize(
    ("suspected", "expected"),
    [
        (
            _suspected("in_company", closes=1, alone=0),
            "sent again with others; after 2 more such closes alone",
        ),
        (
            _suspected("alone"),
            "sent alone; after 2 more refusals kept out of the connection",
        ),
        (
            _suspected("alone", cleared=True, closes_left=1),
            "sent alone; after 1 more refusal a dead letter, as the peer takes others without it",
        ),
        (
            _suspected("held"),
            "its sender is kept back for a while; after 2 more refusals kept out of the connection",
        ),
        (
            _suspected("kept_out", closes_left=None),
            f"{KEPT_OUT} with nothing else to send{ONCE_MORE}",
        ),
        (
            _suspected("kept_out", closes_left=None, quiet_left_s=12.4),
            f"{KEPT_OUT} for 12 s more with nothing else to send{ONCE_MORE}",
        ),
    ],
)
def test_what_comes_next_is_said(suspected: dict[str, object], expected: str) -> None:
    """How often the peer has closed, and what it takes until the row is alone, out, or dead."""
    counts, text = suspicion_texts(suspected)
    assert text == f"next: {expected}"
    assert counts.startswith("suspected: the peer has refused it, or closed the connection")
    assert f"{suspected['closes']} time" in counts


@pytest.mark.parametrize(
    ("window_s", "expires", "expected"),
    [
        (
            12_600,
            True,
            "in the next connection window of its endpoint, in 3.5 h, but expires before it",
        ),
        (12_600, False, "in the next connection window of its endpoint, in 3.5 h"),
        (None, False, "in the next connection window of its endpoint"),
    ],
)
def test_the_next_window_is_said(window_s: float | None, expires: bool, expected: str) -> None:
    """When it is, and that the copy is gone by then."""
    copy = {
        "leaves": {"state": "offline", "seconds": None},
        "endpoint_state": "closed",
        "next_window_in_s": window_s,
        "expires_before_window": expires,
    }
    assert leaves_text(copy) == expected

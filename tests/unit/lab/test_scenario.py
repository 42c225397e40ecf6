"""The demo's scenario: bodies and the balance of its load."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgehub.lab.demo.scenario import LINK_BIT_S, TIMELINE, TRAFFIC, Kind, Step
from edgehub.lab.demo.simulation import build_body, parse_body


@given(st.sampled_from(Kind), st.text("abc-0123456789", min_size=1, max_size=20))
def test_a_body_has_its_size_and_reads_back(kind: Kind, message_id: str):
    """What is sent is what is counted."""
    body = build_body(kind, message_id, 120)
    assert len(body) == 120
    assert parse_body(body) == (kind, message_id)


def test_the_devices_send_more_than_the_link_carries():
    """Without a backlog there would be nothing to overtake."""
    offered = sum(t.devices / t.period_s * t.body_bytes for t in TRAFFIC)
    assert offered > LINK_BIT_S / 8 * 0.75  # bodies alone; topics and properties come on top


def test_steps_come_in_order_and_once():
    """The link is back before the telemetry pauses, and everything pauses at the end."""
    shares = [share for share, _ in TIMELINE]
    assert shares == sorted(shares)
    assert [step for _, step in TIMELINE] == list(Step)

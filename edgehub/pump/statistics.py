"""A frozen snapshot of one pump, for status, metrics and the demo."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgehub.message import FailureKind, Priority
    from edgehub.pump.latency import LatencySummary
    from edgehub.pump.refused_senders import RefusedSender


class PumpStatistics(Struct, frozen=True, kw_only=True):
    """One pump at one moment.

    Attributes:
        state: The endpoint's state, or `draining`, or `parked` when the peer refuses this hub.
        reason: Why it is not sending, empty while it is.
        in_flight_rows: Rows handed over and not settled.
        in_flight_bytes: Their bytes on the link.
        window_bytes: Bound on unconfirmed bytes, None = not measured yet.
        rate_bytes_s: Delivery rate, None = not measured yet.
        rate_bytes_s_max: Cap of the settings, None = none.
        min_rtt_s: Lowest round trip of the last minute, None = not measured yet.
        unsent_bytes: Bytes handed over that have not left the machine.
        sent_total: Rows delivered.
        sent_bytes_total: Their bytes on the link.
        failures: Results other than delivered, by kind.
        holds: Senders and rows held back after a refusal.
        refused_senders: Senders whose rows the peer refuses from this hub.
        backoff_remaining_s: Seconds until the next try, to connect or to send; None = none is due.
        latency: From enqueue to confirmation, by priority.
    """

    state: str
    reason: str
    in_flight_rows: int
    in_flight_bytes: int
    window_bytes: int | None
    rate_bytes_s: float | None
    rate_bytes_s_max: float | None
    min_rtt_s: float | None
    unsent_bytes: int
    sent_total: int
    sent_bytes_total: int
    failures: Mapping[FailureKind, int]
    holds: int
    refused_senders: tuple[RefusedSender, ...]
    backoff_remaining_s: float | None
    latency: Mapping[Priority, LatencySummary]

"""The bounds of one pump, as the settings have them."""

from __future__ import annotations

from msgspec import Struct


class PumpOptions(Struct, frozen=True, kw_only=True):
    """Bounds of one pump.

    Attributes:
        head_of_line_ms: How long the best priority may wait behind bytes already sent.
        rows_in_flight_max: Unconfirmed rows at most, whatever link and peer allow.
        bytes_in_flight_max: Unconfirmed bytes at most, whatever the link allows.
        batch_rows_max: Rows taken from a queue at once.
        rate_bytes_s_max: Bytes per second, whatever the link allows; None = no cap.
        aging_s: A queue without a batch for so long goes before better priorities; 0 = never.
        piece_share: Of the head-of-line allowance, the share that must be free before more rows are
            sent, where rows sent together share a payload; 0 = any room will do.
        linger_s: Pause of a queue after a batch that emptied it; never for priority 0.
    """

    head_of_line_ms: int = 500
    rows_in_flight_max: int = 4096
    bytes_in_flight_max: int = 8 * 2**20
    batch_rows_max: int = 512
    rate_bytes_s_max: int | None = None
    aging_s: float = 0
    piece_share: float = 0
    linger_s: float = 0

"""What bounds one pump: values that the settings give. Owns nothing else, calls nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PumpOptions:
    """Bounds of one pump.

    Attributes:
        head_of_line_ms: What the best priority may wait behind bytes already chosen.
        rows_in_flight_max: Unconfirmed rows, whatever link and peer allow.
        bytes_in_flight_max: Unconfirmed bytes, whatever the link allows.
        batch_rows_max: Rows taken from a queue at once.
        rate_bytes_s_max: Bytes per second, whatever the link allows; None = no cap.
        aging_s: A queue without a batch for so long gets one before better ones; 0 = never.
        piece_share: Of the head-of-line allowance, what has to have room before more is handed
            over, where rows that are handed over together share a payload; 0 = any room will do.
        linger_s: After a batch that emptied a queue, its next one; never for priority 0.
    """

    head_of_line_ms: int = 500
    rows_in_flight_max: int = 4096
    bytes_in_flight_max: int = 8 * 2**20
    batch_rows_max: int = 512
    rate_bytes_s_max: int | None = None
    aging_s: float = 0
    piece_share: float = 0
    linger_s: float = 0

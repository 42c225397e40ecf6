"""Limits and functions of scripts, which the hub and the process in which they run both know."""

from __future__ import annotations

from typing import Final

COMPUTING_S: Final = 0.1
"""Processor time of a call."""
WAITING_S: Final = 1.0
"""Time of a call on a machine that has other things to do, and of one that waits."""
MEMORY_BYTES: Final = 64 * 2**20
"""Memory of all scripts, beyond what their process takes by itself."""
RESULT_BYTES_MAX: Final = 32 * 1024
DECODE_UPLINK: Final = "decodeUplink"
ENCODE_DOWNLINK: Final = "encodeDownlink"
DECODE_DOWNLINK: Final = "decodeDownlink"

OUT_OF_MEMORY: Final = "out of memory"
"""The error after which the process ends."""

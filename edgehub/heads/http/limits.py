"""Limits and times of the HTTP head that no setting changes, with their units."""

from __future__ import annotations

from typing import Final

BATCH_MESSAGES_MAX: Final = 1000
"""Messages of a batch."""

HEADER_BYTES_MAX: Final = 16_384
"""Request line and headers."""

WAITING_BYTES_MAX: Final = 64 * 2**20
"""Bytes of requests being read or committed, over all connections."""

HEAD_TIMEOUT_S: Final = 10.0
"""From the first byte of a request to the end of its headers, and from the connection to the first
request."""

BODY_RATE_MIN: Final = 1024
"""Bytes per second that a body has to arrive with after `http.body_timeout_s`."""

IDLE_TIMEOUT_S: Final = 75.0
"""Between two requests of a connection."""

COMMIT_TIMEOUT_S: Final = 30.0
"""From the last byte of a request to its commit; beyond it the response is 503."""

CALL_TIMEOUT_S: Final = 660.0
"""For the answer to a call of a method, whose own time-outs come to 600 s at most."""

LINGER_S: Final = 2.0
"""A refused client may go on sending for so long before the connection is aborted."""

BACKLOG: Final = 256
"""TCP connections that may wait to be accepted."""

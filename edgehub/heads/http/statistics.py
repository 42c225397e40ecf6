"""Counters and statistics of the HTTP head."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from edgehub.telemetry.losses import LOOP_HINT, LOOP_LOSS, ON_BEHALF_HINT, ON_BEHALF_LOSS, Loss

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from edgehub.devices.bounds import BoundStatistics


class HttpCounters:
    """Totals since the start; one writer, the loop's thread."""

    def __init__(self) -> None:
        self.accepted_total = 0
        self.messages_total = 0
        self.timed_out_total = 0
        self.answers: dict[int, int] = {}
        self.foreign_total = 0
        self.newest_foreign = ""
        """Why the last request for a device outside of on_behalf was refused."""
        self.loops_total = 0
        self.newest_loop = ""
        """Client and device of the last request whose messages had passed this hub before."""

    def count_loop(self, client_id: str, sender: str) -> None:
        """Count a request whose messages had passed this hub before."""
        self.loops_total += 1
        self.newest_loop = f"client {client_id}: sent back a message of {sender!a}"

    def losses(self) -> list[Loss]:
        """Return what was refused for good since the start; see `edgehub.telemetry.losses`."""
        return [
            Loss(
                key=("http", "foreign_identity"),
                total=self.foreign_total,
                what=ON_BEHALF_LOSS,
                example=self.newest_foreign,
                hint=ON_BEHALF_HINT,
            ),
            Loss(
                key=("http", "loop"),
                total=self.loops_total,
                what=LOOP_LOSS,
                example=self.newest_loop,
                hint=LOOP_HINT,
                event="http.loop_found",
                fields={"newest": self.newest_loop},
            ),
        ]


class HttpStatistics(Struct, frozen=True, kw_only=True):
    """A snapshot of the head.

    Attributes:
        connections: Open connections.
        accepted_total: Connections accepted.
        handshakes_refused_total: Connections closed because too many TLS handshakes were under way.
        loops_total: Requests of other hubs with a response of 204 that were dropped, since their
            messages had passed this hub before.
        messages_total: Messages that were stored, with a response of 204.
        timed_out_total: Connections ended because a client was too slow.
        answers: Responses by status code.
        waiting_bytes: Bytes of requests that are being read or committed.
        bounds: Usage of the bounds that clients share.
    """

    connections: int
    accepted_total: int
    handshakes_refused_total: int
    loops_total: int
    messages_total: int
    timed_out_total: int
    answers: Mapping[str, int]
    waiting_bytes: int
    bounds: Sequence[BoundStatistics]

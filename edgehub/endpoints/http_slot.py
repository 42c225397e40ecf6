"""One of the connections of an HTTP endpoint: a request at a time, a time-out for a silent peer.

Owns its link, the rows of its request and what it has not written yet. Invariant: a request ends
with its answer, or with a link error at the latest when the peer has been silent for the time-out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edgehub.clock import Clock, Timer
from edgehub.endpoints.http_link import HttpLinkError, open_link
from edgehub.message import FailureKind, SendResult

if TYPE_CHECKING:
    from edgehub.endpoints.http_link import Answer, HttpLink, HttpLinkOptions
    from edgehub.endpoints.http_outbox import OutboxRow

_CHECKS_PER_TIMEOUT: Final = 4


class HttpSlot:
    """One reconnecting connection with its request.

    Args:
        options: Whom to connect to.
        clock: Timers.
        timeout_s: After so long without an answer or progress the connection is closed.

    Attributes:
        rows: Of the present request.
    """

    def __init__(self, options: HttpLinkOptions, *, clock: Clock, timeout_s: float) -> None:
        self._options = options
        self._clock = clock
        self._timeout_s = timeout_s
        self.rows: list[OutboxRow] = []
        self._link: HttpLink | None = None
        self._unwritten_bytes = 0
        self._watch = Timer(clock, self._check_progress)
        self._progress_at = 0.0
        self._progress_seen = (0, 0)

    async def open(self) -> None:
        """Connect.

        Raises:
            HttpLinkError: If there is no connection.
        """
        self._link = await open_link(self._options)

    def unsent_bytes(self) -> int:
        """Return the bytes of the present request that have not left this machine."""
        unsent = 0 if self._link is None else self._link.unsent_bytes()
        return self._unwritten_bytes + unsent

    async def request(self, body: bytes, headers: str = "") -> Answer:
        """Send a request and wait for its answer; connects when there is no connection.

        Args:
            body: Of the request.
            headers: Further ones of it, each with its line end.

        Raises:
            HttpLinkError: If there is no answer.
        """
        # A peer may close an idle connection whenever it likes, also as it is used again: then the
        # request goes once more, over a new one.
        self._start_watch()
        self._unwritten_bytes = len(body)
        try:
            if self._link is not None and self._link.is_open:
                try:
                    return await self._write(self._link, body, headers)
                except HttpLinkError as error:
                    if not error.stale:
                        raise
                    self._unwritten_bytes = len(body)
            await self.open()
            assert self._link is not None
            return await self._write(self._link, body, headers)
        finally:
            self._unwritten_bytes = 0
            self._watch.cancel()

    def abort(self, reason: str) -> None:
        """Close the connection at once."""
        link, self._link = self._link, None
        if link is not None:
            link.abort(reason)

    async def _write(self, link: HttpLink, body: bytes, headers: str) -> Answer:
        self._unwritten_bytes = 0
        return await link.request(body, headers)

    # A peer that is silent; a slow one takes bytes, even if a large request lasts minutes.

    def _start_watch(self) -> None:
        self._progress_at = self._clock.monotonic()
        self._progress_seen = (0, 0)
        self._watch_later()

    def _watch_later(self) -> None:
        self._watch.restart(self._timeout_s / _CHECKS_PER_TIMEOUT)

    def _check_progress(self) -> None:
        link = self._link
        now = self._clock.monotonic()
        if link is None or not link.is_open:
            # Connecting has a time limit of its own.
            self._progress_at = now
            self._watch_later()
            return
        progress = (link.unsent_bytes(), link.received_bytes)
        if progress != self._progress_seen:
            self._progress_seen = progress
            self._progress_at = now
        silent_s = now - self._progress_at
        if silent_s < self._timeout_s:
            self._watch_later()
            return
        reason = f"no answer for {silent_s:.0f} s"
        if self.rows:
            # The peer is silent as a whole; only the row it owes first counts as tried.
            first = self.rows.pop(0)
            first.settle(first.row, SendResult(FailureKind.TIMEOUT, reason))
        link.abort(reason)

"""The state of one link for the status, and when the next connection attempt follows.

Owns the state, the back-off and the wait between two attempts, for all endpoints that keep a link.
Invariants: while the link is up no attempt is requested; a repeated reason is logged once, not for
each attempt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from edgehub.endpoints.backoff import Backoff, RetryWait

if TYPE_CHECKING:
    import random

    from edgehub.clock import Clock
    from edgehub.endpoints.endpoint import EndpointListener
    from edgehub.message import EndpointId

PARKED_RETRY_S: Final = 60.0

# A peer that accepts and closes at once must not be tried once a second for ever; one that restarts
# after some seconds must not be waited for as if it had been unreachable all the time.
STABLE_S: Final = 5.0

log = structlog.get_logger(__name__)


class LinkState:
    """The state of the link of one endpoint.

    Args:
        endpoint_id: For log lines.
        clock: Timers.
        rng: Randomness for jitter.

    Attributes:
        state: See `Endpoint`; `connecting` until the link was up for the first time.
    """

    def __init__(self, endpoint_id: EndpointId, *, clock: Clock, rng: random.Random) -> None:
        self._endpoint_id = endpoint_id
        self._clock = clock
        self._backoff = Backoff(rng)
        self._retry = RetryWait(clock)
        self._reason = ""
        self._up_at: float | None = None
        self._was_up = False
        self.state = "connecting"

    @property
    def retry_in_s(self) -> float | None:
        """Return the seconds until the next connection attempt, None = none is due."""
        return self._retry.remaining_s

    def trying(self) -> None:
        """Record that an attempt begins."""
        self.state = "connecting"

    def up(self) -> None:
        """Record that the link is up; the caller notifies its listener."""
        self.state = "up"
        self._was_up = True
        self._up_at = self._clock.monotonic()
        self._reason = ""
        self._retry.forget()
        log.info("endpoint.link_up", endpoint_id=self._endpoint_id)

    def worked(self) -> None:
        """Record that the peer has confirmed something: the next failure is the first one."""
        self._backoff.reset()

    def down(self, reason: str, listener: EndpointListener, *, parked: bool = False) -> float:
        """Record that the link is down, or could not be opened, and notify the listener.

        Args:
            reason: For status and logs.
            listener: Is notified.
            parked: An operator must change something before it can work.

        Returns:
            Seconds to wait before the next attempt.
        """
        up_at, self._up_at = self._up_at, None
        if up_at is not None and self._clock.monotonic() - up_at >= STABLE_S:
            self._backoff.reset()
        wait_s = PARKED_RETRY_S if parked else self._backoff.next_s()
        if parked:
            self.state = "parked"
        else:
            self.state = "down" if self._was_up else "connecting"
        if reason != self._reason:
            self._reason = reason
            log.warning(
                "endpoint.link_down",
                endpoint_id=self._endpoint_id,
                reason=reason,
                retry_s=round(wait_s, 1),
            )
        listener.link_down(reason, parked=parked)
        return wait_s

    def closed(self) -> None:
        """Record that the hub itself has closed the link."""
        self.state = "down"

    async def wait(self, seconds: float) -> None:
        """Wait for the next attempt; a parked link waits for its time or `retry_now`."""
        await self._retry.wait(seconds, patient=self.state == "parked")

    def retry_now(self) -> None:
        """Stop a running connect back-off (reload, operator); harmless while up."""
        if self.state != "up":
            self._retry.end()

    def retry_within(self, seconds: float) -> None:
        """Shorten a running connect back-off to `seconds`; harmless while up or parked."""
        if self.state != "up":
            self._retry.cut(seconds)


class LinkedEndpoint:
    """What endpoints that keep a link of their own have in common; see `Endpoint`."""

    _link: LinkState
    row_bytes_max: int | None = None

    @property
    def state(self) -> str:
        """Return the state of the link; see `LinkState`."""
        return self._link.state

    @property
    def retry_in_s(self) -> float | None:
        """Return the seconds until the next attempt, None = none is due."""
        return self._link.retry_in_s

    def retry_now(self) -> None:
        """Stop a running back-off; harmless while the link is up."""
        self._link.retry_now()

    def retry_within(self, seconds: float) -> None:
        """Shorten a running back-off to `seconds`; harmless while the link is up or parked."""
        self._link.retry_within(seconds)

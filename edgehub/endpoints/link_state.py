"""The state of one link: what status shows of it, and when it is tried again.

Owns the state, the back-off and the wait between two tries, for all endpoints that keep a link.
Invariants: while the link is up nothing asks for another try; a state of affairs gets one line in
the log, not one for each try.
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

# A peer that lets us in and closes at once must not be asked once a second for ever; one that was
# restarted after some seconds of work must not be waited for as if it had been away all the time.
STABLE_S: Final = 5.0

log = structlog.get_logger(__name__)


class LinkState:
    """See the module.

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
        self._told = ""
        self._up_at: float | None = None
        self._was_up = False
        self.state = "connecting"

    @property
    def retry_in_s(self) -> float | None:
        """See `Endpoint`."""
        return self._retry.remaining_s

    def trying(self) -> None:
        """Record that a try begins."""
        self.state = "connecting"

    def up(self) -> None:
        """Record that the link is up; the caller tells its listener."""
        self.state = "up"
        self._was_up = True
        self._up_at = self._clock.monotonic()
        self._told = ""
        self._retry.forget()
        log.info("endpoint.link_up", endpoint_id=self._endpoint_id)

    def worked(self) -> None:
        """Record that the peer does what it is there for: the next failure is the first one."""
        self._backoff.reset()

    def down(self, reason: str, listener: EndpointListener, *, parked: bool = False) -> float:
        """Record that the link is gone, or could not be had, and tell the listener.

        Args:
            reason: For status and logs.
            listener: Hears of it.
            parked: A person must change something before it can work.

        Returns:
            Seconds to wait before the next try.
        """
        up_at, self._up_at = self._up_at, None
        if up_at is not None and self._clock.monotonic() - up_at >= STABLE_S:
            self._backoff.reset()
        wait_s = PARKED_RETRY_S if parked else self._backoff.next_s()
        if parked:
            self.state = "parked"
        else:
            self.state = "down" if self._was_up else "connecting"
        if reason != self._told:
            self._told = reason
            log.warning(
                "endpoint.link_down",
                endpoint_id=self._endpoint_id,
                reason=reason,
                retry_s=round(wait_s, 1),
            )
        listener.link_down(reason, parked=parked)
        return wait_s

    def closed(self) -> None:
        """Record that the hub itself has ended the link."""
        self.state = "down"

    async def wait(self, seconds: float) -> None:
        """Wait for the next try; a parked link waits for its time or `retry_now`."""
        await self._retry.wait(seconds, patient=self.state == "parked")

    def retry_now(self) -> None:
        """See `Endpoint`."""
        if self.state != "up":
            self._retry.end()

    def retry_within(self, seconds: float) -> None:
        """See `Endpoint`."""
        if self.state != "up":
            self._retry.cut(seconds)


class LinkedEndpoint:
    """What endpoints that keep a link of their own have in common; see `Endpoint`."""

    _link: LinkState
    row_bytes_max: int | None = None

    @property
    def state(self) -> str:
        """The state of the link, see `LinkState`."""
        return self._link.state

    @property
    def retry_in_s(self) -> float | None:
        """Seconds until the next try to connect, None = none is due."""
        return self._link.retry_in_s

    def retry_now(self) -> None:
        """End a running back-off; harmless while the link is up."""
        self._link.retry_now()

    def retry_within(self, seconds: float) -> None:
        """End a running back-off within `seconds`; harmless while the link is up or parked."""
        self._link.retry_within(seconds)

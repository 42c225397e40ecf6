"""Topic filters over which a peer may close the connection: requested singly, then suspended.

MQTT 3.1.1 lets a broker answer a SUBSCRIBE that it forbids by closing, and some do; asked again at
each connect it would take the link down for ever. Owns what is outstanding, and the filters that
are left out. Pure but for its log lines. Invariants: a filter is left out only after closes by the
peer with nothing else outstanding than the SUBSCRIBE of this one filter and, at the first of them
at most, messages; one that the peer grants has nothing against it.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from collections.abc import Collection

    from edgehub.clock import Clock
    from edgehub.mqtt.client import Client

CLOSES_MAX: Final = 3
"""Closes over a filter until it is left out; 1 once another one is: the peer is known by then."""
LEFT_OUT_S: Final = 900.0
"""Until one of those that are left out is asked for again."""
LEFT_OUT_MAX: Final = 4
"""So many left out make all others wait with them that were not granted yet."""
RETRY_S: Final = 2.0
"""The longest wait for the link after a close over a SUBSCRIBE; there are few of those."""

log = structlog.get_logger(__name__)


class SubscriptionGuard:
    """The filters of one session.

    Args:
        name: Of endpoint or head, for log lines.
        clock: For the next try.
    """

    __slots__ = (
        "_asked",
        "_clock",
        "_closes",
        "_granted",
        "_left_out",
        "_name",
        "_settled",
        "_wake",
        "blamed",
    )

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._asked: tuple[str, ...] = ()
        self._closes: dict[str, int] = {}
        self._left_out: dict[str, float] = {}
        # Asked for while others were in doubt.
        self._granted: set[str] = set()
        self._settled = asyncio.Event()
        self._wake: asyncio.Event | None = None
        self.blamed = False
        """The last connection ended over a SUBSCRIBE, so over nothing else that was in flight."""

    @property
    def suspects_any(self) -> bool:
        """Return whether some filter is suspect or suspended."""
        return bool(self._closes or self._left_out)

    @property
    def is_probing(self) -> bool:
        """Return whether nothing else may be in flight during a SUBSCRIBE."""
        return any(each not in self._left_out for each in self._closes)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Return the filters that are suspended."""
        return tuple(self._left_out)

    @property
    def retry_in_s(self) -> float | None:
        """Return the seconds until a suspended one is requested again, None = none is."""
        if not self._left_out:
            return None
        return max(0.0, min(self._left_out.values()) - self._clock.monotonic())

    async def subscribe(
        self, connection: Client, wanted: Collection[str]
    ) -> tuple[set[str], list[str]]:
        """Subscribe with QoS 1 to what may be asked for.

        Args:
            connection: Of this session.
            wanted: Filters that are not granted yet.

        Returns:
            The filters that the peer has answered for, and those of them that it refused.

        Raises:
            LinkError: It does not answer.
        """
        answered: set[str] = set()
        refused: list[str] = []
        while filters := self.next([each for each in wanted if each not in answered]):
            self.asks(filters)
            refused += await connection.subscribe(filters)
            self.answered()
            answered.update(filters)
        return answered, refused

    async def wait(self, changed: asyncio.Event) -> None:
        """Wait for a change of what is wanted, or until something that is left out is due."""
        self._settled.set()
        self._wake = changed
        retry_s = self.retry_in_s
        timer = None if retry_s is None else self._clock.call_later(retry_s, changed.set)
        try:
            await changed.wait()
        finally:
            self._wake = None
            if timer is not None:
                timer.cancel()

    async def settled(self) -> None:
        """Wait until the peer has answered for all that may be asked for."""
        await self._settled.wait()

    def next(self, wanted: Collection[str]) -> list[str]:
        """Choose which of the filters that are wanted and not granted to ask for now."""
        left_out = self._left_out
        if len(left_out) >= LEFT_OUT_MAX:
            due = min(left_out.values())
            for each in wanted:
                if each not in self._granted:
                    left_out.setdefault(each, due)
        fresh = [each for each in wanted if each not in left_out]
        if fresh:
            return fresh[:1] if self.is_probing else fresh
        now = self._clock.monotonic()
        due_now = [each for each in wanted if left_out[each] <= now]
        # Those first that were never tried.
        return [min(due_now, key=lambda each: self._closes.get(each, 0))] if due_now else []

    def asks(self, filters: Collection[str]) -> None:
        """Record that a SUBSCRIBE is outstanding."""
        self._asked = tuple(filters)

    def answered(self) -> None:
        """Record its SUBACK, whatever it says."""
        self._granted = self._granted.union(self._asked) if self.suspects_any else set()
        for each in self._asked:
            self._closes.pop(each, None)
            if self._left_out.pop(each, None) is not None:
                log.info("mqtt.filter_taken_back", endpoint_id=self._name, filter=each)
                self.retry_now()
        self._asked = ()

    def keep_only(self, wanted: Collection[str]) -> None:
        """Forget what speaks against filters that are not wanted any more."""
        for each in (self._closes.keys() | self._left_out.keys()) - set(wanted):
            self._closes.pop(each, None)
            self._left_out.pop(each, None)

    def begins(self) -> None:
        """Record that a connection is tried."""
        self._settled.clear()
        self.blamed = False

    def ended(self, unsent_at_close: int | None) -> None:
        """Record the end of a connection.

        Args:
            unsent_at_close: Bytes that had not left when the peer closed; None = it did not close.
        """
        asked, self._asked = self._asked, ()
        self.blamed = bool(asked) and unsent_at_close is not None
        if not self.blamed:
            return
        # With more than one filter, or messages in front of it, nothing is sure but the doubt.
        counts = len(asked) == 1 and not unsent_at_close
        self._granted.difference_update(asked)
        for each in asked:
            self._closes[each] = self._closes.get(each, 0) + counts
        if counts and self._closes[asked[0]] >= (1 if self._left_out else CLOSES_MAX):
            self._leave_out(asked[0])

    def retry_now(self) -> None:
        """Request suspended filters with the next SUBSCRIBE."""
        self._left_out = dict.fromkeys(self._left_out, -math.inf)
        if self._wake is not None:
            self._wake.set()

    def _leave_out(self, topic_filter: str) -> None:
        due = self._clock.monotonic() + LEFT_OUT_S
        self._left_out = {each: max(then, due) for each, then in self._left_out.items()}
        self._left_out[topic_filter] = due
        log.warning(
            "mqtt.filter_left_out",
            endpoint_id=self._name,
            filter=topic_filter,
            closes=self._closes[topic_filter],
            retry_s=LEFT_OUT_S,
        )

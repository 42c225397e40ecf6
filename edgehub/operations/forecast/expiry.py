"""Warns before the oldest row of a queue expires: once per queue and episode, at a bounded rate.

Owns what was last seen of each queue's oldest row. Looks every few seconds, one short read for all
queues that have rows; costs the message path nothing. Invariant: an episode begins with its warning
and ends when the oldest row has half of its time left, or the queue is empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog
from msgspec import Struct

from edgehub.errors import StoreCorruptError, StoreError
from edgehub.message import NEVER_MS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from edgehub.clock import Clock
    from edgehub.message import QueueId

LOOK_S: Final = 5.0
NEAR_SHARE: Final = 0.2
"""Share of its time to live that is left to a row when it is near its end."""
FAR_SHARE: Final = 0.5
WARNINGS_PER_LOOK: Final = 10
"""Further queues have their warning at the next look."""

log = structlog.get_logger(__name__)


class OldestRow(Struct, frozen=True, kw_only=True):
    """The oldest row of a queue.

    Attributes:
        enqueued_ms: Hub time at which it was stored.
        expires_ms: Hub time at which its time to live ends, `NEVER_MS` = never.
    """

    enqueued_ms: int
    expires_ms: int

    @property
    def ttl_s(self) -> float | None:
        """Its time to live in seconds, None = never ends."""
        if self.expires_ms >= NEVER_MS:
            return None
        return (self.expires_ms - self.enqueued_ms) / 1000

    def left_s(self, now_ms: int) -> float | None:
        """Seconds until it expires, below 0 = it has and is not removed yet; None = never."""
        return None if self.expires_ms >= NEVER_MS else (self.expires_ms - now_ms) / 1000


class ExpiryWatch:
    """A watch over the oldest row of each queue.

    Args:
        clock: Timers.
        now_ms: Hub time.
        heads: Reads the oldest row of every queue that has rows.
        describe: Returns further fields of the warning about a queue.
    """

    __slots__ = ("_clock", "_describe", "_heads", "_near", "_now_ms", "_read")

    def __init__(
        self,
        clock: Clock,
        *,
        now_ms: Callable[[], int],
        heads: Callable[[], Awaitable[Mapping[QueueId, OldestRow]]],
        describe: Callable[[QueueId], Mapping[str, object]],
    ) -> None:
        self._clock = clock
        self._now_ms = now_ms
        self._read = heads
        self._describe = describe
        self._heads: Mapping[QueueId, OldestRow] = {}
        self._near: set[QueueId] = set()

    async def run(self) -> None:
        """Look again and again until cancelled.

        Raises:
            StoreCorruptError: The database file is damaged.
        """
        while True:
            await self.look()
            await self._clock.sleep(LOOK_S)

    async def look(self) -> None:
        """Look once, and warn of what has come near its end."""
        try:
            self._heads = await self._read()
        except StoreCorruptError:
            raise
        except StoreError as error:
            log.debug("forecast.heads_not_read", error=str(error))
            return
        self._near &= self._heads.keys()
        warned = 0
        for queue_id, head in self._heads.items():
            share = self._share_left(head)
            if share >= FAR_SHARE:
                self._near.discard(queue_id)
            elif share > NEAR_SHARE or queue_id in self._near:
                continue
            elif warned < WARNINGS_PER_LOOK:
                self._warn(queue_id, head)
                warned += 1

    def head(self, queue_id: QueueId) -> OldestRow | None:
        """Return the oldest row of a queue as of the last look, None = none, or not seen yet."""
        return self._heads.get(queue_id)

    def near(self) -> Sequence[QueueId]:
        """Return the queues whose oldest row is near its end."""
        return sorted(self._near)

    def _share_left(self, head: OldestRow) -> float:
        ttl_s, left_s = head.ttl_s, head.left_s(self._now_ms())
        if ttl_s is None or left_s is None:
            return 1.0
        return left_s / ttl_s if ttl_s > 0 else 0.0

    def _warn(self, queue_id: QueueId, head: OldestRow) -> None:
        self._near.add(queue_id)
        now_ms = self._now_ms()
        log.warning(
            "forecast.expiry_near",
            queue_id=queue_id,
            oldest_age_s=round((now_ms - head.enqueued_ms) / 1000, 1),
            expires_in_s=round(max(0.0, head.left_s(now_ms) or 0.0), 1),
            **self._describe(queue_id),
        )

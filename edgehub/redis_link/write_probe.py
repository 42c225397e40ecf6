"""Whether a Redis server takes writes: one that refuses them answers every read as if all was well.

Owns what it said last; calls the link. A replica after a fail-over (READONLY), a disk that fails
(MISCONF), full memory (OOM) or too few replicas (NOREPLICAS) would else show with the first change
that someone makes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from edgehub.redis_link.faults import RedisRefusedError, RedisUnavailableError

if TYPE_CHECKING:
    from edgehub.clock import Clock
    from edgehub.redis_link.link import RedisLink

PROBE_S: Final = 10.0
_KEPT_S: Final = 60
_REFUSALS: Final = frozenset({"READONLY", "MISCONF", "OOM", "NOREPLICAS"})
"""Codes by which the server refuses writes as such; what a user may not do is another matter."""

log = structlog.get_logger(__name__)


class WriteProbe:
    """A look, now and then, at whether a Redis server takes writes.

    Args:
        link: The server.
        key: What is written; it expires.
        clock: For pauses.

    Attributes:
        refusal: Why the server refuses writes, in its words; empty = it takes them.
    """

    def __init__(self, link: RedisLink, key: str, clock: Clock) -> None:
        self._link = link
        self._key = key
        self._clock = clock
        self.refusal = ""

    async def run(self) -> None:
        """Write every `PROBE_S` seconds, until cancelled."""
        while True:
            await self.probe()
            await self._clock.sleep(PROBE_S)

    async def probe(self) -> None:
        """Write once, and record the answer; a missing answer is reported elsewhere."""
        refusal = ""
        try:
            await self._link.call("SET", self._key, "1", "EX", _KEPT_S)
        except RedisUnavailableError:
            return
        except RedisRefusedError as error:
            if error.code not in _REFUSALS:
                return
            refusal = error.reason
        if refusal and not self.refusal:
            log.warning("redis.writes_refused", reason=refusal)
        elif self.refusal and not refusal:
            log.info("redis.writes_accepted")
        self.refusal = refusal

    def warnings(self) -> list[str]:
        """Return the warnings for the operator."""
        return [f"Redis refuses writes: {self.refusal}"] if self.refusal else []

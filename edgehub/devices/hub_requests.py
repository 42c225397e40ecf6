"""Requests from one hub to another that shares its devices, by way of Redis.

Owns this hub's inbox and the requests that wait for an answer. Invariants: a request is handled at
most once; one to a hub that does not read its inbox is refused at once; nothing stays in Redis for
longer than `KEPT_S`.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import orjson
import structlog

from edgehub.devices.deadline import deadline
from edgehub.errors import EdgeHubError
from edgehub.redis_link.faults import RedisError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from edgehub.clock import Clock
    from edgehub.redis_link.link import RedisLink

    HandleRequest = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]

ANSWER_S: Final = 5.0
"""So long an answer is waited for."""

BLOCK_S: Final = 5.0
"""How long one BLPOP waits in Redis; then the hub shows again that it reads its inbox."""

PRESENT_S: Final = 15
"""So long after its last look a hub is taken for one that reads its inbox."""

KEPT_S: Final = 30
"""An inbox that is not read disappears so long after the last request."""

HANDLED_MAX: Final = 100
"""Requests in process at once; those beyond get no answer."""

PAUSE_S: Final = 2.0

log = structlog.get_logger(__name__)


class HubUnreachableError(EdgeHubError):
    """Another hub gave no answer; it may have handled the request."""


class HubRequests:
    """Requests to and from this hub.

    Args:
        link: The way to Redis.
        prefix: Of all keys; hubs with the same one share their devices.
        hub_id: Name of this hub.
        clock: For the time that an answer may take.

    Attributes:
        handle: Answers requests of other hubs; set before `run`.
    """

    def __init__(self, link: RedisLink, *, prefix: str, hub_id: str, clock: Clock) -> None:
        self._link = link
        self._reader = link.reader()
        self._prefix = f"{{{prefix}}}:hubs:"
        self._hub_id = hub_id
        self._clock = clock
        self._open: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._handled = 0
        self.handle: HandleRequest = _refuse

    async def ask(self, hub_id: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return another hub's answer to a request.

        Raises:
            HubUnreachableError: It has not answered.
        """
        number = secrets.token_hex(8)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._open[number] = answer
        try:
            if not await self._link.call("EXISTS", self._presence(hub_id)):
                raise HubUnreachableError(f"hub {hub_id} is stopped, or does not reach Redis")
            await self._put(hub_id, {"number": number, "hub_id": self._hub_id, "request": request})
            async with deadline(self._clock, ANSWER_S):
                return await answer
        except TimeoutError as exc:
            raise HubUnreachableError(f"no answer of hub {hub_id} in {ANSWER_S:g} s") from exc
        except RedisError as exc:
            raise HubUnreachableError(f"hub {hub_id}: {exc}") from exc
        finally:
            del self._open[number]

    async def announce(self) -> None:
        """Show other hubs that the inbox is read, for `PRESENT_S`.

        Raises:
            RedisError: They cannot see it.
        """
        await self._link.call("SET", self._presence(self._hub_id), 1, "EX", PRESENT_S)

    async def run(self) -> None:
        """Read the inbox until cancelled; then show that it is not read any more."""
        async with asyncio.TaskGroup() as tasks:
            is_present = False
            try:
                while True:
                    try:
                        await self.announce()
                        is_present = True
                        popped = await self._reader.call(
                            "BLPOP", self._inbox(self._hub_id), BLOCK_S, block_s=BLOCK_S
                        )
                    except RedisError:
                        is_present = False
                        await self._clock.sleep(PAUSE_S)  # the reader of notices reports it
                        continue
                    if popped is not None:
                        self._take(popped[1], tasks)
            finally:
                if is_present:
                    with suppress(RedisError):
                        await self._link.call("DEL", self._presence(self._hub_id))

    def _take(self, packed: bytes, tasks: asyncio.TaskGroup) -> None:
        try:
            document = orjson.loads(packed)
            number, request = str(document["number"]), document.get("request")
            if request is None:
                waiting = self._open.get(number)
                if waiting is not None and not waiting.done():
                    waiting.set_result(dict(document["answer"]))
            elif self._handled < HANDLED_MAX:
                self._handled += 1
                tasks.create_task(
                    self._answer(str(document["hub_id"]), number, dict(request)),
                    name="hub-request",
                )
        except (ValueError, TypeError, KeyError) as exc:
            log.warning("affinity.hub_request_unreadable", reason=repr(exc)[:200])

    async def _answer(self, hub_id: str, number: str, request: Mapping[str, Any]) -> None:
        try:
            answer = await self.handle(request)
            await self._put(hub_id, {"number": number, "answer": answer})
        except RedisError as exc:
            log.warning("affinity.hub_not_answered", hub_id=hub_id, reason=str(exc))
        finally:
            self._handled -= 1

    async def _put(self, hub_id: str, document: Mapping[str, Any]) -> None:
        inbox = self._inbox(hub_id)
        await self._link.calls(
            [("RPUSH", inbox, orjson.dumps(document)), ("EXPIRE", inbox, KEPT_S)]
        )

    def _inbox(self, hub_id: str) -> str:
        return f"{self._prefix}inbox:{hub_id}"

    def _presence(self, hub_id: str) -> str:
        return f"{self._prefix}present:{hub_id}"


async def _refuse(_request: Mapping[str, Any]) -> dict[str, Any]:
    return {}

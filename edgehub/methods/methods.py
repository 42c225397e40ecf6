"""Direct methods of devices and modules: called, answered once or not at all, never stored.

Owns the open calls. Invariants: an answer counts only by the way of its call and for its client; a
call ends with its answer, with its connection or with its time-out; it is made on one way at a
time, and on another only if the first one cannot have reached its client.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import orjson
from msgspec import Struct

from edgehub.devices.deadline import deadline
from edgehub.errors import EdgeHubError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from edgehub.clock import Clock

CALLS_MAX: Final = 1_000
"""Open calls, those that wait for their client included."""

NAME_MAX: Final = 100
PAYLOAD_BYTES_MAX: Final = 131_072
RESPONSE_TIMEOUT_S: Final = 30
RESPONSE_TIMEOUT_MIN_S: Final = 5
TIMEOUT_MAX_S: Final = 300

REASON_MAX: Final = 500
NOT_CONNECTED: Final = 404
_NO_ANSWER: Final = 504
_NAME: Final = re.compile(r"[^/+#\s\x00-\x1f\x7f]{1,100}").fullmatch


class MethodError(EdgeHubError):
    """A call has no answer of its client; the text says why.

    Attributes:
        status: As IoT Hub answers it: 400, 404, 413, 429 or 504.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class MethodNotConnectedError(MethodError):
    """The client is not connected, or does not listen to calls."""

    def __init__(self, reason: str) -> None:
        super().__init__(NOT_CONNECTED, reason)


class MethodTimeoutError(MethodError):
    """The client may have carried out the call; its answer did not come."""

    def __init__(self, reason: str) -> None:
        super().__init__(_NO_ANSWER, reason)


class MethodResult(NamedTuple):
    """What a client has answered.

    Attributes:
        status: That it chose.
        payload: JSON text, empty = none.
    """

    status: int
    payload: bytes


class MethodCall(Struct, frozen=True, kw_only=True):
    """A call that keeps the limits of IoT Hub.

    Attributes:
        name: Of the method.
        payload: JSON text, empty = none.
        response_timeout_s: For the answer, once the client is connected.
        connect_timeout_s: How long to wait until it is connected.
    """

    name: str
    payload: bytes = b""
    response_timeout_s: float = RESPONSE_TIMEOUT_S
    connect_timeout_s: float = 0

    @classmethod
    def parse(cls, document: Any) -> MethodCall:
        """Read a call as the service API of IoT Hub has it.

        Raises:
            MethodError: It is none, or breaks a limit.
        """
        if not isinstance(document, dict):
            raise MethodError(400, "want an object with `methodName`")
        unknown = sorted(document.keys() - _KEYS)
        if unknown:
            raise MethodError(400, f"{unknown[0]!a} is none of {', '.join(sorted(_KEYS))}")
        name = document.get("methodName")
        if not isinstance(name, str) or not _NAME(name):
            raise MethodError(
                400, f"`methodName`: want 1 to {NAME_MAX} characters without blanks, /, + and #"
            )
        payload = b"" if document.get("payload") is None else orjson.dumps(document["payload"])
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise MethodError(413, f"payload of {len(payload)} bytes, of at most 128 KiB")
        return cls(
            name=name,
            payload=payload,
            response_timeout_s=_seconds(
                document, _RESPONSE, RESPONSE_TIMEOUT_S, RESPONSE_TIMEOUT_MIN_S
            ),
            connect_timeout_s=_seconds(document, _CONNECT, 0, 0),
        )


class MethodWay(Protocol):
    """A connection by which a client is reached."""

    @property
    def listener(self) -> str:
        """Return the client id of the connection."""


class MethodWays(Protocol):
    """What reaches clients."""

    def ways(self, client_id: str) -> Sequence[MethodWay]:
        """Return the ways to a client that listens to calls, the best first."""

    def call(
        self, way: Any, call: MethodCall, request_id: str, failed: Callable[[bool], None]
    ) -> None:
        """Send a call; `failed(sent)` is called if no answer can come by this way any more.

        `sent` is false if the client cannot have got the call.
        """


class _NotSentError(Exception):
    """A way did not reach its client."""


class Methods:
    """Direct methods of the clients of one hub.

    Args:
        ways: To the clients.
        clock: For time-outs.
        owner: Returns the other hub that owns a device, None = there is none.

    Attributes:
        open_calls: How many are open.
    """

    def __init__(
        self, ways: MethodWays, clock: Clock, owner: Callable[[str], Awaitable[str | None]]
    ) -> None:
        self._ways = ways
        self._clock = clock
        self._owner = owner
        self._numbers = itertools.count(1)
        self.open_calls = 0
        # By request id: the way, and the answer.
        self._calls: dict[str, tuple[MethodWay, asyncio.Future[MethodResult]]] = {}
        self._waiting: set[asyncio.Future[None]] = set()
        self.calls_total = 0
        self.failed_total = 0

    async def call(self, client_id: str, call: MethodCall) -> MethodResult:
        """Call a method and wait for its answer.

        Raises:
            MethodError: There is none.
        """
        self.calls_total += 1
        if self.open_calls >= CALLS_MAX:
            self.failed_total += 1
            raise MethodError(429, f"{CALLS_MAX} calls are open")
        self.open_calls += 1
        try:
            return await self._call(client_id, call)
        except MethodError:
            self.failed_total += 1
            raise
        finally:
            self.open_calls -= 1

    def listening_changed(self, listener: str, listens: bool) -> None:
        """Record that a connection begins or ceases to listen to calls."""
        if listens:
            waiting, self._waiting = self._waiting, set()
            for each in waiting:
                if not each.done():
                    each.set_result(None)
            return
        for way, answer in self._calls.values():
            if way.listener == listener and not answer.done():
                answer.set_exception(_disconnected(listener))

    def answered(
        self,
        way: MethodWay,
        request_id: str,
        status: str,
        payload: bytes,
        *,
        failed: bool = False,
    ) -> None:
        """Record an answer; one that no open call waits for is ignored.

        Args:
            way: By which it came.
            request_id: Of the call.
            status: Of the answer.
            payload: Of the answer.
            failed: It is that of a hub behind which the client has not answered.
        """
        expected, answer = self._calls.get(request_id, (None, None))
        if answer is None or answer.done() or expected != way:
            return
        if not (status.isascii() and status.isdecimal() and len(status) <= len("1000000000")):
            answer.set_exception(MethodError(400, f"answered with status {status[:20]!a}"))
        elif len(payload) > PAYLOAD_BYTES_MAX:
            answer.set_exception(MethodError(413, f"answered with {len(payload)} bytes"))
        elif failed and int(status) in _FAILURES:
            answer.set_exception(_failure(int(status), payload))
        else:
            answer.set_result(MethodResult(int(status), payload))

    async def _call(self, client_id: str, call: MethodCall) -> MethodResult:
        refused: MethodResult | None = None
        absent: MethodNotConnectedError | None = None
        for way in await self._connected(client_id, call.connect_timeout_s):
            try:
                result = await self._by(way, client_id, call)
            except _NotSentError:
                continue
            except MethodNotConnectedError as error:
                absent = absent or error
                continue
            if result.status != NOT_CONNECTED:
                return result
            # The client's own answer, which stands if there is no other.
            refused = refused or result
        if refused is None:
            raise absent or await self._not_connected(client_id)
        return refused

    async def _not_connected(self, client_id: str) -> MethodNotConnectedError:
        owner = await self._owner(client_id.partition("/")[0])
        if owner is not None:
            return MethodNotConnectedError(
                f"{client_id} is with the hub {owner}; call its methods there"
            )
        return MethodNotConnectedError(
            f"{client_id} is not connected, or has not subscribed to $iothub/methods/POST/#"
        )

    async def _connected(self, client_id: str, timeout_s: float) -> Sequence[MethodWay]:
        found = self._ways.ways(client_id)
        if found or not timeout_s:
            return found
        try:
            async with deadline(self._clock, timeout_s):
                while not found:
                    changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    self._waiting.add(changed)
                    try:
                        await changed
                    finally:
                        self._waiting.discard(changed)
                    found = self._ways.ways(client_id)
        except TimeoutError:
            return ()
        return found

    async def _by(self, way: MethodWay, client_id: str, call: MethodCall) -> MethodResult:
        answer: asyncio.Future[MethodResult] = asyncio.get_running_loop().create_future()

        def failed(sent: bool) -> None:
            if not answer.done():
                answer.set_exception(_disconnected(client_id) if sent else _NotSentError())

        request_id = str(next(self._numbers))
        self._calls[request_id] = way, answer
        try:
            async with deadline(self._clock, call.response_timeout_s):
                self._ways.call(way, call, request_id, failed)
                return await answer
        except TimeoutError:
            raise MethodTimeoutError(
                f"{client_id} did not answer within {call.response_timeout_s:g} s"
            ) from None
        finally:
            del self._calls[request_id]
            if answer.done() and not answer.cancelled():
                answer.exception()  # it may have been set in the turn of the time-out


_RESPONSE: Final = "responseTimeoutInSeconds"
_CONNECT: Final = "connectTimeoutInSeconds"
_KEYS: Final = frozenset({"methodName", "payload", _RESPONSE, _CONNECT})


_FAILURES: Final = frozenset({400, 404, 413, 429, 504})


def failure_document(error: MethodError) -> bytes:
    """Return why there is no answer, as a hub passes it on to the caller."""
    return orjson.dumps({"errorCode": error.status, "message": str(error)})


def _failure(status: int, payload: bytes) -> MethodError:
    """Read what `failure_document` wrote."""
    try:
        reason = str(orjson.loads(payload)["message"])[:REASON_MAX]
    except (ValueError, TypeError, KeyError):
        reason = "the hub of the client gives no reason"
    if status == NOT_CONNECTED:
        return MethodNotConnectedError(reason)
    return MethodTimeoutError(reason) if status == _NO_ANSWER else MethodError(status, reason)


def _disconnected(client_id: str) -> MethodError:
    return MethodTimeoutError(f"{client_id} disconnected before it answered")


def _seconds(document: dict[str, Any], name: str, default: int, least: int) -> float:
    value = document.get(name)
    if value is None:
        return default
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= TIMEOUT_MAX_S:
        raise MethodError(400, f"`{name}`: a number from {least} to {TIMEOUT_MAX_S}")
    return float(value)

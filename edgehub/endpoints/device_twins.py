"""Twins of devices, read and reported over each device's own upstream session.

Owns the requests without an answer. Invariants: an answer counts only on the session of its
request; a request ends with its answer, its session or its time-out; nothing is sent before the
peer has granted the subscription to answers.

Source: the MQTT dialect of Azure IoT Hub, "Retrieving a device twin's properties" and "Update
device twin's reported properties".
"""

from __future__ import annotations

import asyncio
import itertools
import re
import secrets
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from msgspec import Struct

from edgehub.endpoints.device_session import SessionError

if TYPE_CHECKING:
    from edgehub.endpoints.device_session import DeviceSession
    from edgehub.mqtt.client_decoder import IncomingPublish

ANSWERS: Final = "$iothub/twin/res/#"
_GET: Final = "$iothub/twin/GET/?$rid="
_REPORT: Final = "$iothub/twin/PATCH/properties/reported/?$rid="
_ANSWER: Final = re.compile(r"\$iothub/twin/res/(\d{3})/\?\$rid=([^&]*)(?:&.*)?")


class TwinAnswer(Struct, frozen=True, kw_only=True):
    """The peer's answer.

    Attributes:
        status: As in HTTP; 200 for a twin, 204 (or 200) for a report.
        body: JSON; of a twin, `desired` and `reported`.
    """

    status: int
    body: bytes


class DeviceTwins:
    """Requests for twins that have no answer yet.

    Args:
        timeout_s: For an answer.
    """

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._requests: dict[str, tuple[str, asyncio.Future[TwinAnswer]]] = {}
        self._numbers = itertools.count(1)
        # Another hub may request the same twin at a peer that sends answers to all clients.
        self._mark = secrets.token_hex(4)

    async def read(self, session: DeviceSession) -> TwinAnswer:
        """Request a device's twin.

        Raises:
            SessionError: There is no answer.
        """
        return await self._request(session, _GET, b"")

    async def report(self, session: DeviceSession, patch: bytes) -> TwinAnswer:
        """Merge a JSON object into what the device reports; null deletes a member.

        Raises:
            SessionError: There is no answer; the change may have been made.
        """
        return await self._request(session, _REPORT, patch)

    def take(self, device_id: str, packet: IncomingPublish) -> bool:
        """Handle an answer; False = the message is none to a request of this kind."""
        found = None if packet.topic is None else _ANSWER.fullmatch(packet.topic)
        if found is None or f".{self._mark}." not in found[2]:
            return False
        status, request_id = found.groups()
        owner, answer = self._requests.get(request_id, ("", None))
        if answer is not None and owner == device_id and not answer.done():
            if packet.body is None:
                answer.set_exception(SessionError(f"an answer of {packet.size} bytes"))
            else:
                answer.set_result(TwinAnswer(status=int(status), body=packet.body))
        return True

    def ended(self, device_id: str, reason: str) -> None:
        """Fail the requests of a session that has ended."""
        for owner, answer in self._requests.values():
            if owner == device_id and not answer.done():
                answer.set_exception(SessionError(f"the session ended: {reason}"))

    async def _request(self, session: DeviceSession, topic: str, body: bytes) -> TwinAnswer:
        device_id = session.device_id
        # The id in front is for responders at a plain broker, which do not see who asks.
        request_id = f"{quote(device_id, safe='')}.{self._mark}.{next(self._numbers)}"
        answer: asyncio.Future[TwinAnswer] = asyncio.get_running_loop().create_future()
        self._requests[request_id] = device_id, answer
        try:
            async with asyncio.timeout(self._timeout_s):
                await session.listen(ANSWERS)
                session.publish((topic + request_id).encode(), body)
                return await answer
        except TimeoutError as exc:
            raise SessionError(f"no answer about its twin within {self._timeout_s:g} s") from exc
        finally:
            del self._requests[request_id]
            if answer.done() and not answer.cancelled():
                answer.exception()  # it may have been set before any caller waited

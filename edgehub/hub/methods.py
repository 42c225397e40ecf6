"""Direct methods as a part of the hub: calls of operators and of the peer, answers of clients."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from edgehub.devices.request_queue import RequestKind
from edgehub.heads.mqtt.topics import ClientTopic
from edgehub.hub.part import Part
from edgehub.message import FailureKind
from edgehub.methods.methods import (
    TIMEOUT_MAX_S,
    MethodCall,
    MethodError,
    Methods,
    failure_document,
)
from edgehub.mqtt.client_topics import METHOD_CALL, METHOD_RESULT
from edgehub.operations.methods import MethodOperations

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from edgehub.clock import Clock
    from edgehub.devices.request_queues import RequestQueues
    from edgehub.endpoints.client_uplink import ClientUplink
    from edgehub.heads.mqtt.client_routes import ClientRoutes, ClientWay, RoutedRequest
    from edgehub.heads.mqtt.listener import MqttListener
    from edgehub.local_message import Settle
    from edgehub.message import SendResult
    from edgehub.mqtt.client_topics import ClientPath
    from edgehub.operations.operation import Operation


class MethodsPart(Part):
    """Direct methods of the clients of one hub; the `MethodWays` of its calls.

    Args:
        listener: Knows who listens.
        clients: Ways to them.
        queues: The request queues of devices.
        uplink: Calls of the peer upstream.
        clock: For time-outs.
        owner: Returns the other hub that owns a device, None = there is none.

    Attributes:
        methods: Calls them.
    """

    name = "methods"

    def __init__(
        self,
        *,
        listener: MqttListener,
        clients: ClientRoutes,
        queues: RequestQueues,
        uplink: ClientUplink,
        clock: Clock,
        owner: Callable[[str], Awaitable[str | None]],
    ) -> None:
        self._clients = clients
        self._queues = queues
        self._uplink = uplink
        self._tasks = asyncio.TaskGroup()
        self._runs = False
        self.methods = Methods(self, clock, owner)
        clients.serve("methods", self._take)
        uplink.serve("methods", self._called)
        clients.hub_changed.append(self.methods.listening_changed)
        listener.follow(ClientTopic.METHODS, self._listening)

    async def run(self) -> None:
        """Carry out calls of the peer upstream."""
        async with self._tasks:
            self._runs = True
            try:
                await asyncio.Event().wait()
            finally:
                self._runs = False

    def status(self) -> dict[str, Any]:
        """Return figures of calls."""
        methods = self.methods
        document = {
            "open": methods.open_calls,
            "calls_total": methods.calls_total,
            "failed_total": methods.failed_total,
        }
        return {"methods": document}

    def operations(self) -> Sequence[Operation]:
        """Return the operation that calls one."""
        return MethodOperations(self.methods).table()

    # As `MethodWays`.

    def ways(self, client_id: str) -> Sequence[ClientWay]:
        """Return the ways to a client that listens to calls, the best first."""
        return self._clients.ways(client_id, METHOD_CALL)

    def call(
        self, way: ClientWay, call: MethodCall, request_id: str, failed: Callable[[bool], None]
    ) -> None:
        """Send a call; `failed` is called if no answer can come any more."""

        def settle(result: SendResult) -> None:
            # A late PUBACK says nothing about the answer, which has a time-out of its own.
            if result.kind not in {None, FailureKind.TIMEOUT}:
                failed(result.kind is FailureKind.DISCONNECTED)

        send = partial(
            self._clients.send,
            *(way, METHOD_CALL, call.name, call.payload, settle),
            rid=request_id,
        )
        # In its turn among all that happens to its device.
        self._queues.of(way.client_id.partition("/")[0]).call(RequestKind.METHOD, send)

    def _listening(self, client_id: str, listens: bool) -> None:
        self._uplink.set_listening(client_id, "methods", listens)
        self.methods.listening_changed(client_id, listens)

    def _take(self, request: RoutedRequest, settle: Settle, token: int) -> None:
        self.methods.answered(
            request.way,
            request.request_id,
            request.name,
            request.body,
            failed=request.way.of_hub and request.parameters.get("$failed") == "true",
        )
        settle(token, None)

    def _called(self, client_id: str, path: ClientPath, body: bytes) -> None:
        """Call a method for the peer upstream, which has a time-out of its own."""
        if path.path == METHOD_CALL and self._runs:
            call = MethodCall(name=path.name, payload=body, response_timeout_s=TIMEOUT_MAX_S)
            request_id = path.parameters.get("$rid", "")
            self._tasks.create_task(self._call(client_id, call, request_id))

    async def _call(self, client_id: str, call: MethodCall, request_id: str) -> None:
        failed = False
        try:
            status, payload = await self.methods.call(client_id, call)
        except MethodError as error:
            status, payload, failed = error.status, failure_document(error), True
        self._uplink.send(
            client_id, METHOD_RESULT, str(status), payload, rid=request_id, failed=failed
        )

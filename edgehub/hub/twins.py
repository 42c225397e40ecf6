"""Twins as a part of the hub: what clients, operators and the peer upstream request of them.

Owns the twins. Invariants: a request is answered once what it changes is durable; the notification
of a reported change is in the same commit as the change.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from edgehub.devices.ids import split_sender
from edgehub.devices.request_queue import RequestKind
from edgehub.heads.mqtt.local.ticket import Ticket
from edgehub.heads.mqtt.topics import ClientTopic
from edgehub.hub.part import Part
from edgehub.hub.status import bound_warnings
from edgehub.message import Message, Refusal
from edgehub.mqtt.client_topics import DESIRED, GET_TWIN
from edgehub.operations.twins import TwinOperations
from edgehub.routes.source import TWIN_CHANGES
from edgehub.settings.derived import twin_warnings, twins_upstream
from edgehub.twins.document import TwinError, parse_patch, write_json
from edgehub.twins.synchroniser import NOT_MODIFIED, OUTDATED, TwinSynchroniser, whole_number
from edgehub.twins.table import TwinTable
from edgehub.twins.twins import ClientTwins

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from edgehub.clock import Clock
    from edgehub.devices.identities import Identities
    from edgehub.devices.request_queues import RequestQueues
    from edgehub.endpoints.client_uplink import ClientUplink
    from edgehub.heads.mqtt.client_routes import ClientRoutes, RoutedRequest
    from edgehub.heads.mqtt.listener import MqttListener
    from edgehub.local_message import Settle
    from edgehub.operations.operation import Operation
    from edgehub.router import Router
    from edgehub.settings import Settings
    from edgehub.settings.configuration import Configuration
    from edgehub.store.store import Store
    from edgehub.twins.document import Json

_OK: Final = 200
_DONE: Final = 204
_FRESH_S: Final = 10.0
"""A client waits so long for the twin that the peer has; then it gets the one that is here."""

_OTHERS_FIRST: Final = TwinError(OUTDATED, "others have reported in the meantime; read the twin")
_NO_ROOM: Final = TwinError(429, "a limit of the store is reached")

_NOTIFICATION: Final[dict[str, str | None]] = {
    "messageSchema": "twinChangeNotification",
    "messageType": "twinChangeNotification",
    "contentType": "application/json",
    "contentEncoding": "utf-8",
}


class TwinsPart(Part):
    """Twins of the devices and modules of one hub.

    Args:
        settings: The hub's.
        hub_id: Device id of the hub itself.
        store: Keeps twins, in one commit with messages.
        router: Takes notifications of reported changes.
        identities: Clients that may sign in.
        listener: Knows who is connected.
        clients: Request twins, and are notified of changes.
        queues: The request queues of devices.
        uplink: Twins at the peer upstream.
        clock: For time-outs.
        owner: Returns the other hub that owns a device, None = there is none.

    Attributes:
        twins: The twins of the hub's clients.
    """

    name = "twins"

    def __init__(  # noqa: PLR0913 - what twins work with, each by name
        self,
        settings: Settings,
        *,
        hub_id: str,
        store: Store,
        router: Router,
        identities: Identities,
        listener: MqttListener,
        clients: ClientRoutes,
        queues: RequestQueues,
        uplink: ClientUplink,
        clock: Clock,
        owner: Callable[[str], Awaitable[str | None]],
    ) -> None:
        self._owner = owner
        self._hub_id = hub_id
        self._settings = settings
        self._is_upstream = twins_upstream(settings, hub_id)
        self._store = store
        self._router = router
        self._identities = identities
        self._listener = listener
        self._clients = clients
        self._queues = queues
        self.twins = twins = ClientTwins(
            TwinTable(store), identities, hub_id=hub_id, bytes_max=settings.mqtt.twins_bytes_max
        )
        twins.desired_changed.append(self._send_desired)
        self._sync = sync = TwinSynchroniser(twins, uplink, clock, is_wanted=self._is_wanted)
        twins.reported_changed.append(sync.due)
        uplink.serve("twin", sync.take)
        uplink.changed.append(sync.link_changed)
        uplink.session_changed.append(sync.session_changed)
        self._uplink = uplink
        # Answers go where a request came from; following them lets clients subscribe.
        listener.follow(ClientTopic.TWIN_ANSWERS, self._answered)
        listener.follow(ClientTopic.DESIRED, self._listening)
        self._tasks = asyncio.TaskGroup()
        store.limits.count_other_tables(lambda: twins.bound.used)
        self._requests_total = 0
        self._refused_total = 0

    async def open(self) -> None:
        """Read the twins, and take requests."""
        await self.twins.load()
        self._clients.serve("twin", self._take)

    async def run(self) -> None:
        """Synchronise twins with the peer upstream, if it has any."""
        async with self._tasks:
            await self._sync.run()

    async def reload(self, configuration: Configuration) -> Mapping[str, Any]:
        """Apply the bound, and count by the identities in force."""
        self._settings = configuration.settings
        self._is_upstream = twins_upstream(configuration.settings, self._hub_id)
        self.twins.bound.limit = configuration.settings.mqtt.twins_bytes_max
        self.twins.recount()
        return {}

    def status(self) -> dict[str, Any]:
        """Return figures of twins."""
        document = {
            "count": len(self.twins),
            "bytes": self.twins.bound.used,
            "requests_total": self._requests_total,
            "refused_total": self._refused_total,
            "synchronised": self._uplink.is_up,
            "unsent": sum(map(self._is_upstream, self.twins.unsent())),
            "local": self._local(),
        }
        return {"twins": document}

    def warnings(self) -> list[str]:
        """List a bound that is nearly used up, and what is not synchronised."""
        nearly_full = bound_warnings("twins", [self.twins.bound.statistics()])
        found = [*nearly_full, *twin_warnings(self._settings)]
        if self._is_upstream("device") and (local := self._local()):
            found.append(
                f"twins: {local} of modules are served here and not synchronised: the peer upstream"
                " has a session for each device, and none for modules"
            )
        return found

    def _local(self) -> int:
        return len(self.twins) - sum(map(self._is_upstream, self.twins.ids()))

    def operations(self) -> Sequence[Operation]:
        """Return what is asked of twins."""
        return TwinOperations(
            self.twins,
            is_known=self._is_known,
            is_owned=self._is_owned,
            owner=self._other_hub,
        ).table()

    def _is_known(self, client_id: str) -> bool:
        """Return whether a client has an identity or a twin, is connected, or behind a hub."""
        return (
            client_id in self.twins
            or client_id == self._hub_id
            or self._identities.get(client_id) is not None
            or self._listener.context.sessions.get(client_id) is not None
            or any(
                scope.match(client_id)
                for entry in self._identities.entries()
                if (scope := entry.scope()) is not None
            )
        )

    async def _other_hub(self, client_id: str) -> str | None:
        """Return the other hub that owns the device of a client, None = none, or it is here."""
        if self._listener.context.sessions.get(client_id) is not None:
            return None
        return await self._owner(client_id.partition("/")[0])

    def _is_owned(self, client_id: str) -> bool:
        return self._is_upstream(client_id)

    def _is_wanted(self, client_id: str) -> bool:
        listens = self._clients.ways(client_id, DESIRED)
        return bool(listens) or self._uplink.is_attached(client_id)

    def _answered(self, client_id: str, listens: bool) -> None:
        if not listens:
            self._sync.left(client_id)

    def _listening(self, client_id: str, listens: bool) -> None:
        self._uplink.set_listening(client_id, "twin", listens)
        if not listens:
            self._sync.left(client_id)
        elif not self._sync.is_fresh(client_id):
            self._sync.due(client_id)

    # Requests of clients.

    def _take(self, request: RoutedRequest, settle: Settle, token: int) -> None:
        """Handle a request in its turn among all that happens to its device."""
        kind = RequestKind.TWIN_READ if request.path == GET_TWIN else RequestKind.TWIN_PATCH
        queue = self._queues.of(request.client_id.partition("/")[0])
        queue.call(kind, partial(self._handle, request, settle, token))

    def _handle(self, request: RoutedRequest, settle: Settle, token: int) -> None:
        self._requests_total += 1
        if request.path == GET_TWIN:
            if request.way.of_hub:
                self._sync.left(request.client_id)  # it may have come from another hub there
            if self._sync.is_fresh(request.client_id):
                self._show(request)
            else:
                self._tasks.create_task(self._show_fresh(request))
            settle(token, None)
            return
        if not self._store.appender.has_room():
            self._refuse(request, _NO_ROOM)
            settle(token, None)
            return
        known = request.parameters.get("$version") if request.way.of_hub else None
        if known and known != str(self.twins.get(request.client_id).reported_version):
            self._refuse(request, _OTHERS_FIRST)
            settle(token, None)
            return
        try:
            self._report(request, parse_patch(request.body), settle, token)
        except TwinError as error:
            self._refuse(request, error)
            settle(token, None)

    async def _show_fresh(self, request: RoutedRequest) -> None:
        await self._sync.refreshed(request.client_id, _FRESH_S)
        self._show(request)

    def _show(self, request: RoutedRequest) -> None:
        twin = self.twins.get(request.client_id)
        if request.parameters.get("$version") == twin.versions:
            self._clients.answer(request, NOT_MODIFIED, b"")
        else:
            self._clients.answer(request, _OK, twin.for_client(of_hub=request.way.of_hub))

    def _report(self, request: RoutedRequest, patch: Json, settle: Settle, token: int) -> None:
        def settled(token: int, refusal: Refusal | None) -> None:
            if refusal is None:
                self._clients.answer(request, _DONE, b"", version=twin.reported_version)
            elif refusal is Refusal.LIMIT:
                self._refuse(request, _NO_ROOM)
            settle(token, refusal)

        ticket = Ticket(settled, token)
        with self._store.writer.together():
            twin = self.twins.report(
                request.client_id, patch, ticket.hold(), at_ms=self._time_of(request)
            )
            self._router.offer(self._notification(request.client_id, patch), ticket.hold(), 0)
        ticket.done(0, None)

    def _time_of(self, request: RoutedRequest) -> int | None:
        """Return the UTC of a report, None = it is not known."""
        if request.way.of_hub:
            return whole_number(request.parameters.get("$at", "")) or None
        store = self._store
        return store.utc_ms(store.hub_time.now_ms()) if store.clock_trusted else None

    def _refuse(self, request: RoutedRequest, error: TwinError) -> None:
        self._refused_total += 1
        body = write_json({"errorCode": error.status, "message": str(error)})
        self._clients.answer(request, error.status, body)

    def _notification(self, client_id: str, patch: Json) -> Message:
        """Return the message about a reported change; like Edge Hub's it is one of the hub."""
        sender = split_sender(client_id)
        assert sender is not None, "requests have valid ids"
        properties: dict[str, str | None] = {
            "iothub-message-schema": "twinChangeNotification",
            "rpSenderDeviceId": sender[0],
        }
        if sender[1] is not None:
            properties["rpSenderModuleId"] = sender[1]
        body = write_json(patch)
        return Message(self._hub_id, None, TWIN_CHANGES, properties, {**_NOTIFICATION}, body)

    def _send_desired(self, client_id: str, patch: Json, version: int) -> None:
        """Notify a client of desired properties; one that is absent reads them when it is back."""
        body = write_json({**patch, "$version": version})
        for way in self._clients.ways(client_id, DESIRED):
            self._clients.send(way, DESIRED, "", body, version=version)

"""The ways to and from clients for twins and direct methods: their own connection, or their hub.

Owns who takes which requests, and which clients listen for others. Invariants: a request is about
its sender itself, or about a client for which the sender may speak; what is about a client is sent
to it, or to a hub that may speak for it, and to no other.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from edgehub.devices.ids import split_sender
from edgehub.heads.mqtt.requests import RequestRefusal
from edgehub.heads.mqtt.topics import ClientTopic
from edgehub.message import Message, Refusal
from edgehub.mqtt.client_topics import (
    DESIRED,
    METHOD_CALL,
    METHOD_RESULT,
    TWIN_RESULT,
    client_levels,
    parse_client_topic,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from edgehub.heads.head import Settle
    from edgehub.heads.mqtt.listener import MqttListener
    from edgehub.heads.mqtt.requests import ClientRequest, RequestSettle
    from edgehub.message import SendResult
    from edgehub.mqtt.client_topics import ClientPath

    Take = Callable[["RoutedRequest", Settle, int], None]

_REQUESTS: Final = re.compile(
    rb"(?:\$iothub/|\$edge/clients/[^/]+/(?:[^/]+/)?)"
    rb"(?:twin/GET|twin/PATCH/properties/reported|methods/res/[^/]+)(?:/(?:\?[^/]*)?)?\Z"
)
_TOPICS: Final = {
    TWIN_RESULT: ClientTopic.TWIN_ANSWERS,
    DESIRED: ClientTopic.DESIRED,
    METHOD_CALL: ClientTopic.METHODS,
}
FORBIDDEN: Final = 403
"""Status of the answer to a hub that requests what it may not."""

_HEARD_MAX: Final = 20_000


class ClientWay(NamedTuple):
    """A connection by which a client is reached.

    Attributes:
        listener: Client id of the connection.
        client_id: Whom it reaches.
        of_hub: Whether on the topics that hubs use.
    """

    listener: str
    client_id: str
    of_hub: bool


class RoutedRequest(NamedTuple):
    """A request about a twin, or the result of a method.

    Attributes:
        client_id: `<device>` or `<device>/<module>` that it is about.
        way: Where the answer goes, by which it came.
        path: What is requested; see `edgehub.mqtt.client_topics`.
        name: Status of a result, else empty.
        request_id: That the answer repeats, empty = no answer is wanted.
        parameters: What else the last level of its topic says.
        body: Payload.
    """

    client_id: str
    way: ClientWay
    path: str
    name: str
    request_id: str
    parameters: Mapping[str, str]
    body: bytes


class ClientRoutes:
    """Ways to the clients of one listener.

    Args:
        listener: Has their connections.

    Attributes:
        hub_changed: Called with the id of a client that begins or ceases to listen for others.
    """

    def __init__(self, listener: MqttListener) -> None:
        self._listener = listener
        self._takers: dict[str, Take] = {}
        # Clients that listen for others, in the order of their subscriptions.
        self._hubs: dict[str, None] = {}
        # By client, the hub that requested something for it last.
        self._heard: dict[str, str] = {}
        self.hub_changed: list[Callable[[str, bool], None]] = []
        listener.handle(_REQUESTS, self._handle)
        listener.follow(ClientTopic.CLIENTS, self._followed)

    def serve(self, family: str, take: Take) -> None:
        """Hand requests of a family, `twin` or `methods`, to `take(request, settle, token)`."""
        self._takers[family] = take

    def ways(self, client_id: str, path: str) -> list[ClientWay]:
        """Return the ways by which a client gets what is on a path, the best first.

        Its own connection comes first, then the hub that spoke for it last, then others that may.
        """
        listens = self._listener.listens(client_id, _TOPICS[path])
        own = [ClientWay(client_id, client_id, of_hub=False)] if listens else []
        last = self._heard.get(client_id)
        hubs = [hub for hub in self._hubs if self._speaks(hub, client_id)]
        hubs.sort(key=lambda hub: hub != last)
        return [*own, *(ClientWay(hub, client_id, of_hub=True) for hub in hubs)]

    def send(
        self,
        way: ClientWay,
        path: str,
        name: str,
        body: bytes,
        settle: Callable[[SendResult], None] = lambda _result: None,
        *,
        rid: str | None = None,
        version: int | None = None,
    ) -> None:
        """Send something to a client by one of its ways; `settle` is called once."""
        levels = client_levels(path, name, rid=rid, version=version)
        message = Message("", None, "", {}, {}, body)
        if way.of_hub:
            rest = f"{way.client_id}/{levels}"
            self._listener.send(way.listener, rest, message, settle, topic=ClientTopic.CLIENTS)
        else:
            rest = levels.removeprefix(f"{path}/")
            self._listener.send(way.client_id, rest, message, settle, topic=_TOPICS[path])

    def answer(
        self, request: RoutedRequest, status: int, body: bytes, *, version: int | None = None
    ) -> None:
        """Answer a request about a twin where it came from, unless no answer is wanted."""
        rid = request.request_id
        if rid:
            self.send(request.way, TWIN_RESULT, str(status), body, rid=rid, version=version)

    def _handle(self, request: ClientRequest, settle: RequestSettle, token: int) -> None:
        parsed = parse_client_topic(request.topic)
        sender = request.client
        client_id = sender.id if parsed is None else parsed.client or sender.id
        if parsed is None or split_sender(client_id) is None:
            settle(token, Refusal.INVALID)
        elif not sender.may_speak_for(client_id):
            self._refuse(ClientWay(sender.id, client_id, of_hub=True), parsed)
            settle(token, RequestRefusal.NOT_AUTHORIZED)
        else:
            if client_id != sender.id:
                self._hear(client_id, sender.id)
            found = RoutedRequest(
                client_id=client_id,
                way=ClientWay(sender.id, client_id, of_hub=bool(parsed.client)),
                path=parsed.path,
                name=parsed.name,
                request_id=parsed.parameters.get("$rid", ""),
                parameters=parsed.parameters,
                body=request.body,
            )
            self._takers[parsed.path.partition("/")[0]](found, settle, token)

    def _refuse(self, way: ClientWay, parsed: ClientPath) -> None:
        rid = parsed.parameters.get("$rid", "")
        if rid and parsed.path != METHOD_RESULT:
            self.send(way, TWIN_RESULT, str(FORBIDDEN), b"", rid=rid)

    def _hear(self, client_id: str, hub: str) -> None:
        if len(self._heard) >= _HEARD_MAX:
            self._heard.clear()
        self._heard[client_id] = hub

    def _speaks(self, hub: str, client_id: str) -> bool:
        connection = self._listener.context.sessions.get(hub)
        client = None if connection is None else connection.client
        return client is not None and client.may_speak_for(client_id)

    def _followed(self, hub: str, listens: bool) -> None:
        if listens:
            self._hubs[hub] = None
        else:
            self._hubs.pop(hub, None)
        for changed in self.hub_changed:
            changed(hub, listens)

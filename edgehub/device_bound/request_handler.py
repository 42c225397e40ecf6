"""Messages to devices that clients of the listener publish.

Owns nothing. Pure but for the mailboxes that it hands them to. Invariant: a client sends to a
device only if its identity names the device's topic among those that it may publish to; the right
to all local topics does not include it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from edgehub.device_bound.message import Origin, QueueDepthExceededError, split_priority
from edgehub.devices.ids import is_device_id
from edgehub.heads.mqtt.local.rights import rights_of
from edgehub.heads.mqtt.requests import RequestRefusal
from edgehub.message import Refusal
from edgehub.mqtt.property_bag import BagError, parse_bag, without_marks
from edgehub.mqtt.topic_filter import matches
from edgehub.store.failure import refusal_of

if TYPE_CHECKING:
    import asyncio

    from edgehub.device_bound.mailboxes import Mailboxes
    from edgehub.heads.mqtt.requests import ClientRequest, RequestSettle

TOPICS: Final = re.compile(rb"devices/[^/]+/(?:modules/[^/]+/)?messages/devicebound/")
_TOPIC: Final = re.compile(
    r"devices/([^/]+)/(?:modules/([^/]+)/)?messages/devicebound/([^/]*)/?", re.DOTALL
)
_DIALECT: Final = "devices/"


class DeviceMessageHandler:
    """Takes messages to devices from clients; implements `RequestHandler`.

    Args:
        mailboxes: Where they are stored.
    """

    __slots__ = ("_mailboxes",)

    def __init__(self, mailboxes: Mailboxes) -> None:
        self._mailboxes = mailboxes

    def __call__(self, request: ClientRequest, settle: RequestSettle, token: int) -> None:
        """Store a message, and settle it once it is durable."""
        match = _TOPIC.fullmatch(request.topic)
        device_id, module_id, bag = ("", None, "") if match is None else match.groups()
        if not is_device_id(device_id) or not (module_id is None or is_device_id(module_id)):
            settle(token, Refusal.INVALID)
            return
        if not _may_send(request):
            settle(token, RequestRefusal.NOT_AUTHORIZED)
            return
        try:
            properties, system = parse_bag(bag)
        except BagError:
            settle(token, Refusal.INVALID)
            return
        priority, properties = split_priority(without_marks(properties))
        target = device_id if module_id is None else f"{device_id}/{module_id}"
        try:
            _, stored = self._mailboxes.accept(
                target,
                request.body,
                properties,
                system,
                origin=Origin.CLIENT,
                priority=priority,
                ttl_ms=request.expiry_ms,
            )
        except QueueDepthExceededError:
            settle(token, RequestRefusal.QUEUE_DEPTH)
            return

        def settled(stored: asyncio.Future[None]) -> None:
            settle(token, refusal_of(stored, "device_bound.message_not_stored"))

        stored.add_done_callback(settled)


def _may_send(request: ClientRequest) -> bool:
    client = request.client
    publish = rights_of(client.id, client.identity).publish or ()
    # `#` and `+/...` stand for local topics.
    named = tuple(each for each in publish if each.startswith(_DIALECT))
    return any(matches(each, request.topic) for each in named)

"""Messages to devices and modules as a part of the hub."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson
from msgspec import to_builtins

from edgehub.device_bound.handover import Handover
from edgehub.device_bound.mailboxes import Mailboxes
from edgehub.device_bound.message import (
    FEEDBACK_TYPE,
    EndReason,
    Origin,
    QueueDepthExceededError,
    feedback_record,
    milliseconds_left,
    split_priority,
)
from edgehub.device_bound.request_handler import TOPICS, DeviceMessageHandler
from edgehub.device_bound.table import DeviceMessageTable
from edgehub.heads.mqtt.topics import ClientTopic
from edgehub.hub.part import Part
from edgehub.local_message import ignore_result
from edgehub.message import Message
from edgehub.operations.device_messages import DeviceMessageOperations
from edgehub.telemetry.losses import Loss

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from edgehub.clock import Clock
    from edgehub.device_bound.message import DeviceMessage
    from edgehub.devices.affinity.flags import Flags
    from edgehub.heads.mqtt.listener import MqttListener
    from edgehub.hub.devices import DevicesPart
    from edgehub.mqtt.property_bag import Properties
    from edgehub.operations.operation import Operation
    from edgehub.router import Router
    from edgehub.settings.configuration import Configuration
    from edgehub.settings.device_bound import DeviceBoundSettings
    from edgehub.store.store import Store


class DeviceBoundPart(Part):
    """The mailboxes of devices and modules.

    Args:
        settings: Bounds and defaults.
        hub_id: Sender of feedback.
        store: Keeps the messages.
        router: Takes feedback.
        devices: Whose messages they are, and which hub owns each.
        flags: Which devices this hub owns.
        listener: Delivers, and knows who listens.
        clock: For all timers.

    Attributes:
        mailboxes: Messages that wait for devices and modules.
    """

    name = "device_bound"

    def __init__(
        self,
        settings: DeviceBoundSettings,
        *,
        hub_id: str,
        store: Store,
        router: Router,
        devices: DevicesPart,
        flags: Flags,
        listener: MqttListener,
        clock: Clock,
    ) -> None:
        self._hub_id = hub_id
        self._store = store
        self._router = router
        mark, numbers = secrets.token_hex(8), itertools.count(1)
        self.mailboxes = Mailboxes(
            DeviceMessageTable(store),
            settings,
            clock=clock,
            now_ms=store.hub_time.now_ms,
            utc_ms=lambda hub_ms: store.utc_ms(hub_ms) if store.clock_trusted else None,
            new_id=lambda: f"{mark}-{next(numbers)}",
            queues=devices.queues,
            send=partial(listener.send, topic=ClientTopic.MESSAGES),
            report=self._report,
        )
        self._other_owner = devices.other_owner
        self._handover: Handover | None = None
        if devices.requests is not None:
            self._handover = Handover(
                self.mailboxes,
                hub_id=hub_id,
                flags=flags,
                coordinator=devices.coordinator,
                requests=devices.requests,
                clock=clock,
            )
        listener.follow(ClientTopic.MESSAGES, self.mailboxes.listening)
        listener.handle(TOPICS, DeviceMessageHandler(self.mailboxes))

    async def open(self) -> None:
        """Read the messages that are stored."""
        await self.mailboxes.load()

    async def run(self) -> None:
        """Remove expired messages, and hand messages on to other hubs, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.mailboxes.run(), name="mailboxes")
            if self._handover is not None:
                tasks.create_task(self._handover.run(), name="handover")

    async def close(self) -> None:
        """Stop the timers."""
        self.mailboxes.close()

    def accept(
        self,
        target: str,
        body: bytes,
        properties: Properties,
        system: Properties,
        *,
        expiry_ms: int | None,
        dup: bool,
        done: Callable[[], None],
    ) -> None:
        """Take a message of a peer upstream; see `edgehub.endpoints.device_bound.Accept`."""
        message_id = system.get("messageId")
        if not (dup and message_id and self.mailboxes.waits(target, message_id)):
            if expiry_ms is None and self._store.clock_trusted:
                now_ms = self._store.utc_ms(self._store.hub_time.now_ms())
                expiry_ms = milliseconds_left(system, now_ms)
            priority, properties = split_priority(properties)
            # Kept without an acknowledgement, it would keep those for other devices from coming.
            with contextlib.suppress(QueueDepthExceededError):
                self.mailboxes.accept(
                    target,
                    body,
                    properties,
                    system,
                    origin=Origin.UPSTREAM,
                    priority=priority,
                    ttl_ms=expiry_ms,
                )
        self._acknowledge_in_turn(done)

    def _acknowledge_in_turn(self, done: Callable[[], None]) -> None:
        """Acknowledge after all that came before it: peers want PUBACKs in order."""

        def settled(stored: asyncio.Future[None]) -> None:
            if not stored.cancelled() and stored.exception() is None:
                done()

        newest = self.mailboxes.newest_stored
        if newest is None:
            done()
        else:
            newest.add_done_callback(settled)

    async def reload(self, configuration: Configuration) -> Mapping[str, Any]:
        """Apply bounds and defaults; what waits already stays."""
        self.mailboxes.settings = configuration.settings.device_bound
        return {}

    def status(self) -> dict[str, Any]:
        """Return figures of all mailboxes."""
        document = to_builtins(self.mailboxes.statistics())
        document["held_up"] = {} if self._handover is None else self._handover.held_up
        return {"device_bound": document}

    def warnings(self) -> list[str]:
        """Return which hubs do not take the messages for their devices."""
        held_up = {} if self._handover is None else self._handover.held_up
        return [
            f"device_bound: messages for devices of other hubs wait here: {reason}"
            for reason in held_up.values()
        ]

    def operations(self) -> Sequence[Operation]:
        """Return what is asked of messages to devices."""
        return DeviceMessageOperations(self._store, self.mailboxes, self._other_owner).table()

    def losses(self) -> list[Loss]:
        """Return what devices did not get since the start."""
        ended = self.mailboxes.statistics().ended_total
        return [
            Loss(
                key=("device_bound", reason.value),
                total=ended[reason.value],
                what="to a device {was} not delivered",
                why=why,
                example=self.mailboxes.newest[reason],
                hint=hint,
                event="device_bound.messages_lost",
                fields={"reason": reason.value, "newest": self.mailboxes.newest[reason]},
            )
            for reason, (why, hint) in _LOSSES.items()
        ]

    def _report(self, message: DeviceMessage, reason: EndReason, detail: str) -> None:
        now_ms = self._store.utc_ms(self._store.hub_time.now_ms())
        body = orjson.dumps([feedback_record(message, reason, detail, now_ms)])
        system: Properties = {"contentType": FEEDBACK_TYPE, "contentEncoding": "utf-8"}
        feedback = Message(self._hub_id, None, "/messages/", {}, system, body)
        self._router.offer(feedback, ignore_result, 0)


_LOSSES: Final = {
    EndReason.QUEUE_DEPTH_EXCEEDED: (
        "because device_bound.waiting_max or bytes_max was reached",
        "edgehub device messages DEVICE lists them, edgehub device purge removes them",
    ),
    EndReason.DELIVERY_COUNT_EXCEEDED: (
        "because the client never acknowledged {them} (device_bound.deliveries_max)",
        "edgehub device messages DEVICE lists dead letters",
    ),
    EndReason.REJECTED: (
        "because the client rejected {them}",
        "edgehub device messages DEVICE lists dead letters",
    ),
    EndReason.EXPIRED: (
        "before {they} expired",
        "connect the device, or give messages to it a longer time to live",
    ),
}

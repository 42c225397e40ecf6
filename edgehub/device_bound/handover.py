"""Messages for devices of other hubs: handed on to the hub that owns the device.

Owns nothing but what the last look found; a message stays in its mailbox until the owner has stored
it. Invariants: a message is removed here after it is durable there, so a crash in between may
deliver it twice and never loses it; a device's messages keep their order; one whose client listens
here stays, and one whose device no hub owns waits until one does.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, Final

import structlog
from msgspec import Meta, Struct, convert, to_builtins

from edgehub.device_bound.message import Origin, size_of
from edgehub.devices.affinity.flags import Ownership
from edgehub.devices.deadline import deadline
from edgehub.devices.faults import CoordinatorUnreachableError
from edgehub.devices.hub_requests import HubUnreachableError
from edgehub.devices.ids import split_sender
from edgehub.errors import StoreError
from edgehub.message import Priority

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgehub.clock import Clock
    from edgehub.device_bound.mailboxes import Mailboxes
    from edgehub.device_bound.message import DeviceMessage
    from edgehub.devices.affinity.coordinator import Coordinator
    from edgehub.devices.affinity.flags import Flags
    from edgehub.devices.hub_requests import HubRequests

LOOK_S: Final = 5.0
"""How often the owners of devices with messages are asked for, unless something changes."""

log = structlog.get_logger(__name__)


class _Moved(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message as one hub hands it to another one, in JSON."""

    target: str
    message_id: Annotated[str, Meta(min_length=1)]
    properties: dict[str, str | None]
    system: dict[str, str | None]
    body: bytes
    priority: int
    origin: Origin
    ttl_ms: int


class Handover:
    """Hands messages on, and takes those of other hubs.

    Args:
        mailboxes: The messages.
        hub_id: Name of this hub.
        flags: Which devices this hub owns.
        coordinator: Knows which hub owns a device.
        requests: The way to other hubs.
        clock: For all timers.

    Attributes:
        held_up: Hubs that do not take messages, with the reason; "" = the coordinator.
    """

    def __init__(
        self,
        mailboxes: Mailboxes,
        *,
        hub_id: str,
        flags: Flags,
        coordinator: Coordinator,
        requests: HubRequests,
        clock: Clock,
    ) -> None:
        self._mailboxes = mailboxes
        self._hub_id = hub_id
        self._flags = flags
        self._coordinator = coordinator
        self._requests = requests
        self._clock = clock
        self._due = asyncio.Event()
        self.held_up: dict[str, str] = {}
        requests.handle = self.take
        mailboxes.followers.append(self._wake)
        flags.add_listener(self._wake)

    def _wake(self, device_id: str) -> None:
        """Look soon, if messages wait for a device that this hub does not own."""
        if self._flags.of(device_id) is not Ownership.OWNER and self._mailboxes.of(device_id):
            self._due.set()

    async def run(self) -> None:
        """Hand messages on until cancelled."""
        while True:
            self._due.clear()
            await self.look()
            try:
                async with deadline(self._clock, LOOK_S):
                    await self._due.wait()
            except TimeoutError:
                continue

    async def look(self) -> None:
        """Hand on all messages whose devices other hubs own."""
        before, self.held_up = self.held_up, {}
        try:
            for target in self._mailboxes.movable():
                device_id = target.partition("/")[0]
                if self._flags.of(device_id) is Ownership.OWNER:
                    continue
                owner = await self._coordinator.owner_of(device_id)
                if owner not in {"", self._hub_id, *self.held_up}:
                    await self._hand_on(target, owner)
        except CoordinatorUnreachableError as exc:
            self.held_up[""] = str(exc)
        for hub_id, reason in self.held_up.items():
            if hub_id not in before:  # once per outage
                log.warning("device_bound.handover_held_up", hub_id=hub_id, reason=reason)

    async def _hand_on(self, target: str, owner: str) -> None:
        while (message := self._mailboxes.lend(target)) is not None:
            moved = False
            try:
                answer = await self._requests.ask(owner, to_builtins(self._request(message)))
                moved = answer.get("taken") is True
            except HubUnreachableError as exc:
                self.held_up[owner] = str(exc)
            else:
                if not moved:
                    self.held_up[owner] = str(answer.get("why"))
            finally:
                self._mailboxes.give_back(message, moved=moved)
            if not moved:
                return

    def _request(self, message: DeviceMessage) -> _Moved:
        return _Moved(
            target=message.target,
            message_id=message.message_id,
            properties=message.properties,
            system=message.system,
            body=message.body,
            priority=message.priority,
            origin=message.origin,
            ttl_ms=self._mailboxes.left_ms(message),
        )

    async def take(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Store a message of another hub, and answer once it is durable.

        If this hub has lost the device since, it hands it on in its turn.
        """
        try:
            return await self._take(convert(request, _Moved))
        except ValueError as exc:
            return _refused(f"the request is malformed: {exc}")
        except StoreError as exc:
            return _refused(str(exc))

    async def _take(self, moved: _Moved) -> dict[str, Any]:
        target, body = moved.target, moved.body
        if split_sender(target) is None:
            return _refused("the request is malformed: its target")
        if self._mailboxes.waits(target, moved.message_id):
            # Asked a second time, since the first answer was lost or late.
            stored = self._mailboxes.newest_stored
        elif full := self._mailboxes.fault(target, size_of(moved.properties, moved.system, body)):
            return _refused(full)
        else:
            _, stored = self._mailboxes.accept(
                target,
                body,
                moved.properties,
                {**moved.system, "messageId": moved.message_id},
                origin=moved.origin,
                priority=Priority(moved.priority),
                ttl_ms=moved.ttl_ms,
            )
        if stored is not None:
            await asyncio.shield(stored)
        return {"taken": True}


def _refused(why: str) -> dict[str, Any]:
    return {"taken": False, "why": why}

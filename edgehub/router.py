"""Between heads and store: decides where a message goes, then appends it to all its queues at once.

Owns the current route table and the count of messages that no route wanted. Invariant: a message is
evaluated against one whole table, the old one or the new one, never a mixture.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from edgehub.endpoints.packet_limits import PacketLimits
from edgehub.message import Refusal
from edgehub.mqtt.property_bag import is_batch
from edgehub.telemetry.losses import Loss

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from edgehub.devices.tenancy import Tenancy
    from edgehub.message import Message, RouteResult
    from edgehub.routes.table import RouteTable
    from edgehub.store.appender import Appender

SHOWN_PROPERTIES_MAX: Final = 8
SHOWN_CHARS_MAX: Final = 100


class Router:
    """Evaluates messages against the current table and appends them to the store."""

    __slots__ = (
        "_append",
        "_appender",
        "_evaluate",
        "_followers",
        "_table",
        "_too_large",
        "_unrouted",
        "limits",
        "too_large_total",
        "unrouted_total",
    )

    def __init__(
        self, table: RouteTable, appender: Appender, limits: PacketLimits | None = None
    ) -> None:
        self._table = table
        self._evaluate = table.evaluate
        self._append = appender.append
        self._appender = appender
        self.limits = PacketLimits() if limits is None else limits
        self.too_large_total = 0
        self._too_large = ("", "")
        """Device of the last message that a peer can never take, and why."""
        self._followers: list[Callable[[RouteTable], None]] = []
        self.unrouted_total = 0
        self._unrouted: tuple[str, str, Mapping[str, str | None]] = ("", "", {})
        """Device, source and properties of the last message that no route wanted."""

    @property
    def table(self) -> RouteTable:
        """Return the table in force."""
        return self._table

    def replace(self, table: RouteTable) -> None:
        """Put another table in force; messages submitted from now on use it."""
        self._table = table
        self._evaluate = table.evaluate
        for changed in self._followers:
            changed(table)

    def follow(self, changed: Callable[[RouteTable], None]) -> None:
        """Call `changed` with the table in force, now and whenever it is replaced."""
        self._followers.append(changed)
        changed(self._table)

    def submit(
        self, message: Message, settle: Callable[[int, Refusal | None], None], token: int
    ) -> None:
        """Route and store one message; see `edgehub.heads.head.Submit`.

        A message that no route wants is counted, and acknowledged by all heads. One that is too
        large for all peers it should go to is refused as one that can never be stored. A batch of
        messages never comes here in one piece: what has its content type is refused, since another
        hub would take it apart and believe the senders that it names.
        """
        if message.system and is_batch(message.system):
            self._refuse_batch(message, settle, token)
            return
        results = self._evaluate(message)
        if results and self.limits.endpoints:
            results = self._fitting(message, results, settle, token)
            if not results:
                return
        if results:
            self._append(message, results, settle, token)
        else:
            self._count_unrouted(message)
            settle(token, Refusal.UNROUTED)

    def offer(
        self, message: Message, settle: Callable[[int, Refusal | None], None], token: int
    ) -> None:
        """Route and store a message that has its receivers anyway; see `submit`."""
        results = self._evaluate(message)
        if results and is_batch(message.system):
            self._refuse_batch(message, settle, token)
            return
        if results and self.limits.endpoints:
            results = self._fitting(message, results, settle, token)
            if not results:
                return
        if results:
            self._append(message, results, settle, token)
        else:
            settle(token, None)

    def route(self, message: Message) -> Sequence[RouteResult]:
        """Return where a message goes, for callers that append it themselves."""
        results = self._evaluate(message)
        if not results:
            self._count_unrouted(message)
        return results

    def _fitting(
        self,
        message: Message,
        results: Sequence[RouteResult],
        settle: Callable[[int, Refusal | None], None],
        token: int,
    ) -> Sequence[RouteResult]:
        """Leave out the copies that a peer could never take; settles a message without others."""
        faults = [self.limits.fault(message, result.endpoint_id) for result in results]
        if not any(faults):
            return results
        self._count_too_large(message, next(fault for fault in faults if fault))
        if all(faults):
            self._appender.refuse(message, str(faults[0]))
            settle(token, Refusal.INVALID)
            return ()
        for result, fault in zip(results, faults, strict=True):
            if fault:
                self._appender.drop(message, result, fault)
        return [result for result, fault in zip(results, faults, strict=True) if not fault]

    def _refuse_batch(
        self, message: Message, settle: Callable[[int, Refusal | None], None], token: int
    ) -> None:
        self._appender.refuse(message, Refusal.RESERVED.value)
        settle(token, Refusal.RESERVED)

    def _count_too_large(self, message: Message, reason: str) -> None:
        self.too_large_total += 1
        self._too_large = (message.device_id, reason)

    def _count_unrouted(self, message: Message) -> None:
        self.unrouted_total += 1
        self._unrouted = (message.device_id, message.source, message.properties)

    def losses(self) -> list[Loss]:
        """Return what was acknowledged and dropped since the start."""
        device_id, source, properties = self._unrouted
        shown = _shown(properties)
        sender, reason = self._too_large
        return [
            Loss(
                key=("too_large",),
                total=self.too_large_total,
                what="{was} not stored for an endpoint",
                why="whose peer can never take {them}",
                example=f"device {sender}: {reason}",
                event="router.message_too_large",
                fields={"device_id": sender, "reason": reason},
            ),
            Loss(
                key=("unrouted",),
                total=self.unrouted_total,
                what="{was} acknowledged and dropped",
                why="because no route takes {them}",
                example=" ".join(filter(None, (f"{source} of device {device_id}", shown))),
                hint="edgehub route explain says why",
                event="router.messages_unrouted",
                fields={"device_id": device_id, "source": source, "properties": shown},
            ),
        ]


def _shown(properties: Mapping[str, str | None]) -> str:
    """Return properties as log lines and warnings show them, cut to a bounded length."""
    first = islice(properties.items(), SHOWN_PROPERTIES_MAX)
    named = [name if value is None else f"{name}={value}" for name, value in first]
    return " ".join(named)[:SHOWN_CHARS_MAX]


class TenantRouter(Router):
    """A router of a hub with tenants: each message meets the routes of its own.

    Args:
        table: Routes of all tenants.
        appender: Appends to the queues.
        limits: What peers can take.
        tenancy: Knows whose a message is.
    """

    __slots__ = ("tenancy",)

    def __init__(
        self, table: RouteTable, appender: Appender, limits: PacketLimits, tenancy: Tenancy
    ) -> None:
        super().__init__(table, appender, limits)
        self.tenancy = tenancy

    def submit(
        self, message: Message, settle: Callable[[int, Refusal | None], None], token: int
    ) -> None:
        """Route and store a message; beyond its tenant's allowance it is refused."""
        if self._admits(message):
            super().submit(message, settle, token)
        else:
            settle(token, Refusal.LIMIT)

    def offer(
        self, message: Message, settle: Callable[[int, Refusal | None], None], token: int
    ) -> None:
        """Route a message that has its receivers anyway; beyond the allowance it is refused."""
        if self._admits(message):
            super().offer(message, settle, token)
        else:
            settle(token, Refusal.LIMIT)

    def route(self, message: Message) -> Sequence[RouteResult]:
        """Return where a message goes; what the hub makes itself counts against no tenant."""
        message.tenant = self.tenancy.of(message)
        return super().route(message)

    def _admits(self, message: Message) -> bool:
        message.tenant = self.tenancy.of(message)
        return self.tenancy.allows(message.tenant)

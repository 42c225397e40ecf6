"""The vocabulary that every stage shares: messages, rows, route results and send results.

Owns no state and calls nothing above it. Objects of the message path hold no cycles, so the garbage
collector does not look at them. Invariant: a `Message` is not changed after a head has submitted
it.
"""

from __future__ import annotations

import base64
from enum import StrEnum
from typing import Final, NewType

from msgspec import Struct

EndpointId = NewType("EndpointId", str)
"""`upstream`, the name of an endpoint of the settings, or `modules/<module>/inputs/<input>`."""

QueueId = NewType("QueueId", str)
"""Endpoint id, plus `_Pri<n>` for the priorities 0 to 9."""

Offset = NewType("Offset", int)
"""Place of a row in the one hub-wide order; never used twice."""

Priority = NewType("Priority", int)
"""0 is the best, 9 the last of the explicit ones, `DEFAULT_PRIORITY` is behind all of them."""

UPSTREAM: Final = EndpointId("upstream")
BEST_PRIORITY: Final = Priority(0)
WORST_EXPLICIT_PRIORITY: Final = Priority(9)
DEFAULT_PRIORITY: Final = Priority(2_000_000_000)

NEVER_MS: Final = 2**62
"""Hub time that is never reached: the expiry of a row without time to live."""

PROPERTIES_MAX: Final = 1_000
"""Application and system properties of one message; each costs time that other messages wait."""


def body_members(body: bytes) -> dict[str, str]:
    """Return a body as JSON can hold it: `body` if it is UTF-8, else `body_base64`."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def module_input(module_id: str, input_name: str) -> EndpointId:
    """Name the endpoint of one input of one module."""
    return EndpointId(f"modules/{module_id}/inputs/{input_name}")


def split_module_input(endpoint_id: EndpointId) -> tuple[str, str] | None:
    """Return module and input of an endpoint id, None = it is not a module input."""
    match endpoint_id.split("/"):
        case ["modules", module_id, "inputs", input_name]:
            return module_id, input_name
        case _:
            return None


def queue_id(endpoint_id: EndpointId, priority: Priority) -> QueueId:
    """Name the queue of one endpoint and one priority, as in the seed (`upstream_Pri0`)."""
    if priority == DEFAULT_PRIORITY:
        return QueueId(endpoint_id)
    assert BEST_PRIORITY <= priority <= WORST_EXPLICIT_PRIORITY, priority
    return QueueId(f"{endpoint_id}_Pri{priority}")


class Message(Struct, eq=False, gc=False):
    """One message as a head hands it in.

    Attributes:
        device_id: The sender's device.
        module_id: The sender's module, None for a device.
        source: Normalised message source with a closing slash, for example `/messages/` or
            `/messages/modules/cam/outputs/alerts/`.
        properties: Application properties; None is a property without a value.
        system: System properties by the names that conditions use (`messageId`, `contentType`),
            without those that the hub derives (`connectionDeviceId`, `connectionModuleId`).
        body: Payload bytes.
        expiry_ms: Time to live asked for by the sender; shortens that of the route; None = none.
        message_id: Unique over all hubs; set by the store when the message is appended.
        tenant: Whose routes it meets, `organisation/application`; empty = those of all tenants
            without a tenant.
        header: All but its body, ids and expiry as the store writes it; set by the store when the
            message is appended or read, empty = not yet. Equal headers mean equal messages, so
            what is made of them can be kept by it.
    """

    device_id: str
    module_id: str | None
    source: str
    properties: dict[str, str | None]
    system: dict[str, str | None]
    body: bytes
    expiry_ms: int | None = None
    message_id: str = ""
    tenant: str = ""
    header: bytes = b""

    @property
    def sender(self) -> str:
        """`<device>` or `<device>/<module>`: the unit inside which order is kept."""
        if self.module_id is None:
            return self.device_id
        return f"{self.device_id}/{self.module_id}"

    @property
    def output(self) -> str | None:
        """Name of the module output, None where the message has none."""
        return self.system.get("outputName")


def message_source(module_id: str | None, output: str | None) -> str:
    """Return the source string of a telemetry message (reference: edge-hub section 1.3)."""
    if module_id is None:
        return "/messages/"
    if not output:
        return f"/messages/modules/{module_id}/"
    return f"/messages/modules/{module_id}/outputs/{output}/"


class Recency(Struct, frozen=True, kw_only=True):
    """A row younger than `seconds` waits in its route's priority, an older one in the fallback."""

    seconds: int
    fallback_priority: Priority


class RouteResult(Struct, frozen=True, kw_only=True):
    """Where one message goes: the best route of one endpoint.

    Attributes:
        endpoint_id: Destination.
        priority: Number of the winning route.
        ttl_ms: Time to live in milliseconds, None = never expires.
        routes: Names of all matching routes to this endpoint, the winner first.
        recency: Recency rule of the winning route, None = none.
        predecessor: Offset of the row of this endpoint that must be confirmed before this copy is
            sent, None = none.
        creation: The copy creates an entity, so it stays until it is delivered or an operator
            removes it: it has neither time to live nor recency, and is never evicted.
    """

    endpoint_id: EndpointId
    priority: Priority
    ttl_ms: int | None
    routes: tuple[str, ...]
    recency: Recency | None = None
    predecessor: int | None = None
    creation: bool = False


class Order(StrEnum):
    """What a refused row does to the later rows of its sender in the same queue."""

    STRICT = "strict"  # they wait, and follow it again
    SKIP = "skip"  # they pass


class DeliveryRules(Struct, frozen=True, kw_only=True):
    """How often and how long a row is tried, and what a refusal does to its sender's order.

    Attributes:
        order: See `Order`.
        max_attempts: Refused sends until the row becomes a dead letter; 0 = unlimited.
        max_age_s: Seconds since the row was stored after which a refusal makes it a dead letter;
            None = never.
    """

    order: Order = Order.STRICT
    max_attempts: int = 0
    max_age_s: float | None = None


class Row(Struct, eq=False, gc=False):
    """One copy of a message in one queue.

    Attributes:
        offset: Place in the hub-wide order.
        message: What is to be sent.
        enqueued_ms: Hub time at which it was stored.
        expires_ms: Hub time at which its time to live ends, `NEVER_MS` = never.
        routes: Names of the routes that put it here, the winner first.
        attempts: Sends that the endpoint refused so far.
        size: Bytes that it counts against limits and windows (body, properties, fixed overhead).
        predecessor: Offset that must be confirmed before this row is sent, None = none.
        message_key: What the message's id is made of: 0 = this row's offset, else the offset of the
            message's first row, or the id itself.
        fresh_until_ms: Hub time from which it waits in its fallback priority, `NEVER_MS` = never.
        creation: See `RouteResult`.
        took_ms: Milliseconds from its last send to the confirmation, 0 = it was not confirmed.
    """

    offset: int
    message: Message
    enqueued_ms: int
    expires_ms: int
    routes: tuple[str, ...]
    size: int
    attempts: int = 0
    predecessor: int | None = None
    message_key: int | str = 0
    fresh_until_ms: int = NEVER_MS
    creation: bool = False
    took_ms: int = 0

    def age(self, milliseconds: int) -> None:
        """Put its times back: it has waited longer than was known."""
        self.enqueued_ms -= milliseconds
        if self.expires_ms < NEVER_MS:
            self.expires_ms -= milliseconds
        if self.fresh_until_ms < NEVER_MS:
            self.fresh_until_ms -= milliseconds


class FailureKind(StrEnum):
    """Why a send failed; decides between retry, park and dead letter."""

    TRANSIENT = "transient"  # this message, now: try again later
    THROTTLED = "throttled"  # the peer asks for a pause of the whole queue
    TIMEOUT = "timeout"  # no answer: unknown whether it arrived
    UNAUTHORIZED = "unauthorized"  # the peer does not let us in: park until settings change
    DISCONNECTED = "disconnected"  # the link was lost before the answer
    CLOSED = "closed"  # the peer closed it after it had the whole message, and before an answer
    UNREACHABLE = "unreachable"  # the session of its device is not connected; others go on
    NOT_AUTHORIZED = "not_authorized"  # the peer takes nothing of this sender from us; others go on
    REJECTED = "rejected"  # never acceptable: dead letter
    TOO_LARGE = "too_large"  # over the peer's limit: dead letter


class SendResult(Struct, frozen=True, eq=False, gc=False):
    """The endpoint's answer for one row; `kind` None means delivered."""

    kind: FailureKind | None
    reason: str = ""
    retry_after_s: float | None = None


DELIVERED: Final = SendResult(None)


class RefusedByClient(SendResult, frozen=True, eq=False, gc=False):
    """A client has answered with a reason code that says no."""


class Refusal(StrEnum):
    """Why the hub refused a message; the head reports it to the sender in its protocol."""

    INVALID = "invalid"  # can never be stored: acknowledge and drop where there is no other word
    RESERVED = "reserved"  # has a content type that only hubs send each other
    UNROUTED = "unrouted"  # no route takes it: acknowledged, as in the original hub
    LIMIT = "limit"  # a limit of rows, bytes or disk
    UNAVAILABLE = "unavailable"  # not now: what decides about it cannot be asked
    CLOSED = "closed"  # the hub is shutting down

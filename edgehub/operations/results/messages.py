"""Messages that wait, and dead letters, as operations return them."""

from __future__ import annotations

from typing import Any, NotRequired

from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12


class MessageDocument(TypedDict):
    """A message.

    Attributes:
        module: Null = the device itself sent it.
        properties: Names alone, or names and values with `payload`.
        body: The body as text, with `payload`.
        body_base64: The body, with `payload`, where it is no UTF-8.
    """

    id: str
    device: str
    module: str | None
    source: str
    body_bytes: int
    properties: list[str] | dict[str, str]
    system_properties: list[str] | dict[str, Any]
    body: NotRequired[str]
    body_base64: NotRequired[str]


class RowDocument(MessageDocument):
    """A message in a queue.

    Attributes:
        offset: Its place in the queue.
        ttl_s: Time to live, null = unlimited.
        expires_in_s: Likewise.
        closes: How often the peer closed the connection over it.
        routes: The routes that took it, the one that decides first.
    """

    offset: int
    queue: str
    state: str
    enqueued: str
    age_s: float
    ttl_s: float | None
    expires_in_s: float | None
    attempts: int
    closes: int
    routes: list[str]
    bytes: int


class PeekDocument(TypedDict):
    """The oldest messages of a queue, or of all queues of an endpoint.

    Attributes:
        depth: Messages in all.
    """

    queue: str
    depth: int
    rows: list[RowDocument]


class TakenOutDocument(TypedDict):
    """A step of a purge or move.

    Attributes:
        to: The other queue, null = a purge.
        in_flight: Messages that stay, since they are in flight or kept out.
        exceeds: Limits of the other queue that are exceeded.
        through: Offset of the last message.
        next_offset: `from_offset` of the next step, null = done.
        other_queues: With `dry_run`: messages by further queue of the endpoint.
    """

    queue: str
    to: str | None
    rows: int
    bytes: int
    in_flight: int
    exceeds: list[str]
    through: int
    next_offset: int | None
    other_queues: NotRequired[dict[str, int]]


class DeadLetterDocument(MessageDocument):
    """A dead letter.

    Attributes:
        dead_letter: Its number.
        kind: Kind of the refusal.
        dead: UTC at which it was given up.
    """

    dead_letter: int
    queue: str
    endpoint: str
    priority: int
    kind: str
    reason: str
    dead: str
    enqueued: str
    attempts: int
    routes: list[str]
    bytes: int


class DeadLettersDocument(TypedDict):
    """A page of dead letters.

    Attributes:
        total: Of all queues.
        next: `after` of the next page, null = this is the last.
    """

    total: int
    next: int | None
    dead_letters: list[DeadLetterDocument]


class RowsDocument(TypedDict):
    """How many dead letters were requeued or removed."""

    rows: int
    bytes: int


class TraceDocument(TypedDict):
    """What the journal has of a message.

    Attributes:
        complete: Earlier events, too.
    """

    complete: bool
    events: list[dict[str, Any]]


class WhyDocument(TypedDict):
    """Where a message is, and why.

    Attributes:
        asked: The id that was searched for.
        message: The hub's id, null = not known.
        by: Whose id was searched for, `hub` or `sender`.
        complete: All messages were searched.
        copies: One for each queue that holds it, with what it waits for.
        journal: Null = the hub keeps no journal, or the message is not known.
    """

    asked: str
    message: str | None
    by: str
    looked_at_rows: int
    complete: bool
    state: str
    copies_total: int
    copies: list[dict[str, Any]]
    dead_letters: list[DeadLetterDocument]
    journal: TraceDocument | None

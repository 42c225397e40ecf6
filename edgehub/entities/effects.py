"""Effects of a message at the mapper: rows for the cloud, local messages, changes of tables.

Owns no state and calls nothing. The mapper does no I/O; its caller carries these out, rows and
changes in one transaction. Plain slotted classes, as several are built per message.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

if TYPE_CHECKING:
    from edgehub.entities.tables import EntityTable


class Instant(NamedTuple):
    """A moment in both times of the hub.

    Attributes:
        hub_ms: Hub time in milliseconds; never steps. Limits of age count in it.
        wall_ms: UTC in milliseconds since 1970; the time of a message without one.
    """

    hub_ms: int
    wall_ms: int


class OutputName(StrEnum):
    """Outputs of the module `c8y-mapper`, for the sources of routes."""

    INVENTORY = "inventory"
    MEASUREMENTS = "measurements"
    EVENTS = "events"
    ALARMS = "alarms"
    TWIN = "twin"
    HEALTH = "health"
    OPERATIONS = "operations"


class Output(Struct, eq=False):
    """A row for the cloud.

    Attributes:
        output: Which output of the mapper it leaves by.
        topic: Topic at the cloud, with the local prefix.
        payload: Payload bytes.
        device: External id of the entity it is about.
        creates: Topic id of the entity that it creates, None = it creates none. It has no time to
            live and is never displaced.
        needs: External ids of the entities of which one has a creating row that must be confirmed
            first, as long as it waits for the same endpoint; the first that has one counts.
    """

    output: OutputName
    topic: str
    payload: bytes
    device: str
    creates: str | None
    needs: tuple[str, ...]


class LocalPublish(Struct, eq=False):
    """A message for clients of the local topic space.

    Attributes:
        topic: Topic name.
        payload: Payload bytes; empty and retained clears the topic.
        retain: Whether it stays as the topic's last value.
    """

    topic: str
    payload: bytes
    retain: bool


class TableChange(Struct, eq=False):
    """One row of a table of the store to write, or to delete.

    Attributes:
        table: Which table.
        key: Its key columns.
        value: The columns behind them, None = delete the row.
    """

    table: EntityTable
    key: tuple[str | int, ...]
    value: tuple[str | int | bytes, ...] | None


Effect = Output | LocalPublish | TableChange

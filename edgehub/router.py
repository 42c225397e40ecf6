"""Between heads and store: decide where a message goes, then hand it to all its queues at once.

Owns the current route table and the count of messages that no route wanted. Invariant: a message is
evaluated against one whole table, the old one or the new one, never a mixture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.message import Message, Refusal
    from edgehub.routes.table import RouteTable
    from edgehub.store.store import Store

log = structlog.get_logger(__name__)


class Router:
    """Evaluates messages against the current table and appends them to the store."""

    __slots__ = ("_append", "_evaluate", "_table", "_told_at", "unrouted_total")

    def __init__(self, table: RouteTable, store: Store) -> None:
        self._table = table
        self._evaluate = table.evaluate
        self._append = store.append
        self.unrouted_total = 0
        self._told_at = 1

    @property
    def table(self) -> RouteTable:
        """Give the table in force."""
        return self._table

    def replace(self, table: RouteTable) -> None:
        """Put another table in force; messages submitted from now on use it."""
        self._table = table
        self._evaluate = table.evaluate

    def submit(
        self, message: Message, settle: Callable[[int, Refusal | None], None], token: int
    ) -> None:
        """Route and store one message; see `edgehub.heads.head.Submit`.

        A message that no route wants is acknowledged and counted, as in the original hub.
        """
        results = self._evaluate(message)
        if results:
            self._append(message, results, settle, token)
        else:
            self._count_unrouted(message)
            settle(token, None)

    def offer(
        self, message: Message, settle: Callable[[int, Refusal | None], None], token: int
    ) -> None:
        """Route and store a message that has its receivers anyway; see `submit`."""
        results = self._evaluate(message)
        if results:
            self._append(message, results, settle, token)
        else:
            settle(token, None)

    def _count_unrouted(self, message: Message) -> None:
        self.unrouted_total += 1
        if self.unrouted_total == self._told_at:
            # The first, the tenth, the hundredth: enough to be noticed, never a flood.
            self._told_at *= 10
            log.warning(
                "router.messages_unrouted",
                total=self.unrouted_total,
                device_id=message.device_id,
                source=message.source,
            )

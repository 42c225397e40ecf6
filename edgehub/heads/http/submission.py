"""The submission of the messages of one request.

Owns the count of unsettled messages. Invariants: none is submitted before all are built; `on_done`
is called once, after the last one is settled; if the connection ends earlier, they are still
counted until they are settled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgehub.heads.mqtt.backlog import MESSAGE_OVERHEAD_BYTES
from edgehub.message import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from edgehub.devices.bounds import Usage
    from edgehub.heads.head import Submit
    from edgehub.heads.mqtt.backlog import Backlog
    from edgehub.message import Message


class Submission:
    """One submission.

    Args:
        messages: Builds the messages of the request.
        backlog: Unsettled bytes of all clients.
        usage: Those of clients of this kind.
        on_done: Called once all are settled, unless they were when `go_on` returned.

    Attributes:
        stored: Messages that are durable.
        refused: Index and refusal of the first refused message, None = none was refused.
    """

    __slots__ = (
        "_backlog",
        "_building",
        "_left",
        "_messages",
        "_next",
        "_on_done",
        "_started",
        "_usage",
        "refused",
        "stored",
    )

    def __init__(
        self,
        messages: Iterator[Message],
        backlog: Backlog,
        usage: Usage,
        on_done: Callable[[Submission], None],
    ) -> None:
        self._building = messages
        self._messages: list[Message] = []
        self._next = 0
        self._backlog = backlog
        self._usage = usage
        self._on_done = on_done
        self._left = 0
        self._started = False
        self.stored = 0
        self.refused: tuple[int, Refusal] | None = None

    @property
    def is_settled(self) -> bool:
        """Whether all messages are settled."""
        return not self._left

    def go_on(self, submit: Submit, is_long: Callable[[], bool]) -> bool:
        """Build and submit messages until `is_long`; returns whether all are submitted.

        Raises:
            RequestError: If one of them is malformed; none is submitted.
        """
        for message in self._building:
            self._messages.append(message)
            if is_long():
                return False
        count = len(self._messages)
        while self._next < count:
            index, self._next = self._next, self._next + 1
            message = self._messages[index]
            self._left += 1
            self._usage.used += len(message.body) + MESSAGE_OVERHEAD_BYTES
            submit(message, self._settle, index)
            if self.refused is not None:
                # Later messages would leave a gap; earlier ones are stored already.
                break
            if self._next < count and is_long():
                return False
        self._started = True
        return True

    def _settle(self, index: int, refusal: Refusal | None) -> None:
        self._usage.used -= len(self._messages[index].body) + MESSAGE_OVERHEAD_BYTES
        self._left -= 1
        if refusal is None or refusal is Refusal.UNROUTED:
            self.stored += 1
        elif self.refused is None or index < self.refused[0]:
            self.refused = (index, refusal)
        if not self._left:
            self._backlog.check()
            if self._started:
                self._on_done(self)

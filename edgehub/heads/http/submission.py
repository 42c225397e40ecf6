"""The messages of one request on their way to the disk.

Owns the count of those that are not settled. Invariants: none is handed in before all are built;
`on_done` is called once, after the last one is settled; nobody needs to wait for it, what was
handed in is counted to the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgehub.heads.mqtt.backlog import MESSAGE_OVERHEAD_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from edgehub.devices.bounds import Usage
    from edgehub.heads.head import Submit
    from edgehub.heads.mqtt.backlog import Backlog
    from edgehub.message import Message, Refusal


class Submission:
    """See the module.

    Args:
        messages: Builds the messages of the request.
        backlog: Counts what is not settled.
        held: The part of it for clients of this kind.
        on_done: Called once all are settled, unless that was so when `start` returned.

    Attributes:
        stored: Messages that are durable.
        refused: Index of the first message that was not taken, and why; None = all were.
    """

    __slots__ = (
        "_backlog",
        "_building",
        "_held",
        "_left",
        "_messages",
        "_next",
        "_on_done",
        "_started",
        "refused",
        "stored",
    )

    def __init__(
        self,
        messages: Iterator[Message],
        backlog: Backlog,
        held: Usage,
        on_done: Callable[[Submission], None],
    ) -> None:
        self._building = messages
        self._messages: list[Message] = []
        self._next = 0
        self._backlog = backlog
        self._held = held
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
        """Build and hand in messages until that has taken long; returns whether all are handed in.

        Raises:
            RequestError: If one of them is wrong; none is handed in.
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
            self._held.used += len(message.body) + MESSAGE_OVERHEAD_BYTES
            submit(message, self._settle, index)
            if self.refused is not None:
                # What follows would leave a hole; what is before it cannot be taken back.
                break
            if self._next < count and is_long():
                return False
        self._started = True
        return True

    def _settle(self, index: int, refusal: Refusal | None) -> None:
        self._held.used -= len(self._messages[index].body) + MESSAGE_OVERHEAD_BYTES
        self._left -= 1
        if refusal is None:
            self.stored += 1
        elif self.refused is None or index < self.refused[0]:
            self.refused = (index, refusal)
        if not self._left:
            self._backlog.check()
            if self._started:
                self._on_done(self)

"""The messages of one request on their way to the disk.

Owns the count of those that are not settled. Invariant: `on_done` is called once, after the last
one is settled; nobody needs to wait for it, what was handed in is counted to the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgehub.heads.mqtt.backlog import MESSAGE_OVERHEAD_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from edgehub.devices.bounds import Usage
    from edgehub.heads.head import Submit
    from edgehub.heads.mqtt.backlog import Backlog
    from edgehub.message import Message, Refusal


class Submission:
    """See the module.

    Args:
        messages: All messages of the request.
        backlog: Counts what is not settled.
        held: The part of it for clients of this kind.
        on_done: Called once all are settled, unless that was so when `start` returned.

    Attributes:
        stored: Messages that are durable.
        refused: Index of the first message that was not taken, and why; None = all were.
    """

    __slots__ = (
        "_backlog",
        "_held",
        "_left",
        "_messages",
        "_on_done",
        "_started",
        "refused",
        "stored",
    )

    def __init__(
        self,
        messages: Sequence[Message],
        backlog: Backlog,
        held: Usage,
        on_done: Callable[[Submission], None],
    ) -> None:
        self._messages = messages
        self._backlog = backlog
        self._held = held
        self._on_done = on_done
        self._left = 0
        self._started = False
        self.stored = 0
        self.refused: tuple[int, Refusal] | None = None

    def start(self, submit: Submit) -> bool:
        """Hand the messages in; gives whether all are settled already."""
        for index, message in enumerate(self._messages):
            self._left += 1
            self._held.used += len(message.body) + MESSAGE_OVERHEAD_BYTES
            submit(message, self._settle, index)
            if self.refused is not None:
                # What follows would leave a hole; what is before it cannot be taken back.
                break
        self._started = True
        return not self._left

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

"""What the list model keeps of one message in one queue, and of one queue.

Plain facts; `tests.support.model` judges them.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from edgehub.message import NEVER_MS

if TYPE_CHECKING:
    from edgehub.message import EndpointId, Priority, SendResult

    Key = tuple[EndpointId, Priority]


class Copy:
    """One copy of one message, or what became of it.

    Attributes:
        accepted: The sender was told that it is stored.
        out: The pump has it.
        on_link: The endpoint has it and has not answered.
        result: The answer, until the pump has told the queue what to do.
        again: It may have to follow an earlier one of its sender that was refused.
        blocks: The pump knows that it was refused: later ones of its sender wait.
        left: Why it leaves its queue: "sent", "expired" or "dead"; still in the file, maybe.
        early: It left before its commit and was never written.
        disowned: It was read before its commit and then refused to its sender.
        gone: It was seen missing in the file; nothing brings it back.
        attempts: Refused sends; the file knows `stored_attempts` of them or more.
        denials: How often the endpoint said that it takes nothing of the sender.
        not_before_s: Its back-off lasts until then at least.
        back_s: When the pump last gave it back.
        condemned: It was passed by, so a limit must have taken it out: it may never be read.
        fallback: Where it belongs from `stale_ms` on, None = it has no recency, or has moved.
        has_moved: It has gone there, so that rows which it should have preceded may have left.
    """

    def __init__(
        self,
        key: Key,
        token: int,
        sender: str,
        enqueued_ms: int,
        expires_ms: int,
        fallback: tuple[Key, int] | None = None,
    ) -> None:
        self.key = key
        self.fallback, self.stale_ms = fallback or (None, NEVER_MS)
        self.has_moved = False
        self.token = token
        self.sender = sender
        self.enqueued_ms = enqueued_ms
        self.expires_ms = expires_ms
        self.offset = -1
        self.sends = 0
        self.attempts = 0
        self.stored_attempts = 0
        self.denials = 0
        self.accepted = False
        self.left = ""
        self.early = False
        self.disowned = False
        self.gone = False
        self.blocks = False
        self.forget()

    def forget(self) -> None:
        """Forget what a restart forgets."""
        self.out = False
        self.on_link = False
        self.result: SendResult | None = None
        self.again = False
        self.condemned = False
        self.not_before_s = self.back_s = 0.0

    def __repr__(self) -> str:
        flags = [name for name, value in vars(self).items() if value is True]
        return f"<{self.token} of {self.sender} in {self.key}, {self.sends} sends, {flags}>"

    def waits(self, now_ms: int) -> bool:
        """Return whether it must still be delivered."""
        return not (self.gone or self.left or self.disowned) and self.expires_ms > now_ms

    @property
    def was_busy(self) -> bool:
        """Return whether it may have been on its way when others gave way."""
        return bool(self.sends or self.attempts or self.out or self.left or self.has_moved)

    def is_stale(self, now_ms: int) -> bool:
        """Return whether it must not be sent from the queue that it is in."""
        return self.fallback is not None and self.stale_ms <= now_ms


class Line:
    """One queue: its copies in order, and who is kept back.

    Attributes:
        live: Copies that are not gone, in order.
        gone_offset: Highest offset that left the file below the lowest row.
        enqueued, sent, expired, dead, dropped: Counts of this life.
    """

    def __init__(self, key: Key) -> None:
        self.key = key
        self.live: dict[int, Copy] = {}
        self.unsent: dict[str, dict[int, Copy]] = defaultdict(dict)
        self.refused: dict[str, dict[int, Copy]] = defaultdict(dict)
        self.gone_offset = 0
        self.start(0)

    def start(self, depth: int) -> None:
        """Begin a life with so many rows in the file."""
        self.depth_at_start = depth
        self.enqueued = self.sent = self.dead = self.dropped = 0
        self.held: dict[str | int, float] = {}
        self.trials: dict[str, Copy] = {}
        self.delayed_from_s = self.delayed_until_s = 0.0
        self.read_after_s = 0.0

    @property
    def out(self) -> bool:
        """Return whether the pump has some of its rows."""
        return any(copy.out for copy in self.live.values())

    def ready(self, now_s: float, now_ms: int) -> list[Copy]:
        """List the copies that a read must give now, in order."""
        if now_s < self.read_after_s:
            return []
        return [
            copy
            for copy in self.live.values()
            if copy.accepted
            and not copy.out
            and copy.waits(now_ms)
            and not copy.is_stale(now_ms)
            and not copy.condemned
            and copy.sender not in self.held
            and copy.offset not in self.held
        ]

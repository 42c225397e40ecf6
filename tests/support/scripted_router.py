"""A router that settles when the test says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.message import Message, Refusal


class ScriptedRouter:
    """Takes messages; settles them at once, or when told to.

    Attributes:
        refusals: What the next messages are refused with, by their place in all that came.
        told: Device, bytes and reason of messages that heads have not handed in.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.holding = False
        self.told: list[tuple[str, int, str]] = []
        self.refusals: dict[int, Refusal] = {}
        self.pending: list[tuple[Callable[[int, Refusal | None], None], int]] = []

    def submit(
        self, message: Message, settle: Callable[[int, Refusal | None], None], token: int
    ) -> None:
        """See `edgehub.heads.head.Submit`."""
        place = len(self.messages)
        self.messages.append(message)
        if self.holding:
            self.pending.append((settle, token))
        else:
            settle(token, self.refusals.get(place))

    def refused(self, device: str, size: int, reason: str) -> None:
        """See `edgehub.heads.head.Refused`."""
        self.told.append((device, size, reason))

    def settle(self, count: int | None = None, *, refusal: Refusal | None = None) -> None:
        """Settle the oldest held messages, all by default."""
        held = self.pending[:count]
        del self.pending[:count]
        for settle, token in held:
            settle(token, refusal)

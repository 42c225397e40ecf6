"""The contracts of protocol heads: bytes in, `Message` out, acknowledgement after the commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.message import Message, Refusal, SendResult

    Settle = Callable[[int, Refusal | None], None]


class Submit(Protocol):
    """The router as a head uses it."""

    def __call__(self, message: Message, settle: Settle, token: int) -> None:
        """Route and store `message` without waiting.

        `settle(token, None)` is called once the message is durable, `settle(token, refusal)` when
        it is not taken; on the loop's thread, possibly before this call returns. The head keeps
        the order of acknowledgements that its protocol requires, and acknowledges a message that
        no route takes.
        """


class Refused(Protocol):
    """The journal of messages that heads do not submit."""

    def __call__(self, device: str, size: int, reason: str) -> None:
        """Record that a message was not submitted because of a limit or of its content.

        Args:
            device: Signed-in sender; empty = none.
            size: Bytes of its body, or the announced ones of a body that was not read.
            reason: One of a closed set.
        """


class WaitingMessage(Struct, frozen=True, kw_only=True):
    """A message to a client, taken to be sent to it now.

    Attributes:
        message: As the client gets it.
        settle: Called once, with what became of it.
        written: Called when it leaves this process.
        has_more: Another one waits for the client.
    """

    message: Message
    settle: Callable[[SendResult], None]
    written: Callable[[], None]
    has_more: bool = False


class SendToClient(Protocol):
    """Sends messages to clients that listen."""

    def __call__(
        self,
        target: str,
        bag: str,
        message: Message,
        settle: Callable[[SendResult], None],
        *,
        dup: bool,
        written: Callable[[], None],
    ) -> None:
        """Send a message; `settle` is called once, `written` when it leaves this process."""


class Head(Protocol):
    """A head."""

    async def open(self) -> None:
        """Bind and listen; raises `StartupError` when the address cannot be bound."""

    async def run(self) -> None:
        """Serve until cancelled."""

    async def drain(self) -> None:
        """Stop accepting connections and messages; messages taken before are still acknowledged."""

    async def close(self) -> None:
        """Close what is left."""

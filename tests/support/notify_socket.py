"""The service manager's end of the notification socket: a bound datagram socket."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

Message = dict[str, str]


class NotifySocket:
    """Receives what a daemon tells.

    Args:
        address: A path, or `@` and a name of the abstract space.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.messages: list[Message] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)

    def receive(self, timeout_s: float) -> Message:
        """Return the next datagram by key.

        Raises:
            TimeoutError: If none comes.
        """
        self._socket.settimeout(timeout_s)
        text = self._socket.recv(65_536).decode()
        message = dict(line.split("=", 1) for line in text.strip("\n").split("\n"))
        self.messages.append(message)
        return message

    def wait_for(self, key: str, value: str | None = None, *, timeout_s: float = 15.0) -> Message:
        """Return the next datagram that has a key, and that value of it."""
        while True:
            message = self.receive(timeout_s)
            if key in message and value in (None, message[key]):
                return message

    def waiting(self) -> list[Message]:
        """Return what has come so far and was not received yet."""
        found: list[Message] = []
        while True:
            try:
                found.append(self.receive(0.0))
            except BlockingIOError:
                return found

    def close(self) -> None:
        """Hear no more."""
        self._socket.close()
        if not self.address.startswith("@"):
            Path(self.address).unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

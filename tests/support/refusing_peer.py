"""An MQTT peer that lets nobody in, with a thread of its own, for tests that block."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

NOT_AUTHORIZED = b"\x20\x02\x00\x05"


class RefusingPeer:
    """Answers every CONNECT with "not authorised", after which a hub waits for a minute."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self.refused = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="refusing peer", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(5)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                connection.recv(4096)
                connection.sendall(NOT_AUTHORIZED)
                self.refused.set()

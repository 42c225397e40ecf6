"""The command line's side of the control socket.

Owns one short connection per call. Invariant: the database file is never opened from here.
"""

from __future__ import annotations

import contextlib
import json
import socket
from typing import TYPE_CHECKING, Any, Final

from edgehub.control.socket_path import address
from edgehub.errors import DaemonUnreachableError, EdgeHubError

if TYPE_CHECKING:
    from pathlib import Path

TIMEOUT_S: Final = 10.0


class CommandError(EdgeHubError):
    """The daemon refused a command; the text is its own."""


def call(path: Path, command: str, **arguments: Any) -> Any:
    """Ask the daemon and give its result.

    Args:
        path: Control socket.
        command: Name of the command.
        arguments: JSON values for the command.

    Raises:
        DaemonUnreachableError: If nobody answers there within `TIMEOUT_S`.
        CommandError: If the daemon answers with an error.
    """
    request = json.dumps({"command": command, "arguments": arguments}).encode() + b"\n"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(TIMEOUT_S)
            with address(path) as name:
                connection.connect(name)
            with contextlib.suppress(BrokenPipeError):
                # A hub that turns us away closes without reading, but says why.
                connection.sendall(request)
            with connection.makefile("rb") as lines:
                answer = lines.readline()
    except OSError as error:
        reason = error.strerror or str(error)
        msg = (
            f"no hub answers on {path.absolute()}: {reason} (is it running? is data_dir the same?)"
        )
        raise DaemonUnreachableError(msg) from error
    if not answer.endswith(b"\n"):
        msg = f"the hub on {path} closed the connection without a whole answer"
        raise DaemonUnreachableError(msg)
    document = json.loads(answer)
    if not document["ok"]:
        raise CommandError(document["error"])
    return document["result"]

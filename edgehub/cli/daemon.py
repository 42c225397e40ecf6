"""The command line's side of the control socket.

Owns one short connection per call. Invariant: the database file is never opened from here.
"""

from __future__ import annotations

import contextlib
import json
import socket
from pathlib import Path
from typing import Any, Final

from edgehub.cli.output import print_line
from edgehub.control.socket_path import address
from edgehub.errors import DaemonUnreachableError, EdgeHubError
from edgehub.settings import SettingsError, find_hub, load_settings

TIMEOUT_S: Final = 10.0
_NO_FILE: Final = (
    "there is no edgehub.toml here: run the command in the hub's folder, or name --config FILE"
    " before it"
)
_NO_FOLDER: Final = (
    "data_dir is not set and so counts from the working folder: run the command in the hub's"
    " folder, or set data_dir"
)


class CommandError(EdgeHubError):
    """The daemon refused a command; the text is its own.

    Attributes:
        members: What is wrong, for programs, where the daemon has more than a text; else empty.
    """

    def __init__(self, reason: str, members: dict[str, Any] | None = None) -> None:
        super().__init__(reason)
        self.members = members or {}


class RunningHub:
    """The hub that runs, found by the settings as far as they can be read.

    A fault in them keeps nobody from a hub that answers: then it is a warning, once.

    Args:
        config: Settings file, None = none.

    Raises:
        SettingsError: If they do not even say where it is.
    """

    def __init__(self, config: Path | None) -> None:
        self._fault: SettingsError | None = None
        try:
            settings = load_settings(config)
        except SettingsError as error:
            found = find_hub(config)
            if found is None:
                raise
            settings = found
            self._fault = error
        self._path = settings.control_path
        self._hint = ""
        if config is None:
            self._hint = _NO_FILE
        elif "data_dir" not in settings.model_fields_set and not self._path.is_absolute():
            is_here = config.resolve().parent == Path.cwd()
            self._hint = "" if is_here or settings.control_socket else _NO_FOLDER

    def call(self, command: str, **arguments: Any) -> Any:
        """Ask it as `call` does.

        Raises:
            SettingsError: If nobody answers and the settings are wrong.
            DaemonUnreachableError: If nobody answers though they are right.
            CommandError: If the daemon answers with an error.
        """
        try:
            answer = call(self._path, command, **arguments)
        except DaemonUnreachableError as error:
            if self._fault is not None:
                raise self._fault from None
            if self._hint:
                raise DaemonUnreachableError(f"{error}; {self._hint}") from error
            raise
        except CommandError:
            self._warn()
            raise
        self._warn()
        return answer

    def _warn(self) -> None:
        if self._fault is not None:
            fault = f"{self._fault.key}: {self._fault.reason}"
            print_line(f"warning: {fault} (edgehub config validate lists all)", err=True)
            self._fault = None


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
        raise CommandError(document["error"], document.get("members"))
    return document["result"]

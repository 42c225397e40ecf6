"""The command line's side of the control socket.

Owns one short connection per call. Invariant: the database file is never opened from here.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from edgehub.cli.output import end_as_json, print_line
from edgehub.cli.refusal import CommandError
from edgehub.control.socket_path import address
from edgehub.errors import DaemonUnreachableError
from edgehub.storage.hub_folder import quick_control_path, settings_digest

if TYPE_CHECKING:
    from edgehub.settings import Settings, SettingsError

TIMEOUT_S: Final = 10.0
_NO_FILE: Final = (
    "there is no edgehub.toml here: run the command in the hub's folder, or name --config FILE"
    " before it"
)
_NO_FOLDER: Final = (
    "data_dir is not set and so counts from the working folder: run the command in the hub's"
    " folder, or set data_dir"
)


class RunningHub:
    """The hub that runs, found by the settings as far as they can be read.

    A fault in them keeps no command from a hub that answers: then it is a warning, once. Settings
    that a hub runs with have no faults, so they are read here only if they are others.

    Args:
        config: Settings file, None = none.

    Raises:
        SettingsError: If they do not even say where it is.
    """

    def __init__(self, config: Path | None) -> None:
        self._config = config
        self._fault: SettingsError | None = None
        self._is_checked = False
        path = quick_control_path(config)
        self._path = self._read_path() if path is None else path

    def call(self, command: str, answer_s: float, **arguments: Any) -> Any:
        """Return the result of a command; see `ask_hub`.

        Raises:
            SettingsError: If no hub answers and the settings are wrong.
            DaemonUnreachableError: If no hub answers though they are right.
            CommandError: If the daemon answers with an error.
        """
        try:
            answer = exchange(self._path, command, answer_s, **arguments)
        except DaemonUnreachableError as error:
            self._check()
            if self._fault is not None:
                raise self._fault from None
            if hint := self._hint():
                raise DaemonUnreachableError(f"{error}; {hint}") from error
            raise
        if not self._is_checked and answer.get("settings") != _digest(self._config):
            self._check()
        self._warn()
        return result_of(answer)

    def _read_path(self) -> Path:
        from edgehub.settings import find_hub  # noqa: PLC0415 - takes long, and most need it not

        self._check()
        if self._fault is None:
            return self._settings().control_path
        found = find_hub(self._config)
        if found is None:
            raise self._fault
        return found.control_path

    def _check(self) -> None:
        from edgehub.settings import SettingsError  # noqa: PLC0415 - likewise

        if self._is_checked:
            return
        self._is_checked = True
        try:
            self._settings()
        except SettingsError as error:
            self._fault = error

    def _settings(self) -> Settings:
        from edgehub.settings import load_settings  # noqa: PLC0415 - likewise

        return load_settings(self._config)

    def _hint(self) -> str:
        if self._config is None:
            # A service may have none, and its folders are known all the same.
            return "" if os.environ.get("CONFIGURATION_DIRECTORY") else _NO_FILE
        settings = self._settings()
        is_here = self._config.resolve().parent == Path.cwd()
        is_set = "data_dir" in settings.model_fields_set or settings.control_socket
        return "" if is_here or is_set or self._path.is_absolute() else _NO_FOLDER

    def _warn(self) -> None:
        if self._fault is not None:
            fault = f"{self._fault.key}: {self._fault.reason}"
            print_line(f"warning: {fault} (edgehub config validate lists all)", err=True)
            self._fault = None


def _digest(config: Path | None) -> str | None:
    try:
        return settings_digest(config)
    except OSError:
        return None


def ask_hub(
    obj: dict[str, Any], command: str, answer_s: float = TIMEOUT_S, **arguments: Any
) -> Any:
    """Return the answer of the hub that the settings of a command line name.

    Args:
        obj: Of the command line; keeps the hub, so that wrong settings are a warning once.
        command: Name of the command.
        answer_s: Longest time until its answer, in seconds.
        arguments: Of the command.

    Raises:
        SettingsError: If the settings are wrong, and no hub answers.
        DaemonUnreachableError: If no hub answers.
        CommandError: If the hub refuses the command.
    """
    if "hub" not in obj:
        obj["hub"] = RunningHub(obj["config"])
    return obj["hub"].call(command, answer_s, **arguments)


def answer_of(obj: dict[str, Any], command: str, **arguments: Any) -> Any:
    """Return the answer of the hub to be shown, unless it was to be JSON: then the command ends."""
    answer = ask_hub(obj, command, **arguments)
    end_as_json(answer)
    return answer


def exchange(
    path: Path, command: str, answer_s: float = TIMEOUT_S, **arguments: Any
) -> dict[str, Any]:
    """Ask the hub and return its whole answer.

    Args:
        path: Control socket.
        command: Name of the command.
        answer_s: Longest silence of the hub, in seconds.
        arguments: JSON values for the command.

    Raises:
        DaemonUnreachableError: If no hub answers there in time.
    """
    request = json.dumps({"command": command, "arguments": arguments}).encode() + b"\n"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(answer_s)
            with address(path) as name:
                connection.connect(name)
            with contextlib.suppress(BrokenPipeError):
                # A hub with too many clients closes without reading, but says why.
                connection.sendall(request)
            with connection.makefile("rb") as lines:
                answer = lines.readline()
    except OSError as error:
        reason = error.strerror or str(error)
        raise DaemonUnreachableError(
            f"no hub answers on {path.absolute()}: {reason} (is it running? is data_dir the same?)"
        ) from error
    if not answer.endswith(b"\n"):
        raise DaemonUnreachableError(
            f"the hub on {path} closed the connection without a whole answer"
        )
    document: dict[str, Any] = json.loads(answer)
    return document


def result_of(answer: dict[str, Any]) -> Any:
    """Return the result in an answer.

    Raises:
        CommandError: It is a refusal.
    """
    if not answer["ok"]:
        raise CommandError(answer["problem"])
    return answer["result"]

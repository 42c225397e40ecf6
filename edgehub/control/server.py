"""Control socket of the daemon: one JSON object per line in, one per line out.

Owns the socket file and its connections; what the commands do belongs to the hub, which passes them
in. The socket's mode is 0600: who may open it may operate the hub. Invariants: a bad request is
answered with an error and affects no other; a client that neither asks nor reads holds neither
its place nor the hub's end.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import stat
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import orjson
import structlog

from edgehub.control.socket_path import address
from edgehub.errors import EdgeHubError, StartupError
from edgehub.operations.encoding import encoded
from edgehub.operations.problem import ProblemError, problem_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from edgehub.operations.operation import Handler

REQUEST_BYTES_MAX: Final = 4 * 2**20
"""A manifest must fit."""

CLIENTS_MAX: Final = 16
SILENCE_MAX_S: Final = 60.0
"""Time for a client to ask, and to read its answer."""

_CROWDED: Final = ProblemError(
    HTTPStatus.SERVICE_UNAVAILABLE,
    "too_many_connections",
    f"{CLIENTS_MAX} others use the control socket; try again in a moment",
)

log = structlog.get_logger(__name__)


class ControlServer:
    """Answers commands on a unix socket.

    Args:
        path: Where the socket file goes; an old file that no process serves is replaced.
        commands: Name of each command and the coroutine function that carries it out. It gets the
            request's `arguments` and returns what JSON can hold; an `EdgeHubError` becomes the
            error answer.
        digest: Returns the digest of the settings file in force.
        silence_max_s: Time for a client to ask, and to read its answer.
    """

    __slots__ = ("_clients", "_commands", "_digest", "_idle", "_path", "_server", "_silence_max_s")

    def __init__(
        self,
        path: Path,
        commands: Mapping[str, Handler],
        digest: Callable[[], str] = lambda: "",
        *,
        silence_max_s: float = SILENCE_MAX_S,
    ) -> None:
        self._path = path
        self._commands = commands
        self._digest = digest
        self._silence_max_s = silence_max_s
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.StreamWriter] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    async def open(self) -> None:
        """Bind the socket.

        Raises:
            StartupError: If the path is in use, not writable, or its last part too long.
        """
        await self._remove_stale()
        listening = socket.socket(socket.AF_UNIX)
        try:
            with address(self._path) as name:
                listening.bind(name)
            # No client can connect before `listen`, so a wider mode until here is harmless.
            self._path.chmod(0o600)
            self._server = await asyncio.start_unix_server(
                self._serve, sock=listening, limit=REQUEST_BYTES_MAX
            )
        except OSError as error:
            listening.close()
            raise self._unusable(error) from error

    async def close(self) -> None:
        """Stop answering and remove the socket file."""
        if self._server is None:
            return
        self._server.close()
        for writer in self._clients:
            # Not `close`: that would wait for a client which does not read.
            writer.transport.abort()
        await self._server.wait_closed()
        await self._idle.wait()
        self._server = None
        self._path.unlink(missing_ok=True)

    async def _remove_stale(self) -> None:
        # The database's lock shows whether another daemon runs on this directory; a socket file
        # without a listener is what a killed daemon left.
        try:
            mode = self._path.stat().st_mode
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._unusable(error) from error
        if not stat.S_ISSOCK(mode):
            raise StartupError(
                f"{self._path} is in the way of the control socket and is no socket"
                " (move it away, or set control_socket to another path)"
            )
        try:
            with address(self._path) as name:
                _, writer = await asyncio.open_unix_connection(name)
        except ConnectionRefusedError:
            self._path.unlink(missing_ok=True)
            return
        except OSError as error:
            raise self._unusable(error) from error
        writer.close()
        raise StartupError(
            f"another process serves the control socket {self._path}"
            " (stop it, or set another data_dir)"
        )

    def _unusable(self, error: OSError) -> StartupError:
        msg = f"cannot open the control socket {self._path}: {error.strerror or error}"
        hint = "set control_socket to another path that this user may write"
        if error.errno == errno.ENOSPC:
            hint = "free space or inodes, or set control_socket to a path elsewhere"
        return StartupError(f"{msg} ({hint})")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._clients) >= CLIENTS_MAX:
            writer.write(self._refused(_CROWDED))
            writer.close()
            return
        self._clients.add(writer)
        self._idle.clear()
        try:
            while line := await self._read_line(reader):
                answer = await self._answer(line)
                if writer.is_closing():
                    break
                writer.write(answer)
                async with asyncio.timeout(self._silence_max_s):
                    await writer.drain()
        except (ConnectionError, TimeoutError):
            # The command line has ended, or does not read.
            writer.transport.abort()
        finally:
            writer.close()
            self._clients.discard(writer)
            if not self._clients:
                self._idle.set()

    async def _read_line(self, reader: asyncio.StreamReader) -> bytes:
        try:
            async with asyncio.timeout(self._silence_max_s):
                return await reader.readline()
        except ValueError:
            # Over the limit: what follows cannot be separated from the next request.
            log.warning("control.request_refused", bytes_max=REQUEST_BYTES_MAX)
            return b""

    async def _answer(self, line: bytes) -> bytes:
        try:
            request = orjson.loads(line)
            name, arguments = request["command"], request.get("arguments", {})
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            name, arguments = None, None
        if not isinstance(arguments, dict):
            return self._refused(_bad('want {"command": name, "arguments": {...}} on one line'))
        command = self._commands.get(name) if isinstance(name, str) else None
        if command is None:
            known = ", ".join(sorted(self._commands))
            return self._refused(_bad(f"unknown command {name!r} (known: {known})"))
        try:
            return self._encoded({"ok": True, "result": await command(arguments)})
        except EdgeHubError as error:
            problem = problem_of(error)
            return self._refused(problem or _failed(str(error)))
        except Exception as error:
            # A supervision point: a fault in a command must not stop the hub, nor leave the
            # command without an answer.
            log.exception("control.command_failed", command=name)
            return self._refused(
                _failed(f"the hub failed over {name!r}: {error!r}; its log has more")
            )

    def _refused(self, problem: ProblemError) -> bytes:
        document = problem.document()
        # A path may hold bytes that are no text.
        document["detail"] = document["detail"].encode("utf-8", "replace").decode()
        return self._encoded({"ok": False, "problem": document})

    def _encoded(self, answer: dict[str, Any]) -> bytes:
        return encoded({**answer, "settings": self._digest()}) + b"\n"


def _bad(detail: str) -> ProblemError:
    return ProblemError(HTTPStatus.BAD_REQUEST, "bad_request", detail)


def _failed(detail: str) -> ProblemError:
    return ProblemError(HTTPStatus.INTERNAL_SERVER_ERROR, "internal_error", detail)

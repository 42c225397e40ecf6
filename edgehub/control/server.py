"""Control socket of the daemon: one JSON object per line in, one per line out.

Owns the socket file and its connections; what the commands do belongs to the hub, which passes them
in. The socket's mode is 0600: who may open it may operate the hub. Invariant: a bad request is
answered with an error and disturbs nobody else.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

import orjson
import structlog

from edgehub.errors import EdgeHubError, StartupError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    Command = Callable[[Mapping[str, Any]], Awaitable[Any]]

REQUEST_BYTES_MAX: Final = 65_536
CLIENTS_MAX: Final = 16
# sun_path holds 108 bytes with its closing zero.
_SOCKET_PATH_BYTES_MAX: Final = 107

log = structlog.get_logger(__name__)


class ControlServer:
    """Answers commands on a unix socket.

    Args:
        path: Where the socket file goes; an old file that nobody serves is replaced.
        commands: Name of each command and the coroutine function that carries it out. It gets the
            request's `arguments` and returns what JSON can hold; an `EdgeHubError` becomes the
            error answer.
    """

    __slots__ = ("_clients", "_commands", "_path", "_server")

    def __init__(self, path: Path, commands: Mapping[str, Command]) -> None:
        self._path = path
        self._commands = commands
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.StreamWriter] = set()

    async def open(self) -> None:
        """Bind the socket.

        Raises:
            StartupError: If the path is too long, in use or not writable.
        """
        if len(bytes(self._path)) > _SOCKET_PATH_BYTES_MAX:
            msg = f"control socket path is over {_SOCKET_PATH_BYTES_MAX} bytes: {self._path}"
            raise StartupError(f"{msg} (set control_socket to a shorter one)")
        await self._remove_stale()
        try:
            self._server = await asyncio.start_unix_server(
                self._serve, path=str(self._path), limit=REQUEST_BYTES_MAX
            )
            self._path.chmod(0o600)
        except OSError as error:
            msg = f"cannot open the control socket {self._path}: {error.strerror or error}"
            raise StartupError(msg) from error

    async def close(self) -> None:
        """Stop answering and remove the socket file."""
        if self._server is None:
            return
        self._server.close()
        for writer in list(self._clients):
            writer.close()
        await self._server.wait_closed()
        self._server = None
        self._path.unlink(missing_ok=True)

    async def _remove_stale(self) -> None:
        # The database's lock tells whether another daemon runs on this directory; a socket file
        # that nobody answers is what a killed daemon left.
        if not self._path.exists():
            return
        try:
            _, writer = await asyncio.open_unix_connection(str(self._path))
        except OSError:
            self._path.unlink(missing_ok=True)
            return
        writer.close()
        msg = f"another process serves the control socket {self._path}"
        raise StartupError(f"{msg} (stop it, or set another data_dir)")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._clients) >= CLIENTS_MAX:
            writer.close()
            return
        self._clients.add(writer)
        try:
            while line := await _read_line(reader):
                writer.write(_encode(await self._answer(line)))
                await writer.drain()
        except ConnectionError:
            pass  # The command line went away; there is nobody to tell.
        finally:
            self._clients.discard(writer)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = orjson.loads(line)
            name, arguments = request["command"], request.get("arguments", {})
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            return {"ok": False, "error": 'want {"command": name, "arguments": {...}} on one line'}
        command = self._commands.get(name) if isinstance(name, str) else None
        if command is None:
            known = ", ".join(sorted(self._commands))
            return {"ok": False, "error": f"unknown command {name!r} (known: {known})"}
        try:
            return {"ok": True, "result": await command(arguments)}
        except EdgeHubError as error:
            return {"ok": False, "error": str(error)}


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readline()
    except ValueError:
        # Over the limit: what follows cannot be told apart from the next request any more.
        log.warning("control.request_refused", bytes_max=REQUEST_BYTES_MAX)
        return b""


def _encode(answer: dict[str, Any]) -> bytes:
    # Statistics count by members of enumerations, which JSON knows as their texts.
    return orjson.dumps(answer, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE)

"""Connections to one Redis server: commands and scripts, and one connection per blocking reader.

Owns the sockets. Retries of redis-py are off, so that a caller knows whether its command may have
been executed (`outcome_unknown`). Each new connection counts as a new session: readers that keep a
position compare `sessions`, since they have missed what happened in between. Answers are bytes,
integers, lists or None, as RESP2 has them.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

from redis.asyncio.connection import BlockingConnectionPool, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)
from redis.exceptions import RedisError as ForeignError
from redis.exceptions import TimeoutError as LateError

from edgehub.errors import ConfigError
from edgehub.redis_link.connections import RedisTcpConnection, RedisTlsConnection
from edgehub.redis_link.faults import RedisRefusedError, RedisUnavailableError
from edgehub.storage.credentials import read_secret

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from redis.asyncio.connection import AbstractConnection

    from edgehub.redis_link.options import RedisOptions
    from edgehub.redis_link.script import Script

Argument = str | bytes | int | float
Command = tuple[Argument, ...]

BLOCK_GRACE_S: Final = 2.0
"""An answer to a blocking read may be so late beyond its time; then the link is taken for dead."""


class RedisLink:
    """The connections to one Redis server.

    Args:
        options: How the server is reached.
    """

    def __init__(self, options: RedisOptions) -> None:
        self._options = options
        self._pool = BlockingConnectionPool(
            max_connections=options.connections_max,
            timeout=options.connect_timeout_s,
            **self._arguments(),
        )
        self._readers: list[BlockingReader] = []
        self._closed = False
        self.sessions = 0
        """Connections made so far; a change means that an earlier one was lost."""

    async def call(self, *command: Argument) -> Any:
        """Carry out one command.

        Raises:
            RedisUnavailableError: There was no answer.
            RedisRefusedError: The server refused.
        """
        (answer,) = await self.calls([command])
        return answer

    async def calls(self, commands: Sequence[Command]) -> list[Any]:
        """Carry out commands on one connection, sent together; not a transaction.

        Raises:
            RedisUnavailableError: An answer is missing.
            RedisRefusedError: The server refused one; the others were carried out.
        """
        connection = await self._connect()
        try:
            return await self._converse(connection, commands, self._options.timeout_s)
        finally:
            await self._pool.release(connection)

    async def run(
        self, script: Script, keys: Sequence[Argument], arguments: Sequence[Argument]
    ) -> Any:
        """Run a script, which a server that does not know it is taught on the way.

        Raises:
            RedisUnavailableError: There was no answer.
            RedisRefusedError: The server or the script refused.
        """
        rest = (len(keys), *keys, *arguments)
        try:
            return await self.call("EVALSHA", script.sha1, *rest)
        except RedisRefusedError as error:
            if error.code != "NOSCRIPT":
                raise
        # It was not run, so it may be sent again.
        return await self.call("EVAL", script.text, *rest)

    def reader(self) -> BlockingReader:
        """Make a reader that may block without delaying the commands."""
        reader = BlockingReader(self)
        self._readers.append(reader)
        return reader

    async def close(self) -> None:
        """Close all connections; later calls are refused."""
        self._closed = True
        for reader in self._readers:
            await reader.close()
        with contextlib.suppress(ForeignError):
            await self._pool.disconnect()

    def make_connection(self) -> AbstractConnection:
        """Return a connection of the same kind that belongs to no pool; for readers."""
        connection: AbstractConnection = self._pool.make_connection()  # type: ignore[no-untyped-call]  # redis-py's own
        return connection

    async def _connect(self) -> AbstractConnection:
        try:
            async with asyncio.timeout(self._options.connect_timeout_s):
                connection: AbstractConnection = await self._pool.get_connection()  # type: ignore[no-untyped-call]  # redis-py's own
        except (ForeignError, TimeoutError, OSError) as exc:
            raise _translated(exc, outcome_unknown=False) from exc
        if self._closed:
            await connection.disconnect()
            raise RedisUnavailableError("the link is closed", outcome_unknown=False)
        return connection

    async def _converse(
        self, connection: AbstractConnection, commands: Sequence[Command], timeout_s: float
    ) -> list[Any]:
        try:
            async with asyncio.timeout(timeout_s):
                packed = connection.pack_commands(commands)
                await connection.send_packed_command(packed, check_health=False)
                answers = [await _answer(connection) for _ in commands]
        except (ForeignError, TimeoutError, OSError) as exc:
            await connection.disconnect(nowait=True)
            raise _translated(exc, outcome_unknown=True) from exc
        except BaseException:
            # The next request must not get the answer to this one.
            await connection.disconnect(nowait=True)
            raise
        for answer in answers:
            if isinstance(answer, ResponseError):
                raise _translated(answer, outcome_unknown=False) from answer
        return answers

    async def converse(
        self, connection: AbstractConnection, command: Command, timeout_s: float
    ) -> Any:
        """Send one command over a reader's connection, which is made if need be."""
        if self._closed:
            raise RedisUnavailableError("the link is closed", outcome_unknown=False)
        try:
            async with asyncio.timeout(self._options.connect_timeout_s):
                await connection.connect()  # type: ignore[no-untyped-call]  # redis-py's own
        except (ForeignError, TimeoutError, OSError) as exc:
            raise _translated(exc, outcome_unknown=False) from exc
        (answer,) = await self._converse(connection, [command], timeout_s)
        return answer

    async def _connected(self, connection: AbstractConnection) -> None:
        await connection.on_connect()
        self.sessions += 1

    def _arguments(self) -> dict[str, Any]:
        options = self._options
        arguments: dict[str, Any] = {
            **parse_url(options.url),
            "client_name": options.name,
            "protocol": 2,
            "socket_connect_timeout": options.connect_timeout_s,
            # Waits are bounded here, where a blocking read may take longer than a command.
            "socket_timeout": None,
            "retry": Retry(NoBackoff(), 0),
            "redis_connect_func": self._connected,
        }
        if options.password_file is not None:
            arguments["credential_provider"] = _PasswordFile(
                options.username, options.password_file
            )
        elif options.username is not None:
            arguments["username"] = options.username
        if options.url.startswith("rediss:"):
            arguments["connection_class"] = RedisTlsConnection
            arguments["tls"] = options.tls
        elif options.url.startswith("redis:"):
            arguments["connection_class"] = RedisTcpConnection
        return arguments


class BlockingReader:
    """One connection for commands that wait inside of the server; see `RedisLink.reader`.

    Used by one task at a time.
    """

    def __init__(self, link: RedisLink) -> None:
        self._link = link
        self._connection = link.make_connection()

    async def call(self, *command: Argument, block_s: float) -> Any:
        """Carry out a command that the server answers within `block_s`.

        Raises:
            RedisUnavailableError: There was no answer in that time and a little more.
            RedisRefusedError: The server refused.
        """
        return await self._link.converse(self._connection, command, block_s + BLOCK_GRACE_S)

    async def close(self) -> None:
        """Close the connection; a call that waits ends with an error."""
        with contextlib.suppress(ForeignError):
            # A peer that does not close is left alone after its time.
            await self._connection.disconnect()


class _PasswordFile(CredentialProvider):
    """Reads the password for each connection, so that another one counts from the next on."""

    def __init__(self, username: str | None, file: Path) -> None:
        self._username = username
        self._file = file

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        try:
            password = read_secret("password_file", self._file)
        except ConfigError as error:
            # One that redis-py closes the connection over, which would else pass for signed in.
            raise AuthenticationError(str(error)) from error
        return (password,) if self._username is None else (self._username, password)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        return await asyncio.to_thread(self.get_credentials)


async def _answer(connection: AbstractConnection) -> Any:
    # A refusal of one command must not lose the answers to those behind it.
    try:
        return await connection.read_response(disconnect_on_error=False)
    except ResponseError as error:
        return error


_CODES: Final[dict[type[BaseException], str]] = {
    AuthenticationError: "NOAUTH",
    AuthorizationError: "NOAUTH",
    NoPermissionError: "NOPERM",
    NoScriptError: "NOSCRIPT",
    OutOfMemoryError: "OOM",
    ReadOnlyError: "READONLY",
}
"""Codes that redis-py takes off the server's answer."""


def _translated(
    error: ForeignError | TimeoutError | OSError, *, outcome_unknown: bool
) -> RedisUnavailableError | RedisRefusedError:
    code = _CODES.get(type(error))
    if code is not None:
        hint = "; check username and password_file" if code == "NOAUTH" else ""
        return RedisRefusedError(code, f"{error}{hint}")
    if isinstance(error, ResponseError):
        code, _, reason = str(error).partition(" ")
        return RedisRefusedError(code, reason)
    if isinstance(error, TimeoutError | LateError):
        return RedisUnavailableError("no answer in time", outcome_unknown=outcome_unknown)
    # A server that still loads its file has done nothing.
    outcome_unknown = outcome_unknown and not isinstance(error, BusyLoadingError)
    return RedisUnavailableError(
        str(error) or type(error).__name__, outcome_unknown=outcome_unknown
    )

"""The queue of password checks: which hash the threads compute next.

Owns the threads and the callers that wait for one. A check costs tens of milliseconds of a core, so
the order is fair: addresses take turns, and the identities of one address take turns below that,
since all clients of the same machine share its loopback address. Ids that do not exist count as one
identity. Invariants: a thread is taken by one check at a time; of one address at most
`WAITING_MAX` checks wait, or one of each of its identities where these are more; a check whose
caller was cancelled is not begun.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from edgehub.errors import EdgeHubError

if TYPE_CHECKING:
    from collections.abc import Callable

THREADS_MAX: Final = 2
WAITING_MAX: Final = 128
"""Checks of one address that wait: some seconds of work, which a client is ready to wait."""


class TooManyChecksError(EdgeHubError):
    """Too many passwords from one address wait to be checked; try again later."""

    def __init__(self) -> None:
        super().__init__("too many sign-ins of this address wait; try again later")


_Waiting = dict[str, deque[asyncio.Future[None]]]
"""Turns by identity, the next identity first."""


class PasswordChecks:
    """The queue of password checks and its threads."""

    def __init__(self) -> None:
        # Half of the cores at most: hashing must not starve the thread of the event loop.
        self._free = min(THREADS_MAX, max(1, (os.cpu_count() or 1) // 2))
        self._pool = ThreadPoolExecutor(self._free, thread_name_prefix="password")
        # The next address first.
        self._addresses: dict[str, _Waiting] = {}

    async def turn(self, address: str, identity_id: str, waits: Callable[[], None]) -> None:
        """Wait for a thread; `run` or `release` returns it.

        Args:
            address: Where the client is.
            identity_id: Id with which it signs in, empty = one that does not exist.
            waits: Called if no thread is free.

        Raises:
            TooManyChecksError: Too many of its address wait.
        """
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._add(address, identity_id, turn)
        waits()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._remove(address, identity_id, turn)
            elif turn.exception() is None:
                self.release()  # it became free in the moment of the cancellation
            raise

    async def run(self, check: Callable[[bytes], bool], password: bytes) -> bool:
        """Check a password in the thread that the caller has; returned when the thread is done.

        A caller that is cancelled does not end the computation.
        """
        computed = asyncio.get_running_loop().run_in_executor(self._pool, check, password)
        computed.add_done_callback(lambda _: self.release())
        return await asyncio.shield(computed)

    def release(self) -> None:
        """Return a thread, to the next caller that waits."""
        while self._addresses:
            turn = self._next()
            # A caller that was cancelled takes its turn out when it runs next.
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    def close(self) -> None:
        """Stop the threads; checks that did not begin are cancelled."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _next(self) -> asyncio.Future[None]:
        address, identities = next(iter(self._addresses.items()))
        identity_id, turns = next(iter(identities.items()))
        turn = turns.popleft()
        # Both go to the end, so that others have their turn first.
        del self._addresses[address], identities[identity_id]
        if turns:
            identities[identity_id] = turns
        if identities:
            self._addresses[address] = identities
        return turn

    def _add(self, address: str, identity_id: str, turn: asyncio.Future[None]) -> None:
        identities = self._addresses.setdefault(address, {})
        turns = identities.setdefault(identity_id, deque())
        turns.append(turn)
        if sum(map(len, identities.values())) > WAITING_MAX:
            # The identity with most of them is refused, so that one cannot shut out the others; of
            # several the one whose turn is last. One check of each is no flood, and none of them
            # could be refused without shutting out a client.
            longest = max(reversed(identities.items()), key=lambda item: len(item[1]))
            refused = longest[1][-1]
            if len(longest[1]) == 1:
                return
            self._remove(address, longest[0], refused)
            if not refused.cancelled():
                refused.set_exception(TooManyChecksError())

    def _remove(self, address: str, identity_id: str, turn: asyncio.Future[None]) -> None:
        identities = self._addresses.get(address, {})
        turns = identities.get(identity_id)
        if turns is None or turn not in turns:
            return
        turns.remove(turn)
        if not turns:
            del identities[identity_id]
        if not identities:
            del self._addresses[address]

"""Who waits until everything that one publish causes is done.

Owns the count of what is open. Invariant: the waiter is told once, when nothing is open any more;
of several refusals it hears the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgehub.local_message import Settle
    from edgehub.message import Refusal


class Ticket:
    """One publish under way.

    Args:
        settle: The publisher's; called as `settle(token, refusal)`.
        token: The publisher's, handed back.
    """

    __slots__ = ("_open", "_refusal", "_settle", "_token")

    def __init__(self, settle: Settle, token: int) -> None:
        self._settle = settle
        self._token = token
        self._open = 1
        self._refusal: Refusal | None = None

    def hold(self) -> Settle:
        """Wait for one thing more; it calls what it is given when it is done."""
        self._open += 1
        return self.done

    def done(self, _token: int, refusal: Refusal | None) -> None:
        """Record that one thing is done, or was refused."""
        self._open -= 1
        self._refusal = self._refusal or refusal
        if not self._open:
            self._settle(self._token, self._refusal)

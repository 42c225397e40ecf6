"""The writes and deliveries of one publish, which are settled together.

Owns the count of those that are open. Invariant: `settle` is called once, when none is open any
more; of several refusals it gets the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgehub.local_message import Settle
    from edgehub.message import Refusal


class Ticket:
    """One publish in progress.

    Args:
        settle: Of the publisher; called as `settle(token, refusal)`.
        token: Of the publisher.
    """

    __slots__ = ("_open", "_refusal", "_settle", "_token")

    def __init__(self, settle: Settle, token: int) -> None:
        self._settle = settle
        self._token = token
        self._open = 1
        self._refusal: Refusal | None = None

    def hold(self) -> Settle:
        """Wait for one more part; returns the `settle` of that part."""
        self._open += 1
        return self.done

    def done(self, _token: int, refusal: Refusal | None) -> None:
        """Record that one part is done, or was refused."""
        self._open -= 1
        self._refusal = self._refusal or refusal
        if not self._open:
            self._settle(self._token, self._refusal)

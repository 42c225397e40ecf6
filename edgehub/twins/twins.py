"""The twins of one hub: read, changed, stored, and what follows from a change.

Owns the documents of all twins in memory, as they are stored. Invariants: a change is announced
once it is durable, and the changes of a twin in their order; all twins together have at most
`bytes_max` bytes, of which clients without an identity get their share alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edgehub.devices.bounds import Bound
from edgehub.twins.document import ClientTwin, TwinError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from edgehub.devices.bounds import KnownIds
    from edgehub.message import Refusal
    from edgehub.store.row_changes import Settle
    from edgehub.twins.document import Json
    from edgehub.twins.table import TwinTable

UNSETTLED_MAX: Final = 64
"""Changes of one twin that may wait for the disk; the next one is refused with 429."""

_ROW_BYTES: Final = 128


class ClientTwins:
    """The twins of one hub.

    Args:
        table: Stores them.
        known: The identities in force.
        hub_id: The hub's id, whose twin counts as that of an identity.
        bytes_max: For all of them.

    Attributes:
        bound: Of their bytes.
        desired_changed: Called with client id, merge patch and version after each change of desired
            properties.
        reported_changed: Called with the client id after each change of reported properties.
    """

    def __init__(self, table: TwinTable, known: KnownIds, *, hub_id: str, bytes_max: int) -> None:
        self._table = table
        self._documents: dict[str, bytes] = {}
        self._unsettled: dict[str, int] = {}
        self._unsent: set[str] = set()
        self.bound = Bound(
            "bytes of twins", bytes_max, known, setting="mqtt.twins_bytes_max", own=hub_id
        )
        self.desired_changed: list[Callable[[str, Json, int], None]] = []
        self.reported_changed: list[Callable[[str], None]] = []

    async def load(self) -> None:
        """Read all twins, at the start."""
        for client_id, twin in (await self._table.load()).items():
            self._keep(client_id, twin, twin.stored())

    def __contains__(self, client_id: str) -> bool:
        return client_id in self._documents

    def __len__(self) -> int:
        return len(self._documents)

    def ids(self) -> Iterator[str]:
        """Return the clients that have a twin."""
        return iter(self._documents)

    def unsent(self) -> Iterator[str]:
        """Return the clients that reported what no peer upstream has."""
        return iter(self._unsent)

    def is_unsent(self, client_id: str) -> bool:
        """Return whether a client reported what the peer upstream does not have."""
        return client_id in self._unsent

    def get(self, client_id: str) -> ClientTwin:
        """Return the twin of a client; one that was never changed is empty."""
        document = self._documents.get(client_id)
        return ClientTwin() if document is None else ClientTwin.restored(document)

    def recount(self) -> None:
        """Count by kind of client, after identities have changed."""
        self.bound.identified.used = self.bound.anonymous.used = 0
        for client_id, document in self._documents.items():
            self.bound.of(client_id).used += _size(client_id, document)

    def report(
        self, client_id: str, patch: Json, settle: Settle, *, at_ms: int | None
    ) -> ClientTwin:
        """Merge a patch into what a client reports.

        Args:
            client_id: Id of the client.
            patch: Checked.
            settle: `settle(0, None)` is called once it is durable.
            at_ms: UTC at which the client reported it, None = not known.

        Returns:
            The twin as it will be.

        Raises:
            TwinError: A limit is reached; nothing has changed.
        """
        twin = self.get(client_id).report(patch, at_ms)

        def settled(token: int, refusal: Refusal | None) -> None:
            settle(token, refusal)
            if refusal is None:
                for changed in self.reported_changed:
                    changed(client_id)

        self._change(client_id, twin, settled)
        return twin

    def desire(
        self, client_id: str, patch: Json, settle: Settle, *, version: int | None = None
    ) -> ClientTwin:
        """Merge a patch into what is desired of a client; see `report`."""
        twin = self.get(client_id).desire(patch, version=version)
        self._change(client_id, twin, self._announced(client_id, patch, twin, settle))
        return twin

    def put(
        self, client_id: str, twin: ClientTwin, settle: Settle, *, patch: Json | None = None
    ) -> None:
        """Store a twin as it is; `patch` is what it changes of the desired properties.

        Raises:
            TwinError: There is no room; nothing has changed.
        """
        if patch:
            settle = self._announced(client_id, patch, twin, settle)
        self._change(client_id, twin, settle)

    def remove(self, client_id: str, settle: Settle) -> bool:
        """Remove a twin; returns whether there was one."""
        document = self._documents.pop(client_id, None)
        if document is None:
            return False
        self.bound.of(client_id).used -= _size(client_id, document)
        self._unsent.discard(client_id)
        self._table.save(client_id, None, settle)
        return True

    def _announced(self, client_id: str, patch: Json, twin: ClientTwin, settle: Settle) -> Settle:
        def settled(token: int, refusal: Refusal | None) -> None:
            settle(token, refusal)
            if refusal is None:
                for changed in self.desired_changed:
                    changed(client_id, patch, twin.desired_version)

        return settled

    def _change(self, client_id: str, twin: ClientTwin, settle: Settle) -> None:
        document = twin.stored()
        more = _size(client_id, document)
        before = self._documents.get(client_id)
        if before is not None:
            more -= _size(client_id, before)
        usage = self.bound.of(client_id)
        if more > 0 and not usage.has_room(more):
            raise TwinError(429, f"twins take {usage.used} of {usage.limit} bytes")
        if self._unsettled.get(client_id, 0) >= UNSETTLED_MAX:
            raise TwinError(429, f"{UNSETTLED_MAX} changes of this twin wait for the disk")
        self._unsettled[client_id] = self._unsettled.get(client_id, 0) + 1
        self._keep(client_id, twin, document)

        def settled(token: int, refusal: Refusal | None) -> None:
            left = self._unsettled.pop(client_id) - 1
            if left:
                self._unsettled[client_id] = left
            settle(token, refusal)

        self._table.save(client_id, document, settled)

    def _keep(self, client_id: str, twin: ClientTwin, document: bytes) -> None:
        before = self._documents.get(client_id)
        usage = self.bound.of(client_id)
        if before is not None:
            usage.used -= _size(client_id, before)
        usage.used += _size(client_id, document)
        self._documents[client_id] = document
        if twin.synced is None:
            self._unsent.discard(client_id)
        else:
            self._unsent.add(client_id)


def _size(client_id: str, document: bytes) -> int:
    return len(client_id) + len(document) + _ROW_BYTES

"""A write of the table, decided: what `write.lua` does inside of Redis, for the other storages.

Pure. Invariant: either all changes get their row, or an error names the one that is refused, and
why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from edgehub.sync.faults import (
    ConflictError,
    PreconditionError,
    QuotaError,
    RouteNotFoundError,
)
from edgehub.sync.storage import BrokenRow, Change, Stored, StoredRow

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from edgehub.routes.tenant import RouteKey, Tenant
    from edgehub.sync.storage import Row


def plan_write(
    changes: Sequence[Change],
    present: Mapping[RouteKey, Row],
    counts: Mapping[Tenant, int],
    *,
    revision: int,
    now_ms: int,
) -> tuple[int, list[Stored]]:
    """Decide a write.

    Args:
        changes: What is wanted.
        present: The rows of these keys that exist.
        counts: Rows of each tenant concerned.
        revision: Of the table.
        now_ms: UTC.

    Returns:
        The table's revision afterwards, and what becomes of each change.

    Raises:
        PreconditionError, RouteNotFoundError, QuotaError: Refused.
    """
    stored: list[Stored] = []
    counts = dict(counts)
    for change in changes:
        row = present.get(change.key)
        _check(change, row)
        tenant = change.key.tenant
        if change.delete:
            if row is not None:
                revision += 1
                counts[tenant] -= 1
            stored.append(Stored(row=None, created=False, changed=row is not None))
            continue
        if row is None:
            counts[tenant] = counts.get(tenant, 0) + 1
            if counts[tenant] > change.quota:
                raise QuotaError(str(tenant), change.quota)
        wanted = _wanted(change, row, revision=revision + 1, now_ms=now_ms)
        same = isinstance(row, StoredRow) and replace(row, text=None) == replace(
            wanted, revision=row.revision, modified_ms=row.modified_ms, text=None
        )
        if same:
            assert isinstance(row, StoredRow)
            stored.append(Stored(row=row, created=False, changed=False))
        else:
            revision += 1
            stored.append(Stored(row=wanted, created=row is None, changed=True))
    return revision, stored


def check_table(expected: int | None, revision: int) -> None:
    """Check the revision that the whole table must have.

    Raises:
        ConflictError: It has another.
    """
    if expected is not None and expected != revision:
        raise table_moved(expected, revision)


def table_moved(expected: int, revision: int) -> ConflictError:
    """Return the error for a table with another revision."""
    reason = f"the table has revision {revision}, the request wants {expected}"
    return ConflictError(reason, revision=revision)


def _check(change: Change, row: Row | None) -> None:
    revision = row.revision if isinstance(row, StoredRow) else 0
    if change.expected is not None:
        unwanted = change.expected == 0 and row is not None
        if change.expected != revision or unwanted:
            raise PreconditionError(change.key.id, revision=revision, wanted=change.expected)
    if not change.delete and not change.hash and not isinstance(row, StoredRow):
        raise RouteNotFoundError(change.key.id)


def _wanted(change: Change, row: Row | None, *, revision: int, now_ms: int) -> StoredRow:
    if row is None or isinstance(row, BrokenRow):
        return StoredRow(
            key=change.key,
            revision=revision,
            hash=change.hash,
            enabled=change.enabled is not False,
            origin=change.origin,
            created_ms=now_ms,
            modified_ms=now_ms,
            text=change.text,
        )
    enabled = row.enabled if change.enabled is None else change.enabled
    row = replace(row, revision=revision, enabled=enabled, modified_ms=now_ms)
    if change.hash:
        row = replace(row, hash=change.hash, origin=change.origin, text=change.text)
    return row

"""The coordinator of several hubs: one script in Redis decides, streams there carry the notices.

Owns the names of the keys and the translation of answers; the rule itself is `coordinator.lua`,
which runs as one step. Invariants: epochs only grow, also over a Redis that has lost its memory; a
position of lost data is recognised; whatever Redis answers but a decision is
`CoordinatorUnreachableError`, never a lost election.
"""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import structlog

from edgehub.devices.affinity.coordinator import ElectionResult, Notice, NoticeBatch
from edgehub.devices.faults import CoordinatorUnreachableError
from edgehub.redis_link.faults import RedisError, RedisUnavailableError
from edgehub.redis_link.script import Script

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from edgehub.devices.affinity.coordinator import (
        DownlinkClaim,
        ElectedFrame,
        ElectionRequest,
        JoinClaim,
    )
    from edgehub.redis_link.link import RedisLink

BLOCK_S: Final = 5.0
"""How long one XREAD for notices waits in Redis; then the incarnation of the data is read again."""

NOTICES_AT_ONCE: Final = 1000
CLAIM: Final = "claim"

log = structlog.get_logger(__name__)


NUMBER_MAX: Final = 2**53
"""Lua holds whole numbers up to this exactly."""

Entries = list[tuple[int, list[bytes]]]
"""Entries of a stream: the number of each, and its fields' names and values in turn."""


class RedisCoordinator:
    """A coordinator in Redis; implements `Coordinator`.

    Args:
        link: The way to Redis.
        prefix: Of all keys; hubs with the same one share their devices.
        block_s: See `BLOCK_S`.
    """

    def __init__(self, link: RedisLink, *, prefix: str, block_s: float = BLOCK_S) -> None:
        self._link = link
        self._reader = link.reader()
        # In a cluster one script may only touch keys of one slot; the braces see to it.
        self._prefix = f"{{{prefix}}}:affinity:"
        self._block_s = block_s
        self._process = secrets.token_hex(4)
        self._has_looked = False
        self.twin = ""
        """Another process that reads notices under this hub's name now, "" = none."""
        self._script = Script.of("edgehub.devices.affinity", "coordinator.lua")

    async def elect(self, ballot: ElectionRequest) -> ElectionResult:
        """Elect the hub that handles one message."""
        answer = await self._call(
            "elect",
            self._record(ballot.device_id),
            ballot.device_id,
            ballot.device_id,
            ballot.hub_id,
            ballot.f_cnt,
            ballot.generation,
            int(ballot.restarted),
        )
        return _result(ballot.device_id, answer)

    async def take_over(self, frame: ElectedFrame, hub_id: str) -> ElectionResult:
        """Ask for a frame that was open when the election was lost."""
        device_id = frame.device_id
        key = self._record(device_id)
        answer = await self._call(
            "take_over", key, device_id, device_id, hub_id, frame.f_cnt, frame.generation
        )
        return _result(device_id, answer)

    async def report_stored(self, hub_id: str, frames: Sequence[ElectedFrame]) -> None:
        """Record that frames which a hub won are stored."""
        keys = [self._record(frame.device_id) for frame in frames]
        numbers = [part for frame in frames for part in (frame.generation, frame.f_cnt)]
        await self._call("stored", keys, frames[0].device_id, hub_id, *numbers)

    async def owner_of(self, device_id: str) -> str:
        """Return the hub that owns a device, "" = none is known."""
        owner = await self._call("owner", self._record(device_id), device_id)
        with _readable(device_id):
            return str(owner.decode())

    async def claim_join(self, claim: JoinClaim) -> bool:
        """Claim a join request; False = another hub (or this one) has claimed it before."""
        return bool(await self._call(CLAIM, self._join(claim), claim.device_id, claim.hub_id))

    async def finish_join(self, claim: JoinClaim, *, generation: int | None) -> None:
        """Clear the device's counter and keep its owner; or withdraw the claim."""
        device_id = claim.device_id
        if generation is None:
            await self._call("unclaim", self._join(claim), device_id, claim.hub_id)
        else:
            await self._call("finish", self._record(device_id), device_id, device_id, generation)

    async def grant_downlink(self, claim: DownlinkClaim) -> int | None:
        """Return the next downlink counter to the owner of a device; None = another hub owns it."""
        granted = await self._call(
            "grant",
            self._record(claim.device_id),
            claim.device_id,
            claim.hub_id,
            claim.generation,
            claim.f_cnt_down,
        )
        with _readable(claim.device_id):
            return _number(granted) if granted else None

    async def notices(self, hub_id: str, after: str, *, wait: bool = True) -> NoticeBatch:
        """Read the notices to a hub behind a position."""
        incarnation, _, read = after.rpartition("-")
        while True:
            present, count = await self._look(hub_id)
            if not after and not count:
                return NoticeBatch(notices=(), position=f"{present}-0")
            # One that counts less than was read is an older state of the same memory, as after a
            # fail-over: lost elections and notices are repeated with the same numbers.
            is_known = not after or (present == incarnation and count >= int(read))
            start = int(read or 0) if is_known else 0
            is_read = is_known and count <= start
            if is_read and not wait:
                return NoticeBatch(notices=(), position=after)
            entries = await self._read(hub_id, present, start, wait=is_read)
            if entries:
                missed = not is_known or entries[0][0] != start + 1
                return _batch(entries, present, missed=missed)
            if not is_known or count > start:
                # Other data, or notices that were counted and are not in the stream any more.
                return NoticeBatch(notices=(), position=f"{present}-{count}", missed=True)

    async def position(self, hub_id: str) -> str:
        """Return the newest place in a hub's stream."""
        incarnation, count = await self._look(hub_id)
        return f"{incarnation}-{count}"

    async def _look(self, hub_id: str) -> tuple[str, int]:
        incarnation, count, before = await self._call(
            "look", self._record(""), hub_id, hub_id, self._process
        )
        # The first time it may be the process of this hub that has ended.
        other = ""
        if self._has_looked and before != self._process.encode():
            other = before.decode("utf-8", "replace")
        self._has_looked = True
        if other and not self.twin:
            log.warning("affinity.hub_id_shared", hub_id=hub_id)
        self.twin = other
        with _readable(hub_id):
            return incarnation.decode(), _number(count)

    async def _read(self, hub_id: str, incarnation: str, after: int, *, wait: bool) -> Entries:
        block = ("BLOCK", round(self._block_s * 1000)) if wait else ()
        key = f"{self._prefix}notices:{incarnation}:{hub_id}"
        command = ("XREAD", "COUNT", NOTICES_AT_ONCE, *block, "STREAMS", key, f"{after}-1")
        try:
            answer = await self._reader.call(*command, block_s=self._block_s if wait else 0.0)
        except RedisError as exc:
            raise CoordinatorUnreachableError(hub_id, exc.reason) from exc
        return [] if answer is None else [_entry(*entry) for entry in answer[0][1]]

    async def _call(
        self, operation: str, key: str | list[str], subject: str, *arguments: str | int
    ) -> Any:
        keys = [f"{self._prefix}fleet", *([key] if isinstance(key, str) else key)]
        values = [operation, self._prefix, secrets.token_hex(4), *arguments]
        try:
            try:
                return await self._link.run(self._script, keys, values)
            except RedisUnavailableError:
                # A connection that a restart of the server closed is found out by using it. All
                # but a claim may be asked twice: the same frame of the same hub is allowed again.
                if operation == CLAIM:
                    raise
                return await self._link.run(self._script, keys, values)
        except RedisError as exc:
            raise CoordinatorUnreachableError(subject, exc.reason) from exc

    def _record(self, device_id: str) -> str:
        return f"{self._prefix}device:{device_id}"

    def _join(self, claim: JoinClaim) -> str:
        return f"{self._prefix}join:{claim.device_id}:{claim.key}"


@contextmanager
def _readable(subject: str) -> Iterator[None]:
    """Raise `CoordinatorUnreachableError` for an answer with values that no hub wrote."""
    try:
        yield
    except ValueError as exc:
        raise CoordinatorUnreachableError(subject, f"its data cannot be read: {exc}") from exc


def _result(device_id: str, answer: list[Any]) -> ElectionResult:
    won, owner, epoch, former, is_open = answer
    with _readable(device_id):
        return ElectionResult(
            won=int(won) == 1,
            owner=owner.decode(),
            epoch=_number(epoch),
            former=former.decode(),
            is_open=int(is_open) == 1,
        )


def _number(text: bytes | str) -> int:
    number = int(text)
    if not 0 <= number <= NUMBER_MAX:
        raise ValueError(f"{number} is out of range")
    return number


def _batch(entries: Entries, incarnation: str, *, missed: bool) -> NoticeBatch:
    """Build a batch; a notice that cannot be read counts as missed."""
    notices = [_notice(f"{incarnation}-{number}", fields) for number, fields in entries]
    return NoticeBatch(
        notices=tuple(notice for notice in notices if notice is not None),
        position=f"{incarnation}-{entries[-1][0]}",
        missed=missed or None in notices,
    )


def _notice(position: str, fields: list[bytes]) -> Notice | None:
    try:
        texts = [field.decode() for field in fields]
        values = dict(zip(texts[::2], texts[1::2], strict=True))
        return Notice(
            position=position,
            device_id=values["device"],
            epoch=_number(values["epoch"]),
            owner=values["owner"],
        )
    except (ValueError, KeyError):
        return None


def _entry(entry_id: bytes, fields: list[bytes]) -> tuple[int, list[bytes]]:
    return int(entry_id.partition(b"-")[0]), fields

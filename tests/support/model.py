"""The list model of store and pump: what became of every copy of every message.

It is told what the outside sees (messages in, answers of the hub, rows sent, answers of the peer)
and every word between pump and queue, and judges each at once. It never says when a row leaves,
only whether it may, and whether another one had to leave first.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

from edgehub.message import FailureKind
from edgehub.store import Overflow
from tests.support.model_rows import Copy, Line

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from edgehub.message import EndpointId, Row, SendResult
    from tests.support.model_rows import Key

    Rows = Mapping[int, tuple[int, int]]
    """Rows of one queue in the file, in their order: token -> offset and attempts."""

ROW_BYTES_MAX = 1000
"""No row of the model is larger."""
PAUSE_S_MIN, PAUSE_S_MAX = 0.8, 60.1
"""Shortest and longest pause after a failure, jitter included."""
READ_PAUSE_S = 1.1
"""A queue that the disk did not let read rests so long at most."""

FINAL = {FailureKind.REJECTED, FailureKind.TOO_LARGE}
ATTEMPTED = {FailureKind.TRANSIENT, FailureKind.TIMEOUT, FailureKind.NOT_AUTHORIZED}
DENIALS_MIN = 3
"""So often a row was refused for its sender before it may be a dead letter."""


class Ledger:
    """All copies, in the order in which their messages came."""

    def __init__(
        self,
        strict: Mapping[EndpointId, bool],
        max_attempts: int,
        overflow: Overflow | None = None,
    ) -> None:
        self._strict = strict
        self._overflow = overflow
        """What happens at the limit of rows, None = there is none."""
        self._max_attempts = max_attempts
        self.lines: dict[Key, Line] = {}
        self.open: dict[int, list[Copy]] = {}
        """Messages that wait for their answer."""
        self.dead: dict[Key, dict[int, FailureKind]] = defaultdict(dict)
        self.paused_until_s: dict[EndpointId, float] = defaultdict(float)
        self._paused_from_s: dict[EndpointId, float] = defaultdict(float)
        self._offsets: dict[int, Copy] = {}
        self._names: dict[str, int] = {}
        self._denied: set[tuple[EndpointId, str]] = set()
        """Senders of whom an endpoint takes nothing, as far as it has said since the start."""
        self.events = 0
        """Grows with everything that happens."""

    def line(self, key: Key) -> Line:
        """Return what is known of a queue."""
        return self.lines.setdefault(key, Line(key))

    @property
    def out_total(self) -> int:
        """Count the rows that a pump has."""
        return sum(copy.out for line in self.lines.values() for copy in line.live.values())

    # -- heads ---------------------------------------------------------------------------------

    def append(
        self,
        token: int,
        sender: str,
        now_ms: int,
        targets: Iterable[tuple[Key, int, tuple[Key, int] | None]],
    ) -> None:
        """Record a message that is handed in."""
        self.open[token] = copies = []
        for key, expires_ms, fallback in targets:
            copy = Copy(key, token, sender, now_ms, expires_ms, fallback)
            copies.append(copy)
            line = self.line(key)
            line.live[token] = line.unsent[sender][token] = copy

    def accept(self, token: int, message_id: str, *, early: bool) -> None:
        """Record that the sender was told that all is well.

        Args:
            token: Of the message.
            message_id: Of the hub.
            early: It has left, and is not in the file.
        """
        self.events += 1
        copies = self.open.pop(token)
        if copies:
            self._name(message_id, token)
            first = next(iter(self.open), token)
            # What is dropped has nothing to wait for.
            at_once = early or self._overflow is Overflow.DROP_NEWEST
            assert at_once or first >= token, f"{token} is acknowledged before {first}"
        for copy in copies:
            copy.accepted = True
            self.lines[copy.key].enqueued += 1
            copy.early = early

    def refuse(self, token: int) -> None:
        """Record that the message was not taken: no copy may ever be found in the file."""
        self.events += 1
        for copy in self.open.pop(token):
            if copy.left == "sent":
                self.lines[copy.key].sent -= 1
            elif copy.left == "dead":
                self.lines[copy.key].dead -= 1
            if copy.out:
                copy.disowned = True
            else:
                self._drop(copy)

    # -- between pump and queue ----------------------------------------------------------------

    def choose(self, key: Key, now_s: float, now_ms: int) -> None:
        """Judge that a queue is read: no better one of its endpoint may have rows (invariant 5)."""
        for line in self.lines.values():
            if line.key[0] == key[0] and line.key[1] < key[1] and line.delayed_until_s <= now_s:
                waiting = line.ready(now_s, now_ms)
                assert self._condemn(waiting), f"{key} is read before {waiting[:3]}"

    def take(
        self,
        key: Key,
        rows: Sequence[Row],
        room: tuple[int, int],
        before: list[Copy],
        now_ms: int,
    ) -> None:
        """Judge what a read gave; `room` are its bounds, `before` the rows ready all the time."""
        line = self.line(key)
        self.notice_moves(key, [token_of(row.message.body) for row in rows], now_ms)
        taken = [self._copy(key, row) for row in rows]
        for copy, row in zip(taken, rows, strict=True):
            assert not copy.is_stale(now_ms), f"{copy} is too old for its queue"
            assert not copy.condemned, f"{copy} was passed by and is read"
            assert not copy.left, f"{copy} is read again"
            assert not copy.disowned, f"{copy} was refused and is read"
            assert not copy.out, f"{copy} is read twice"
            assert copy.sender not in line.held, f"the sender of {copy} is held"
            assert row.offset not in line.held, f"{copy} is held"
            self._match(copy, row)
        tokens = [copy.token for copy in taken]
        known = set(tokens)
        full = len(rows) == room[0] or sum(row.size for row in rows) + ROW_BYTES_MAX > room[1]
        last = max(tokens) if rows and full else math.inf
        missing = [copy for copy in before if copy.token < last and copy.token not in known]
        assert self._condemn(missing), f"{missing[:3]} are passed by"
        for copy in taken:
            copy.out = True

    def give_back(self, key: Key, rows: Sequence[Row], attempted: bool, now_s: float) -> None:
        """Judge that rows go back to their places."""
        for row in rows:
            copy = self._settle(key, row)
            copy.back_s = now_s
            result = copy.result
            self._take_effect(copy, now_s)
            kind = result.kind if result else None
            if attempted:
                assert kind in ATTEMPTED, f"{copy} was not refused: {kind}"
                assert not self._is_final(copy, kind), f"{copy} should be a dead letter"
                copy.attempts += 1
                if kind is FailureKind.TRANSIENT:
                    pause_s = min(60.0, PAUSE_S_MIN * 2.0 ** min(copy.attempts - 1, 6))
                    copy.not_before_s = now_s + pause_s
                    if copy.sender in self.lines[key].held:
                        # Refused on trial: the hold goes on, and its end counts from here.
                        self.lines[key].held[copy.sender] = now_s
            else:
                fine = kind not in {*ATTEMPTED, *FINAL} and (result is None or kind or copy.again)
                assert fine, f"{copy} goes back after {kind}"
            copy.result = None
            copy.again = False

    def leave(self, key: Key, rows: Sequence[Row], why: str, now: tuple[float, int]) -> None:
        """Judge that rows leave, because they were sent or expired."""
        line = self.lines[key]
        for row in rows:
            copy = self._settle(key, row)
            if why == "sent":
                assert copy.result, f"{copy} was not delivered"
                assert copy.result.kind is None, f"{copy} was refused"
                line.sent += not copy.disowned
                self._check_barrier(copy, line.refused[copy.sender].values(), now[1], "leaves")
            else:
                assert copy.expires_ms <= now[1], f"{copy} has time left"
                self._take_effect(copy, now[0])
            copy.left = why

    def bury(self, key: Key, row: Row, kind: FailureKind) -> None:
        """Judge that a row becomes a dead letter."""
        copy = self._settle(key, row)
        assert copy.result, f"{copy} was not refused"
        assert copy.result.kind is kind
        was_denied = kind is FailureKind.NOT_AUTHORIZED and copy.denials >= DENIALS_MIN
        assert was_denied or self._is_final(copy, kind), f"{copy} may be tried again"
        copy.left = "dead"
        if not copy.disowned:
            self.lines[key].dead += 1
            self.dead[key][copy.token] = kind

    def hold(self, key: Key, who: str | int, now_s: float) -> None:
        """Judge that a sender is kept back: one of its rows was refused, here or for its sender."""
        line = self.lines[key]
        assert who not in line.held
        if isinstance(who, str):
            assert (key[0], who) in self._denied or any(
                copy.attempts or (copy.result and copy.result.kind is FailureKind.TRANSIENT)
                for copy in line.live.values()
                if copy.sender == who
            ), f"{who} is held for nothing"
        line.held[who] = now_s

    # -- endpoint ------------------------------------------------------------------------------

    def send(self, key: Key, row: Row, now_s: float, now_ms: int) -> None:
        """Judge a row that is handed to the endpoint."""
        self.events += 1
        copy = self._copy(key, row)
        line = self.lines[key]
        self._name(row.message.message_id, copy.token)
        assert self._offsets.setdefault(row.offset, copy) is copy, f"{row.offset} is used twice"
        self._match(copy, row)
        assert copy.out, f"{copy} was not read"
        assert not copy.on_link and copy.result is None, f"{copy} is sent twice"  # noqa: PT018 - one
        assert copy.expires_ms > now_ms, f"{copy} is sent after its time to live"
        assert copy.not_before_s <= now_s, f"{copy} is sent before its back-off ends"
        assert self._paused_from_s[key[0]] <= now_s, f"{copy} is sent in a pause of the endpoint"
        assert line.delayed_from_s <= now_s, f"{copy} is sent while its queue is throttled"
        if not copy.sends:
            for earlier in line.unsent[copy.sender].values():
                if earlier.token >= copy.token:
                    break
                late = earlier.has_moved or earlier.is_stale(now_ms) or earlier.condemned
                passed = earlier.waits(now_ms) and not late
                is_fine = self._condemn([earlier] if passed else [])
                assert is_fine, f"{copy} is sent before {earlier}"
            del line.unsent[copy.sender][copy.token]
        refused = line.refused[copy.sender]
        refused.pop(copy.token, None)
        copy.blocks = False
        seen = [earlier for earlier in refused.values() if earlier.blocks]
        self._check_barrier(copy, seen, now_ms, "is sent")
        trial = line.trials.get(copy.sender)
        assert trial is None or trial.token > copy.token, f"{copy} goes beside {trial} on trial"
        if copy.attempts and self._strict[key[0]]:
            line.trials.setdefault(copy.sender, copy)
        copy.sends += 1
        copy.on_link = True
        copy.again = any(
            not other.blocks and other.token < copy.token for other in refused.values()
        )

    def answer(self, key: Key, row: Row, result: SendResult) -> None:
        """Record an answer of the endpoint."""
        self.events += 1
        copy = self._copy(key, row)
        if not copy.on_link:
            return  # the pump had given it up
        copy.on_link = False
        copy.result = result
        if result.kind is FailureKind.NOT_AUTHORIZED:
            copy.denials += 1
            self._denied.add((key[0], copy.sender))
        if result.kind is None or self._is_final(copy, result.kind) or not self._strict[key[0]]:
            return
        line = self.lines[key]
        line.refused[copy.sender][copy.token] = copy
        for later in line.live.values():
            if later.out and later.token > copy.token and later.sender == copy.sender:
                later.again = True

    def link_up(self, endpoint: EndpointId) -> None:
        """Record that pauses of the old link are over."""
        self.paused_until_s[endpoint] = self._paused_from_s[endpoint] = 0.0

    # -- files ---------------------------------------------------------------------------------

    def notice_moves(self, key: Key, tokens: Iterable[int], now_ms: int) -> None:
        """Judge that rows are found in another queue than before: they were too old for it."""
        line = self.line(key)
        unknown = [token for token in tokens if token not in line.live]
        for token in unknown:
            for other in self.lines.values():
                copy = other.live.get(token)
                if copy is not None and copy.fallback == key:
                    assert copy.stale_ms <= now_ms, f"{copy} has moved before its time"
                    assert not copy.out, f"{copy} has moved in flight"
                    assert not copy.left, f"{copy} has moved though it had left"
                    self._move(copy, other, line)
                    break

    def _condemn(self, copies: Sequence[Copy]) -> bool:
        """Hold that copies which should have been read were taken out by a limit, if one can."""
        if self._overflow in {None, Overflow.REJECT_NEW}:
            return not copies
        for copy in copies:
            copy.condemned = True
        return True

    def _check_displaced(self, copy: Copy, line: Line) -> None:
        """Judge that a copy has gone because of a limit: the oldest go, or the newest."""
        assert self._overflow not in {None, Overflow.REJECT_NEW}, f"{copy} is lost"
        if self._overflow is Overflow.DROP_NEWEST:
            assert copy.offset == -1, f"{copy} was stored and has to stay"
        else:
            assert not copy.out, f"{copy} gives way in flight"
            older = [
                each
                for each in line.live.values()
                if each.token < copy.token and each.offset > 0 and not each.was_busy
            ]
            assert not older, f"{copy} gives way before {older[:3]}"
        copy.left = "dropped"
        line.dropped += 1

    def notice_all_moves(self, found: Mapping[Key, Rows], now_ms: int) -> None:
        """Judge those of all queues."""
        for key, rows in found.items():
            self.notice_moves(key, rows, now_ms)

    def _move(self, copy: Copy, line: Line, target: Line) -> None:
        token, sender = copy.token, copy.sender
        del line.live[token]
        line.refused[sender].pop(token, None)
        if line.trials.get(sender) is copy:
            del line.trials[sender]
        target.live[token] = copy
        target.live = dict(sorted(target.live.items()))
        if line.unsent[sender].pop(token, None) is not None:
            target.unsent[sender][token] = copy
            target.unsent[sender] = dict(sorted(target.unsent[sender].items()))
        copy.key, copy.fallback, copy.has_moved = target.key, None, True
        # What kept it back was its old queue's.
        copy.not_before_s, copy.blocks = 0.0, False

    def check_rows(self, key: Key, rows: Rows, now_ms: int, *, stored: bool) -> None:
        """Compare the rows of one queue with what they may be.

        Args:
            key: The queue.
            rows: What the file has.
            now_ms: Hub time.
            stored: All that was handed in is stored, results too.
        """
        line = self.lines.setdefault(key, Line(key))
        assert list(rows) == sorted(rows), f"{key} is out of order"
        unknown = rows.keys() - line.live.keys()
        assert not unknown, f"{key} has rows of nobody, or that were gone: {sorted(unknown)[:3]}"
        for copy in list(line.live.values()):
            offset, attempts = rows.get(copy.token, (0, 0))
            if not offset:
                if copy.accepted:
                    if not (copy.left or copy.expires_ms <= now_ms):
                        self._check_displaced(copy, line)
                    assert not copy.out or copy.left, f"{copy} leaves the file in flight"
                    self._forget(copy)
                elif stored and not copy.out:
                    assert copy.disowned, f"{copy} has no answer"
                    self._drop(copy)
                continue
            assert not copy.early, f"{copy} left early and is stored"
            assert not copy.disowned, f"{copy} was refused and is stored"
            assert copy.offset in {-1, offset}, f"{copy} has moved to {offset}"
            copy.offset = offset
            assert copy.stored_attempts <= attempts <= copy.attempts, (copy, attempts)
            copy.stored_attempts = attempts
            if stored:
                assert copy.accepted, f"{copy} is stored and nobody knows"
                assert not copy.left, f"{copy} stays"
                assert attempts == copy.attempts, (copy, attempts)

    def crashed(self, found: Mapping[Key, Rows], now_ms: int) -> None:
        """Go on from what is in the files."""
        self.notice_all_moves(found, now_ms)
        for copies in self.open.values():
            stored = any(copy.token in found.get(copy.key, ()) for copy in copies)
            for copy in copies:
                if stored:
                    copy.accepted = True
                else:
                    self._drop(copy)
        self.open.clear()
        for key, line in self.lines.items():
            rows = found.get(key, {})
            for copy in list(line.live.values()):
                if copy.disowned:
                    self._drop(copy)
                elif copy.left and copy.token in rows:
                    copy.left = ""
                    self.dead[key].pop(copy.token, None)
            for copy in line.live.values():
                copy.forget()
            self.check_rows(key, rows, now_ms, stored=False)
            for copy in line.live.values():
                copy.attempts = copy.stored_attempts

    def started(self, found: Mapping[Key, Rows]) -> None:
        """Forget what a restart forgets; `found` is in the file."""
        self.paused_until_s.clear()
        self._paused_from_s.clear()
        self._denied.clear()
        for key, line in self.lines.items():
            line.start(len(found.get(key, ())))
            for copy in line.live.values():
                copy.forget()

    def check_idle(self, endpoint: EndpointId, now_s: float, now_ms: int) -> None:
        """Judge that a link that is up carries nothing: there must be a reason for each row."""
        lines = [line for key, line in self.lines.items() if key[0] == endpoint]
        if self.paused_until_s[endpoint] > now_s or any(line.out for line in lines):
            return
        for line in lines:
            for key, since_s in line.held.items():
                assert since_s + PAUSE_S_MAX >= now_s, f"{line.key} holds {key} for ever"
            if line.delayed_until_s <= now_s:
                waiting = line.ready(now_s, now_ms)
                assert not waiting, f"{waiting[:3]} are not sent"

    # -- helpers -------------------------------------------------------------------------------

    def _copy(self, key: Key, row: Row) -> Copy:
        copy = self.lines[key].live.get(token_of(row.message.body))
        assert copy, f"row {row.offset} of {key} comes back"
        assert copy.offset in {-1, row.offset}
        copy.offset = row.offset
        return copy

    def _settle(self, key: Key, row: Row) -> Copy:
        self.events += 1
        copy = self._copy(key, row)
        assert copy.out, f"{copy} is settled twice"
        copy.out = copy.on_link = False
        trials = self.lines[key].trials
        if trials.get(copy.sender) is copy:
            del trials[copy.sender]
        return copy

    def _match(self, copy: Copy, row: Row) -> None:
        said = (row.enqueued_ms, row.expires_ms, row.attempts, row.message.sender)
        known = (copy.enqueued_ms, copy.expires_ms, copy.attempts, copy.sender)
        assert said == known, f"{copy} says {said}, is {known}"

    def _check_barrier(self, copy: Copy, refused: Iterable[Copy], now_ms: int, what: str) -> None:
        for earlier in refused:
            waits = earlier.waits(now_ms) and not earlier.condemned
            passed = waits and earlier.token < copy.token and not earlier.is_stale(now_ms)
            is_fine = self._condemn([earlier] if passed else [])
            assert is_fine, f"{copy} {what} before {earlier}, which was refused"

    def _take_effect(self, copy: Copy, now_s: float) -> None:
        """Begin the pauses that a failure causes: the pump knows of it from now on."""
        result = copy.result
        if result is None or result.kind is None:
            return
        copy.blocks = True
        kind, endpoint = result.kind, copy.key[0]
        line = self.lines[copy.key]
        if kind is FailureKind.THROTTLED:
            asked_s = result.retry_after_s
            # A pause of our own is not made longer by a second one that comes meanwhile.
            if asked_s or line.delayed_until_s <= now_s:
                line.delayed_from_s = max(line.delayed_from_s, now_s + (asked_s or PAUSE_S_MIN))
            line.delayed_until_s = max(line.delayed_until_s, now_s + (asked_s or PAUSE_S_MAX))
        elif kind not in {FailureKind.TRANSIENT, FailureKind.NOT_AUTHORIZED}:
            if kind is not FailureKind.DISCONNECTED and self.paused_until_s[endpoint] <= now_s:
                self._paused_from_s[endpoint] = now_s + PAUSE_S_MIN
            self.paused_until_s[endpoint] = now_s + PAUSE_S_MAX

    def _is_final(self, copy: Copy, kind: FailureKind | None) -> bool:
        last = self._max_attempts and copy.attempts + 1 >= self._max_attempts
        return kind in FINAL or bool(last and kind in ATTEMPTED)

    def _name(self, message_id: str, token: int) -> None:
        assert self._names.setdefault(message_id, token) == token, f"{message_id} comes twice"

    def _drop(self, copy: Copy) -> None:
        assert not copy.accepted
        self.dead[copy.key].pop(copy.token, None)
        self._forget(copy)

    def _forget(self, copy: Copy) -> None:
        copy.gone = True
        line = self.lines[copy.key]
        del line.live[copy.token]
        line.unsent[copy.sender].pop(copy.token, None)
        line.refused[copy.sender].pop(copy.token, None)
        if copy.accepted and not copy.early:
            line.gone_offset = max(line.gone_offset, copy.offset)


def token_of(body: bytes) -> int:
    """Read a message's token out of its body."""
    return int(body[:12].split(b"|", 1)[0])

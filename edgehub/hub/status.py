"""What a hub shows of itself: one document of what its parts show, and the texts of warnings.

Owns the phase of the hub; what the kernel has counted of the process is read here. Invariant: the
command line, the control socket, the service manager and the web page show the same figures,
because they all come from here.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import edgehub
from edgehub.lifecycle import Phase
from edgehub.message import UPSTREAM, EndpointId, Priority, queue_id
from edgehub.notify.reports import Reports
from edgehub.telemetry.plural import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from edgehub.clock import Clock
    from edgehub.devices.bounds import BoundStatistics
    from edgehub.hub.part import Part
    from edgehub.message import QueueId
    from edgehub.notify.service_manager import ServiceManager
    from edgehub.operations.operation import Operation
    from edgehub.store import Damage, LimitStatistics, StoreStatistics
    from edgehub.store.boots import ClockStatistics
    from edgehub.store.queue import Queue

_NAMED_MAX: Final = 5

IO_FILE: Final = Path("/proc/self/io")
"""What the kernel has counted of this process."""


def written_document(queues: Iterable[Queue]) -> dict[str, Any]:
    """Return what the hub has written to disk since its start, for each byte of rows that came in.

    Source: Linux, proc(5), `write_bytes` of /proc/self/io: all files of the process, as the disk
    gets them; the journal's and logs of the database are among them.
    """
    try:
        text = IO_FILE.read_text("ascii")
    except OSError:
        text = ""
    found = re.search(r"^write_bytes: (\d+)$", text, re.MULTILINE)
    written = None if found is None else int(found[1])
    taken = sum([queue.statistics().enqueued_bytes_total for queue in queues])
    return {
        "bytes": written,
        "row_bytes": taken,
        "per_row_byte": round(written / taken, 2) if written is not None and taken else None,
    }


class HubStatus:
    """The phase of a hub, and what it shows of itself to operators and the service manager.

    Args:
        service_manager: What started the process.
        clock: Timers.

    Attributes:
        reports: Notifies the service manager while it runs.
        phase: Where the hub stands.
        parts: All of it in order, empty before it is built.
        operations: What may be asked of it by name.
    """

    def __init__(self, service_manager: ServiceManager, clock: Clock) -> None:
        self.reports = Reports(
            service_manager, clock=clock, summary=self._summary, stalled=self._stalled
        )
        self.phase = Phase.STARTING
        self.parts: list[Part] = []
        self.operations: dict[str, Operation] = {}

    def add(self, parts: Iterable[Part]) -> None:
        """Show these as well."""
        for part in parts:
            self.parts.append(part)
            self.operations |= {each.name: each for each in part.operations()}

    def running(self) -> None:
        """Record and report that the hub serves."""
        self.phase = Phase.RUNNING
        self.reports.ready()

    def draining(self, timeout_s: float) -> None:
        """Record and report that the hub takes nothing more, and ends in `timeout_s` at most."""
        self.phase = Phase.DRAINING
        self.reports.stopping(timeout_s)

    def ports(self) -> dict[str, int | None]:
        """Return the TCP ports that are listened on, by what the log calls them."""
        return {name: port for part in self.parts for name, port in part.ports().items()}

    def document(self) -> dict[str, Any]:
        """Describe the whole hub."""
        members: dict[str, Any] = {}
        stalled = self.reports.stalled
        warnings = [
            f"the pump of {name!r} has stood still for {seconds:.0f} s: a fault of the hub;"
            " restart it"
            for name, seconds in stalled.items()
        ]
        for part in self.parts:
            members |= part.status()
        for part in self.parts:
            warnings += part.warnings()
        return {
            "hub_id": members["hub_id"],
            "version": edgehub.__version__,
            "phase": self.phase,
            "started": members["started"],
            "pid": os.getpid(),
            "summary": _summary_of(self.phase, members),
            "degraded": members["degraded"],
            "warnings": warnings,
            "stalled": sorted(stalled),
            **members,
        }

    def _summary(self) -> str:
        if self.phase is Phase.STARTING:
            return "recovers what is stored"
        [queues] = [part for part in self.parts if part.name == "queues"]
        return _summary_of(self.phase, queues.status())

    def _stalled(self, seconds: float) -> dict[str, float]:
        return {name: s for part in self.parts for name, s in part.stalled(seconds).items()}


def _summary_of(phase: Phase, document: Mapping[str, Any]) -> str:
    """Return in a few words whether a hub delivers; `document` has its endpoints and queues."""
    waiting = sum(queue["depth"] for queue in document["queues"])
    if phase is not Phase.RUNNING:
        return f"takes no messages, {waiting} waiting"
    state = next((each["state"] for each in document["endpoints"] if each["id"] == UPSTREAM), None)
    if state is None:
        return f"collecting, no upstream named, {waiting} waiting"
    return f"{'delivering' if state == 'up' else 'collecting, not sending'}, {waiting} waiting"


NEARLY: Final = 0.9
"""Part of a bound from which on there is a warning."""

MISSING_TEXTS: Final[Mapping[str, str]] = {
    "file": "the database file of an earlier start was missing, empty or replaced: what waited in "
    "it is lost; a restart ends this warning",
    "log": "the last hub was not stopped in order, and the log of its database is missing: the "
    "newest messages are lost; a restart ends this warning",
}
"""By what is missing, see `StoreStatistics.missing`."""


def store_warnings(figures: StoreStatistics) -> list[str]:
    """List what is wrong with the store: disk, damage, clock."""
    found = []
    if figures.failing is not None:
        found.append(
            f"nothing can be stored for {figures.failing_for_s:.0f} s now, so nothing is "
            f"acknowledged: {figures.failing}"
        )
    if figures.damage is not None:
        found.append(damage_text(figures.damage))
    if figures.wal_held_for_s is not None:
        found.append(
            f"another process reads queue.db, for {figures.wal_held_for_s:.0f} s now: its "
            f"write-ahead log cannot be emptied and takes {figures.wal_bytes / 2**20:.0f} MiB; end "
            "that process, only the hub opens the file"
        )
    if figures.damaged_logs:
        found.append(
            "the write-ahead log of the database was damaged, what could be restored of it is in "
            f"use; {', '.join(figures.damaged_logs)} holds the old log: look at the disk, delete "
            "or move it and restart to end this warning"
        )
    if figures.missing is not None:
        found.append(MISSING_TEXTS[figures.missing])
    if not figures.durable:
        found.append("durable: no - store.durable is false, a stop or power cut loses what waits")
    found += [limit_text(reached) for reached in figures.limits]
    return found


def parked_warnings(endpoints: Iterable[Mapping[str, Any]]) -> list[str]:
    """List the endpoints for which an operator must act; `endpoints` as in the status."""
    return [
        f"endpoint {endpoint['id']!r} is parked: {endpoint['reason'] or 'no reason given'}; correct"
        " that and reload, it is also tried once a minute"
        for endpoint in endpoints
        if endpoint["state"] == "parked"
    ]


def dead_letter_warnings(kept: Mapping[QueueId, int]) -> list[str]:
    """List the queues that have dead letters, for as long as they are kept."""
    return [
        f"{counted(number, 'dead letter')} of {name} (edgehub queue dead list says why)"
        for name, number in kept.items()
    ]


def refused_warnings(
    endpoints: Iterable[Mapping[str, Any]], queues: Iterable[Mapping[str, Any]]
) -> list[str]:
    """List whose messages peers refuse, and what to do.

    Args:
        endpoints: As `endpoint_document` returns them.
        queues: As `queue_document` returns them.
    """
    waiting = {queue["endpoint"] for queue in queues if queue["depth"]}
    return [
        _refused_text(endpoint, waits=endpoint["id"] in waiting)
        for endpoint in endpoints
        if endpoint["refused_senders"]
    ]


def left_out_warnings(endpoints: Iterable[Mapping[str, Any]]) -> list[str]:
    """List the subscriptions over which peers close the connection; `endpoints` as above."""
    return [
        left_out_text(f"the peer of endpoint {endpoint['id']!r}", endpoint["left_out_filters"])
        for endpoint in endpoints
        if endpoint["left_out_filters"]
    ]


def _first_of(texts: Iterable[str]) -> str:
    named = list(texts)
    more = len(named) - _NAMED_MAX
    return ", ".join(named[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def left_out_text(peer: str, filters: Sequence[str]) -> str:
    """Return which subscriptions a peer answers by closing the connection, and what to do."""
    return (
        f"{peer} closes the connection over subscriptions, so it is not asked for"
        f" {_first_of(map(repr, filters))}: correct its access rules and reload; one of them is"
        " tried every 15 minutes"
    )


def _refused_text(endpoint: Mapping[str, Any], *, waits: bool) -> str:
    refused: Sequence[Mapping[str, Any]] = endpoint["refused_senders"]
    named = (
        f"{each['sender']!r} (it closed the connection {counted(each['closes'], 'time')})"
        if each["closes"]
        else f"{each['sender']!r} ({each['reason']})"
        for each in refused
    )
    text = (
        f"the peer of endpoint {endpoint['id']!r} refuses messages of {_first_of(named)}: let this"
        " hub speak for such a device there (on_behalf of its identity at a parent hub), or check"
        " whether its messages are too large"
    )
    if waits:
        retry_s = min(each["retry_in_s"] for each in refused)
        if endpoint["state"] != "up":
            retry = f"once the endpoint, which is {endpoint['state']}, is up"
        else:
            retry = f"in {retry_s:.0f} s" if retry_s >= 1 else "now"
        text += f"; what waits of them is tried {retry}"
    if dead := sum([each["dead_lettered"] for each in refused]):
        have = "has become a dead letter" if dead == 1 else "have become dead letters"
        text += (
            f"; {counted(dead, 'message')} of them {have}: `edgehub queue dead requeue` sends what"
            " is one, once that is corrected"
        )
    return text


def window_warnings(endpoints: Iterable[Mapping[str, Any]], clock: ClockStatistics) -> list[str]:
    """List the endpoints that do not keep their connection windows, since the date is not known."""
    return [
        f"endpoint {endpoint['id']!r} is open outside of its connection windows too: the clock is "
        f"not trusted ({clock.reason})"
        for endpoint in endpoints
        if endpoint["keeps_windows"] is False
    ]


def bound_warnings(protocol: str, bounds: Iterable[BoundStatistics]) -> list[str]:
    """List the bounds that clients of a protocol share of which nine tenths are used."""
    found = []
    for bound in bounds:
        setting = f" ({bound.setting})" if bound.setting else ""
        if bound.used >= NEARLY * bound.limit:
            found.append(
                f"{protocol}: {bound.used} of {bound.limit} {bound.name} are in use{setting}"
            )
        elif bound.anonymous >= NEARLY * bound.anonymous_limit:
            found.append(
                f"{protocol}: {bound.anonymous} of {bound.anonymous_limit} {bound.name} that"
                f" anonymous clients may have are in use{setting}"
            )
    return found


def limit_text(reached: LimitStatistics) -> str:
    """Return which cap is reached, since when, and what that has cost."""
    whose = "" if reached.queue is None else f" of {reached.queue}"
    return (
        f"the limit of {reached.cap}{whose} is reached for {reached.for_s:.0f} s now"
        f" ({reached.overflow}): {counted(reached.dropped, 'message')} dropped,"
        f" {reached.refused} refused"
    )


def _offsets_text(ranges: Sequence[tuple[int, int]]) -> str:
    return f" between offsets {ranges[0][0]} and {ranges[-1][1]}" if ranges else ""


def damage_text(damage: Damage) -> str:
    """Return what damage of the database file has cost."""
    rows = sum(rows for _, _, rows, _ in damage.lost)
    lost = [
        f"{rows} of {queue_id(EndpointId(endpoint), Priority(priority))}"
        + _offsets_text([each[2:] for each in damage.offsets if each[:2] == (endpoint, priority)])
        for endpoint, priority, rows, _ in damage.lost
    ]
    more = "" if damage.is_exact else " and perhaps more"
    text = f"the database file was damaged ({damage.found}: {damage.reason}): "
    text += f"{counted(damage.salvaged_rows, 'message')} saved, {rows}{more} lost"
    text += f" ({', '.join(lost)})" if lost else ""
    text += f", parts of {', '.join(damage.tables)} lost" if damage.tables else ""
    return f"{text}; {damage.file} holds the old file, delete or move it to end this warning"

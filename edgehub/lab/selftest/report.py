"""The result of a self-test: one document for scripts, the same as sentences for operators.

Pure. Invariant: it claims what was tested and no more; what a killed process cannot show is said
each time.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, to_builtins

from edgehub.lab.selftest.latency import GROUP_ROWS

if TYPE_CHECKING:
    from edgehub.lab.selftest.file_system import FileSystem
    from edgehub.lab.selftest.judge import Findings
    from edgehub.lab.selftest.latency import DiskLatency, Latency

NOT_TESTED: Final = (
    "A killed process is not a power cut: what the kernel had not written yet survived every kill. "
    "Whether the disk keeps what it reports as synced is not tested here; a disk that lies about "
    "that passes too."
)
SYNC_TOO_QUICK_MS: Final = 0.05
"""A flash cell is not programmed, nor a platter turned, in less."""


class Report(Struct, frozen=True, kw_only=True):
    """What a self-test found.

    Attributes:
        directory: Where it ran.
        file_system: What that is on.
        latency: What the disk takes for a sync and a commit.
        starts_s: Seconds of each start of the hub, the first one and one after each kill.
        findings: What became of the messages.
        integrity: What SQLite finds wrong with the database, empty = nothing.
        elapsed_s: Seconds of the whole test.
    """

    directory: str
    file_system: FileSystem
    latency: DiskLatency
    starts_s: tuple[float, ...]
    findings: Findings
    integrity: tuple[str, ...]
    elapsed_s: float

    @property
    def kills(self) -> int:
        """How often the hub was killed."""
        return len(self.starts_s) - 1

    @property
    def faults(self) -> list[str]:
        """What is wrong, empty = passed."""
        return [*self.findings.faults(), *(f"database: {text}" for text in self.integrity)]

    @property
    def remarks(self) -> list[str]:
        """What to know about the figures."""
        remark = self.file_system.remark
        if remark:
            return [remark]
        if self.latency.fdatasync.median_ms < SYNC_TOO_QUICK_MS:
            remark = (
                f"a sync takes less than {SYNC_TOO_QUICK_MS} ms: either the disk has a cache that "
                "outlives a power cut, or it, or the host of a virtual machine, reports too early"
            )
            return [remark]
        return []

    def document(self) -> dict[str, Any]:
        """Return what `--json` prints; members are only ever added."""
        latency = self.latency
        after_kills = self.starts_s[1:]
        return {
            "passed": not self.faults,
            "faults": self.faults,
            "remarks": self.remarks,
            "not_tested": NOT_TESTED,
            "directory": self.directory,
            "file_system": to_builtins(self.file_system),
            "fsync": to_builtins(latency.fsync),
            "fdatasync": to_builtins(latency.fdatasync),
            "commit": to_builtins(latency.commit),
            "group_commit": {"rows": GROUP_ROWS, **to_builtins(latency.group_commit)},
            "rate_single_per_s": latency.rate_single_per_s,
            "rate_group_per_s": latency.rate_group_per_s,
            "kills": self.kills,
            "first_start_s": round(self.starts_s[0], 3),
            "starts_after_kill_s": [round(start_s, 3) for start_s in after_kills],
            **to_builtins(self.findings),
            "integrity": list(self.integrity),
            "elapsed_s": round(self.elapsed_s, 1),
        }

    def headline(self) -> str:
        """Return the outcome in one line."""
        if self.faults:
            return "FAILED: " + "; ".join(self.faults)
        found = self.findings
        kills = "1 kill" if self.kills == 1 else f"{self.kills} kills"
        return f"PASSED: {kills}, all {found.acknowledged} acknowledged messages are there"

    def rows(self) -> list[tuple[str, str]]:
        """Return the figures, each with its name."""
        latency, found = self.latency, self.findings
        rows = [
            ("directory", self.directory),
            ("file system", self._file_system_text()),
            ("fsync, 4 KiB", _latency_text(latency.fsync)),
            ("fdatasync, 4 KiB", _latency_text(latency.fdatasync)),
            ("commit of 1 message", _latency_text(latency.commit)),
            (f"commit of {GROUP_ROWS}", _latency_text(latency.group_commit)),
            ("durable, one by one", f"{latency.rate_single_per_s:.0f} messages/s"),
            ("durable, together", f"{latency.rate_group_per_s:.0f} messages/s at most"),
            ("kills", str(self.kills)),
            ("start", self._starts_text()),
            ("acknowledged", str(found.acknowledged)),
            ("lost", str(found.lost)),
            ("delivered", str(found.delivered)),
            ("still queued", str(found.waiting)),
            ("delivered twice", str(found.redelivered)),
            ("sent twice by devices", str(found.resent)),
            ("out of order", str(found.out_of_order)),
            ("database", "; ".join(self.integrity) or "integrity check ok"),
            ("test took", f"{self.elapsed_s:.0f} s"),
        ]
        if found.lost_examples:
            rows.append(("lost, for example", ", ".join(found.lost_examples)))
        return rows

    def _file_system_text(self) -> str:
        system = self.file_system
        free_mib = system.free_bytes // 2**20
        return f"{system.kind or 'unknown'} on {system.mount_point}, {free_mib} MiB free"

    def _starts_text(self) -> str:
        text = f"{self.starts_s[0]:.2f} s the first time"
        after_kills = self.starts_s[1:]
        if not after_kills:
            return text
        return f"{text}, after a kill {median(after_kills):.2f} s, max {max(after_kills):.2f} s"


def _latency_text(latency: Latency) -> str:
    return (
        f"median {latency.median_ms:.2f} ms, p99 {latency.p99_ms:.2f} ms, "
        f"max {latency.max_ms:.2f} ms of {latency.count}"
    )

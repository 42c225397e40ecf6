"""The demonstration on a terminal: a live table, or plain lines where there is no terminal.

Owns the output; pure functions turn a snapshot into what is shown.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Final, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from edgehub.lab.demo.scenario import LINK_BIT_S

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from edgehub.lab.demo.snapshot import QueueFigures, Snapshot

PLAIN_INTERVAL_S: Final = 2.0
LIVE_INTERVAL_S: Final = 0.25
_BAR_WIDTH: Final = 30


class View(Protocol):
    """Where snapshots go."""

    interval_s: float

    @property
    def screen(self) -> AbstractContextManager[object]:
        """Return what has the terminal while it is open."""

    def show(self, snapshot: Snapshot) -> None:
        """Show one moment."""


class LiveView:
    """A table that is redrawn in place."""

    def __init__(self, console: Console) -> None:
        self.interval_s = LIVE_INTERVAL_S
        self.screen = Live(console=console, auto_refresh=False, transient=False)

    def show(self, snapshot: Snapshot) -> None:
        """Draw one moment."""
        self.screen.update(render(snapshot), refresh=True)


class PlainView:
    """A line now and then, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self.interval_s = PLAIN_INTERVAL_S
        self.screen = nullcontext()
        self._console = console
        self._news_shown: tuple[str, ...] = ()

    def show(self, snapshot: Snapshot) -> None:
        """Print what is new, and one moment."""
        for line in snapshot.news:
            if line not in self._news_shown:
                self._write(line)
        self._news_shown = snapshot.news
        self._write(plain_line(snapshot))

    def _write(self, line: str) -> None:
        self._console.print(line, soft_wrap=True, markup=False, highlight=False)


def render(snapshot: Snapshot) -> RenderableType:
    """Draw a snapshot as a panel."""
    flow = (
        f"{snapshot.acknowledged} acknowledged to devices, {snapshot.delivered} delivered, "
        f"{snapshot.parent_waiting} on the parent's disk"
    )
    news = Text("\n".join(snapshot.news), style="dim")
    return Panel(
        Group(_link_line(snapshot), _queue_table(snapshot), Text(flow), news),
        title=f"edgehub demo  {snapshot.elapsed_s:5.1f} s",
        title_align="left",
    )


def plain_line(snapshot: Snapshot) -> str:
    """Write a snapshot as one line."""
    link = f"up {snapshot.link_use:4.0%}" if snapshot.link_up else f"DOWN    {_why(snapshot)}"
    queues = " | ".join(
        f"P{q.priority} waiting {q.waiting} sent {q.sent} expired {q.expired} "
        f"oldest {_seconds(q.oldest_age_s)} p99 {_seconds(q.p99_s)}"
        for q in snapshot.queues
    )
    return f"{snapshot.elapsed_s:6.1f} s  link {link} | {queues}"


def _link_line(snapshot: Snapshot) -> RenderableType:
    line = Table.grid(padding=(0, 1))
    state = Text("up", style="bold green") if snapshot.link_up else Text("DOWN", style="bold red")
    bar = ProgressBar(total=1.0, completed=min(1.0, snapshot.link_use), width=_BAR_WIDTH)
    use = f"{snapshot.link_use:.0%} of {LINK_BIT_S // 1000} kbit/s"
    line.add_row(Text("gateway -> parent"), state, bar, Text(use))
    if snapshot.link_up:
        return line
    return Group(line, Text(f"  {_why(snapshot)}", style="dim", no_wrap=True, overflow="ellipsis"))


def _why(snapshot: Snapshot) -> str:
    return snapshot.link_wait or "the link is cut"


def _queue_table(snapshot: Snapshot) -> RenderableType:
    table = Table(box=None, pad_edge=False)
    table.add_column("priority")
    table.add_column("messages")
    for name in ("waiting", "sent", "expired", "oldest", "latency p50", "p99"):
        table.add_column(name, justify="right")
    for queue in snapshot.queues:
        table.add_row(*_queue_cells(queue), style="bold" if queue.priority == 0 else None)
    return table


def _queue_cells(queue: QueueFigures) -> list[str]:
    return [
        str(queue.priority),
        queue.kinds,
        str(queue.waiting),
        str(queue.sent),
        str(queue.expired),
        _seconds(queue.oldest_age_s),
        _seconds(queue.p50_s),
        _seconds(queue.p99_s),
    ]


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"

"""The sections of the page; each answers one question, also where the answer is none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from analytics import schemas
from analytics.page import plots
from analytics.page.grid import legend, section, split, table
from analytics.page.words import (
    CAUSE_WORDS,
    count,
    counted,
    duration,
    link,
    names,
    priority,
    queue,
    share,
    size,
    text,
)
from analytics.transforms.flows import SLOTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from analytics.page.figures import Figures
    from analytics.page.queries import Record

COLOURS: Final = 7
_DEFAULT_COLOUR: Final = 10
"""The default priority is behind 9."""
_SEVERE: Final = 0.05
_HIGH: Final = 0.005
_EVEN: Final = 2
CAUSE_CLASSES: Final = {
    "offline": "c4",
    "behind": "c1",
    "retry": "c5",
    "rate": "c2",
    "unknown": "c6",
}
WINDOWS_TOLD: Final = 12

_ADVICE: Final = {
    "offline": "the endpoint was not reachable, not named, or the hub did not run. A longer time "
    "to live would keep them: the route's, or the sender's message expiry where that is the "
    "shorter one.",
    "behind": "better priorities had messages to send. Give the route a better priority, or "
    "send less above it.",
    "retry": "they were held back after refusals. See what the endpoint refuses, and why.",
    "rate": "their turn had come, but the link took no more. Send less, or give them more "
    "time: the route's time to live, or the sender's message expiry where that is the shorter one.",
}


def advice(shown: Figures) -> str:
    """Return what to look at first: the queues that lost most, and what their time was spent on."""
    items = []
    for row in shown.spent[:5]:
        parts = {cause: row[f"{cause}_ms"] for cause in schemas.CAUSES}
        cause = max(parts, key=lambda name: parts[name])
        if not row["waited_ms"]:
            continue
        items.append(
            f"<li><b>{queue(row['endpoint'], row['priority'])}</b>:"
            f" {counted(row['rows'], 'message')} expired. For "
            f"{share(parts[cause], row['waited_ms'])} of their wait {_ADVICE[cause]} "
            f"{_hubs_of(shown, row)}</li>"
        )
    items += [f"<li>{_unserved(shown, row)}</li>" for row in shown.unserved]
    if shown.totals["idle_windows"]:
        items.append(
            f"<li>{counted(shown.totals['idle_windows'], 'time')} a link was up, messages waited, "
            "and nothing was sent, without a refusal. That should not happen: see the hub's log of "
            f"these times. {_most_at(shown, [row['hub'] for row in shown.idle_hubs])}</li>"
        )
    if not items:
        return ""
    return section("What to look at", f'<ul class="plain">{"".join(items)}</ul>')


def _hubs_of(shown: Figures, row: Record) -> str:
    """Name the hubs of which most rows of a queue expired."""
    key = (row["endpoint"], row["priority"])
    found = [each for each in shown.hubs_of_queues if (each["endpoint"], each["priority"]) == key]
    hubs = [each["hub"] for each in found]
    return _most_at(shown, hubs, found[0]["among"] if found else 0)


def _most_at(shown: Figures, hubs: Sequence[str], of: int = 0) -> str:
    return f"Most at {names(hubs, of, have_pages=shown.links_hubs)}." if hubs else ""


def worst_hubs(shown: Figures) -> str:
    """List hubs by the share that did not arrive; a single hub needs no list."""
    if shown.totals["hubs"] == 1:
        return ""
    rows = [
        (
            link(row["hub"], has_page=shown.links_hubs),
            _severity(row["lost_share"]),
            share(row["lost_rows"], row["came_rows"]),
            count(row["came_rows"]),
            count(row["lost_rows"]),
            size(row["lost_bytes"]),
            duration(row["starved_ms"]),
            duration(row["idle_ms"]),
            count(row["waiting_rows"]),
            row["state"],
        )
        for row in shown.hubs
    ]
    heads = (
        *("hub", "loss", "share", "messages", "did not arrive", "bytes"),
        *("starved", "idle", "waiting", "day"),
    )
    note = (
        f"The first {len(rows)} of {count(shown.totals['hubs'])}, by the share of messages that "
        f"did not arrive: severe from {_SEVERE * 100:g} %, high from {_HIGH * 100:g} %. "
        "Starved and idle add up over the queues of a hub."
    )
    return section("Worst hubs", table(heads, rows, words=(0, 1, 9)), note)


def all_hubs(hubs: Sequence[str]) -> str:
    """Link the pages of all hubs."""
    if not hubs:
        return ""
    links = "".join(f"<li>{link(hub)}</li>" for hub in hubs)
    return section("All hubs", f'<ul class="names">{links}</ul>', "A page for each hub.")


def _severity(lost: float) -> str:
    if lost >= _SEVERE:
        return '<span class="bad">severe</span>'
    if lost >= _HIGH:
        return '<span class="warn">high</span>'
    return "low" if lost else '<span class="good">none</span>'


def waiting(shown: Figures) -> str:
    """Show what waited over the day, and how long rows waited that were sent."""
    series: dict[int, list[int]] = {}
    for row in shown.waiting:
        series.setdefault(row["priority"], [0] * SLOTS)[row["slot"]] = row["rows"]
    ordered = sorted(series)
    # A priority has its colour on every day and every page.
    classes = {priority(key): f"c{min(key, _DEFAULT_COLOUR) % COLOURS}" for key in ordered}
    every = "All hubs, every" if shown.totals["hubs"] > 1 else "Every"
    note = f"Messages in the queues by priority; 0 is the best. {every} ten minutes of UTC."
    content = '<p class="soft">At none of the ten-minute marks anything waited.</p>'
    if any(any(values) for values in series.values()):
        named = {priority(key): series[key] for key in ordered}
        names = {f"priority {name}": style for name, style in classes.items()}
        content = legend(names) + plots.areas(named, classes, count)
    heads = (
        "queue",
        "sent",
        "half within",
        "90 % within",
        "99 % within",
        "longest",
        "spent",
    )
    rows = [
        (
            queue(row["endpoint"], row["priority"]),
            count(row["sent"]),
            *(duration(row[name]) for name in ("p50_ms", "p90_ms", "p99_ms", "max_ms")),
            _spent(row),
        )
        for row in shown.percentiles
    ]
    below = (
        "<h3>How long sent messages had waited</h3>"
        + _spent_legend()
        + table(heads, rows, words=(0, 6))
    )
    return section("Waiting", content + (below if rows else ""), note)


def expiry(shown: Figures) -> str:
    """Show when and why rows expired, and whose they were."""
    if not shown.causes:
        return section("Expired", '<p class="soft">No message expired.</p>')
    hours: list[dict[str, int]] = [{} for _ in range(24)]
    for row in shown.causes:
        hours[row["hour"]][row["cause"]] = row["rows"]
    note = "Expired messages per hour of UTC, by what took the largest part of their time."
    picture = _spent_legend() + plots.bars(hours, CAUSE_CLASSES, count)
    heads = ("messages", "bytes", "time spent")
    parts = [
        ("By queue", ("queue",), shown.spent),
        ("By route", ("route", "queue"), shown.routes),
    ]
    spread = shown.spread
    is_even = spread["devices"] > len(shown.devices) and spread["most"] <= _EVEN * spread["least"]
    if not is_even:
        parts.append(("By device", ("hub", "device"), shown.devices))
    tables = "".join(
        f"<h3>{title}</h3>"
        + table(
            (*keys, *heads),
            [
                (
                    *(_key(shown, name, row) for name in keys),
                    count(row["rows"]),
                    size(row["bytes"]),
                    _spent(row),
                )
                for row in records
            ],
            words=(*range(len(keys)), len(keys) + 2),
        )
        for title, keys, records in parts
    )
    if is_even:
        tables += (
            f"<h3>By device</h3><p>Evenly over {counted(spread['devices'], 'device')}: "
            f"{count(spread['least'])} to {count(spread['most'])} messages each.</p>"
        )
    return section("Expired", picture + tables, note)


def _spent(row: Record) -> str:
    parts = {CAUSE_CLASSES[cause]: row[f"{cause}_ms"] for cause in schemas.CAUSES}
    shares = ", ".join(
        f"{CAUSE_WORDS[cause]} {share(row[f'{cause}_ms'], row['waited_ms'])}"
        for cause in schemas.CAUSES
    )
    return split(parts, shares)


def _spent_legend() -> str:
    return legend({CAUSE_WORDS[cause]: style for cause, style in CAUSE_CLASSES.items()})


def _key(shown: Figures, name: str, row: Record) -> str:
    if name == "queue":
        return queue(row["endpoint"], row["priority"])
    return link(row["hub"], has_page=shown.links_hubs) if name == "hub" else text(row[name])


def _unserved(shown: Figures, row: Record) -> str:
    what = (
        "no upstream was named"
        if row["endpoint"] == "upstream"
        else f"nothing served the endpoint <b>{text(row['endpoint'])}</b>"
    )
    return (
        f"<b>{link(row['hub'], has_page=shown.links_hubs)}</b>: {what} for "
        f"{duration(row['length_ms'])}; what came for it waited. Name it in the settings of "
        "the hub."
    )

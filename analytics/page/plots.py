"""Pictures as SVG text: no script, no fonts, no files; colours come from the page's style.

Every shape has a title with its numbers. Sizes are in user units; the page scales them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

WIDTH: Final = 760
LEFT: Final = 64
RIGHT: Final = 12
INNER: Final = WIDTH - LEFT - RIGHT
TOP: Final = 10
BOTTOM: Final = 26
HEIGHT: Final = 250
LANE: Final = 24
DAY_MS: Final = 86_400_000
_HOURS: Final = 24
_TICKS: Final = 4
_BAR_MIN: Final = 1.5
_STEPS: Final = (1, 2, 2.5, 5, 10)


def areas(
    series: Mapping[str, Sequence[int]], classes: Mapping[str, str], label: Callable[[int], str]
) -> str:
    """Draw stacked areas over the day, the first series at the bottom.

    Args:
        series: Values at evenly spaced moments, by name; equal lengths.
        classes: Style class of each series.
        label: Writes a value.
    """
    length = max(len(values) for values in series.values())
    totals = [sum(values[at] for values in series.values()) for at in range(length)]
    top = _nice(max([*totals, 1]))
    shapes, below = [], [0] * length
    for name, values in series.items():
        above = [low + value for low, value in zip(below, values, strict=True)]
        upper = [_point(at, value, length, top) for at, value in enumerate(above)]
        lower = [_point(at, value, length, top) for at, value in enumerate(below)]
        points = " ".join([*upper, *reversed(lower)])
        title = f"<title>{name}: at most {label(max(values))}</title>"
        shapes.append(f'<polygon class="{classes[name]}" points="{points}">{title}</polygon>')
        below = above
    return _svg(HEIGHT, _grid(top, label) + "".join(shapes) + _hours(HEIGHT - BOTTOM))


def bars(
    hours: Sequence[Mapping[str, int]], classes: Mapping[str, str], label: Callable[[int], str]
) -> str:
    """Draw one stacked bar per hour, the first class at the bottom."""
    top = _nice(max([*(sum(hour.values()) for hour in hours), 1]))
    step = INNER / len(hours)
    shapes = []
    for at, hour in enumerate(hours):
        low = 0
        for name in classes:
            value = hour.get(name, 0)
            if not value:
                continue
            y, base = _y(low + value, top), _y(low, top)
            title = f"<title>{at:02}:00, {name}: {label(value)}</title>"
            shapes.append(
                f'<rect class="{classes[name]}" x="{LEFT + at * step + 1.5:.1f}" y="{y:.1f}" '
                f'width="{step - 3:.1f}" height="{max(base - y, 0.5):.1f}">{title}</rect>'
            )
            low += value
    return _svg(HEIGHT, _grid(top, label) + "".join(shapes) + _hours(HEIGHT - BOTTOM))


def lanes(rows: Sequence[tuple[str, Sequence[tuple[int, int, str, str]]]]) -> str:
    """Draw one lane per name with bars over the day.

    Args:
        rows: Name and bars: start and length in milliseconds of the day, style class, title.
    """
    height = TOP + LANE * len(rows) + BOTTOM
    shapes = []
    for at, (name, spans) in enumerate(rows):
        y = TOP + at * LANE
        shapes.append(f'<text class="lane" x="{LEFT}" y="{y + 9}">{name}</text>')
        shapes.append(f'<rect class="rail" x="{LEFT}" y="{y + 12}" width="{INNER}" height="9"/>')
        for start_ms, length_ms, style, title in spans:
            first, last = _x(start_ms), _x(min(start_ms + length_ms, DAY_MS))
            shapes.append(
                f'<rect class="{style}" x="{first:.1f}" y="{y + 12}" '
                f'width="{max(last - first, _BAR_MIN):.1f}" height="9">'
                f"<title>{title}</title></rect>"
            )
    return _svg(height, _hours(height - BOTTOM, line_from=TOP) + "".join(shapes), style="lanes")


def _svg(height: int, content: str, style: str = "plot") -> str:
    return f'<svg class="{style}" viewBox="0 0 {WIDTH} {height}" role="img">{content}</svg>'


def _x(day_ms: float) -> float:
    return LEFT + max(day_ms, 0) / DAY_MS * INNER


def _y(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM)


def _point(at: int, value: int, length: int, top: float) -> str:
    return f"{_x((at + 1) / length * DAY_MS):.1f},{_y(value, top):.1f}"


def _nice(value: int) -> float:
    """Return the next round number."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in _STEPS if step * power >= value)


def _grid(top: float, label: Callable[[int], str]) -> str:
    lines = []
    for tick in range(_TICKS + 1):
        value = top * tick / _TICKS
        if tick and value != int(value):
            continue
        y = _y(value, top)
        lines.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        lines.append(
            f'<text class="tick y" x="{LEFT - 6}" y="{y + 4:.1f}">{label(int(value))}</text>'
        )
    return "".join(lines)


def _hours(y: float, line_from: float | None = None) -> str:
    marks = []
    for hour in range(0, _HOURS + 1, 4):
        x = _x(hour / _HOURS * DAY_MS)
        if line_from is not None:
            marks.append(
                f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{line_from}" y2="{y}"/>'
            )
        anchor = "end" if hour == _HOURS else "middle"
        marks.append(
            f'<text class="tick" text-anchor="{anchor}" x="{x:.1f}" y="{y + 17:.1f}">'
            f"{hour:02}:00</text>"
        )
    return "".join(marks)

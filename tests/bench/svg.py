"""Plots of a few measured points, as SVG: panels above one another, over a logarithmic axis."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

WIDTH: Final = 560
PANEL: Final = 150
"""Height of a panel: its title, its plot and the values below."""
TOP: Final = 30
PLOT: Final = 100
LEFT: Final = 70
RIGHT: Final = 40
"""Half of the longest value below an axis."""
STYLE: Final = (
    "text{font:12px sans-serif;fill:#888}.title{font-weight:bold}"
    "line{stroke:#8884}path{fill:none;stroke:#2a7ab8;stroke-width:2}circle{fill:#2a7ab8}"
)


def plot(x_title: str, xs: Sequence[float], panels: Mapping[str, Sequence[float]]) -> str:
    """Return a document with one panel for each series of values over `xs`, which increase."""
    height = PANEL * len(panels) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}">',
        f"<style>{STYLE}</style>",
    ]
    for number, (title, ys) in enumerate(panels.items()):
        parts.append(f'<g transform="translate(0 {number * PANEL})">')
        parts += _panel(title, xs, ys)
        parts.append("</g>")
    parts.append(_text(LEFT + (WIDTH - LEFT - RIGHT) / 2, height - 8, x_title, "middle"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(title: str, xs: Sequence[float], ys: Sequence[float]) -> Iterator[str]:
    bottom = TOP + PLOT
    y_max = _round_up(max(ys))
    across = math.log(xs[-1] / xs[0])
    points = [
        (
            LEFT + math.log(x / xs[0]) / across * (WIDTH - LEFT - RIGHT),
            bottom - y / y_max * PLOT,
        )
        for x, y in zip(xs, ys, strict=True)
    ]
    yield f'<text class="title" x="{LEFT}" y="18">{escape(title)}</text>'
    for share in (0, 0.5, 1):
        y = bottom - share * PLOT
        yield f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>'
        yield _text(LEFT - 8, y + 4, f"{share * y_max:,.10g}", "end")
    yield f'<path d="M{" L".join(f"{x:.1f} {y:.1f}" for x, y in points)}"/>'
    for value, (x, y) in zip(xs, points, strict=True):
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"/>'
        yield _text(x, bottom + 16, f"{value:,.0f}", "middle")


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _round_up(value: float) -> float:
    """Return the next of 1, 2, 5, 10, 20, 50 and so on."""
    power = 10 ** math.floor(math.log10(value))
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power >= value)

"""Building blocks of the page: sections, tables, legends, small bars."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


def section(title: str, content: str, note: str = "") -> str:
    """Return a part of the page with its title."""
    below = f'<p class="soft">{note}</p>' if note else ""
    return f'<section><h2>{title}</h2>{below}<div class="wide">{content}</div></section>'


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, words: Collection[int]) -> str:
    """Write a table; cells are escaped already, columns that are not `words` are numbers."""
    kinds = ["" if at in words else ' class="n"' for at in range(len(heads))]
    head = "".join(f"<th{kind}>{name}</th>" for kind, name in zip(kinds, heads, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(kinds, row, strict=True))
        + "</tr>"
        for row in rows
    )
    whole = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="wide"><table>{whole}</table></div>'


def legend(classes: Mapping[str, str]) -> str:
    """Return the meaning of colours."""
    items = "".join(f'<li><i class="{style}"></i>{name}</li>' for name, style in classes.items())
    return f'<ul class="legend">{items}</ul>'


def split(parts: Mapping[str, int], title: str) -> str:
    """Draw the parts of a whole as one thin bar."""
    whole = sum(parts.values()) or 1
    bars = "".join(
        f'<i class="{style}" style="width:{value / whole * 100:.1f}%"></i>'
        for style, value in parts.items()
    )
    return f'<span class="split" title="{title}">{bars}</span>'

"""Texts that many rows repeat, stored once: message sources and lists of route names.

Owns the table `label`. A text beyond the bounds is not interned but written into its row, so that
sources made from topics cannot fill memory. Invariant: a label is written in the same transaction
as the first row that uses it, or before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterable

LABELS_MAX: Final = 4096
LABEL_CHARS_MAX: Final = 512


class Labels:
    """Both directions of the table, in memory."""

    def __init__(self, stored: Iterable[tuple[int, str]] = ()) -> None:
        self._texts: dict[int, str] = dict(stored)
        self._by_text = {text: label for label, text in self._texts.items()}
        self._by_routes: dict[tuple[str, ...], int | str] = {}
        self._routes: dict[int, tuple[str, ...]] = {}
        self.unsaved: list[tuple[int, str]] = []

    def intern(self, text: str) -> int | str:
        """Return the label of `text`, or the text itself where it is not interned.

        Raises:
            UnicodeEncodeError: The text cannot be written as UTF-8.
        """
        label = self._by_text.get(text)
        if label is not None:
            return label
        text.encode()
        if len(self._texts) >= LABELS_MAX or len(text) > LABEL_CHARS_MAX:
            return text
        label = len(self._texts) + 1
        self._texts[label] = text
        self._by_text[text] = label
        self.unsaved.append((label, text))
        return label

    def text(self, label: int | str) -> str:
        """Return the text of what `intern` returned."""
        return label if isinstance(label, str) else self._texts[label]

    def intern_routes(self, routes: tuple[str, ...]) -> int | str:
        """Return the label of a list of route names, or the list as JSON text.

        Raises:
            UnicodeEncodeError: A name cannot be written as UTF-8.
        """
        known = self._by_routes.get(routes)
        if known is not None:
            return known
        for name in routes:
            name.encode()
        label = self.intern(orjson.dumps(routes).decode())
        if isinstance(label, int):
            self._by_routes[routes] = label
            self._routes[label] = routes
        return label

    def routes(self, label: int | str) -> tuple[str, ...]:
        """Return the route names of what `intern_routes` returned."""
        if isinstance(label, int):
            known = self._routes.get(label)
            if known is not None:
                return known
        routes = tuple(orjson.loads(self.text(label)))
        if isinstance(label, int):
            self._routes[label] = routes
        return routes

    def saved(self, labels: list[tuple[int, str]]) -> None:
        """Record that these labels are in the file."""
        done = set(labels)
        self.unsaved = [label for label in self.unsaved if label not in done]

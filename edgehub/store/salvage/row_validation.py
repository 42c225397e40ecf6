"""Validates records of a damaged file, and repairs what can be repaired.

SQLite checks the structure of pages, not their contents. Pure. Invariant: what passes can be
read, sent and counted like any other row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import orjson

Record = Sequence[Any]
Check = Callable[[Record], "Record | None"]
"""Returns the record as it can be stored, None = the hub did not write it."""

HEADER_FIELDS_MIN: Final = 3
SOURCE_UNKNOWN: Final = "/messages/"
ROUTES_UNKNOWN: Final = '["unknown"]'
STORE_ID: Final = re.compile(r"[a-z2-7]{12}")


class RowValidator:
    """Checks records of one file, labels first.

    Attributes:
        refused: Records of the table at hand that did not pass.
    """

    def __init__(self) -> None:
        self._labels: set[int] = set()
        self.refused = 0

    def of(self, table: str, columns: Sequence[str]) -> Check:
        """Return the check of a table's records, which come as `columns`."""
        self.refused = 0
        if table == "label":
            return self._label
        if table == "meta":
            return self._meta
        if "header" in columns and "body" in columns:
            places = {name: place for place, name in enumerate(columns)}
            return lambda record: self._message(list(record), places)
        return _as_it_is

    def _label(self, record: Record) -> Record | None:
        self._labels.add(record[0])
        return record

    def _meta(self, record: Record) -> Record | None:
        if record[0] == "store_id" and not STORE_ID.fullmatch(str(record[1])):
            self.refused += 1
            return None
        return record

    def _message(self, values: list[Any], places: dict[str, int]) -> Record | None:
        header, body = values[places["header"]], values[places["body"]]
        shared = "body_id" in places and values[places["body_id"]] is not None
        repaired = None if shared else self._header(header)
        size = values[places["size"]] if "size" in places else 1
        whole = shared if repaired is None else isinstance(body, bytes)
        if not whole or not isinstance(size, int) or size <= 0:
            self.refused += 1
            return None
        if repaired is not None:
            values[places["header"]] = repaired
        if "routes" in places:
            values[places["routes"]] = self._routes(values[places["routes"]])
        return values

    def _header(self, header: Any) -> bytes | None:
        """Check what `encode_header` wrote; a source whose label is lost becomes the usual one."""
        try:
            fields = orjson.loads(header)
        except orjson.JSONDecodeError:  # also for what is no bytes
            return None
        if not isinstance(fields, list) or len(fields) < HEADER_FIELDS_MIN:
            return None
        device, module, source, *bags = fields
        texts = isinstance(device, str) and isinstance(module, str | None)
        if not texts or not all(isinstance(bag, dict) for bag in bags):
            return None
        if isinstance(source, str) or source in self._labels:
            return bytes(header)
        return orjson.dumps([device, module, SOURCE_UNKNOWN, *bags])

    def _routes(self, routes: Any) -> Any:
        if isinstance(routes, int):
            return routes if routes in self._labels else ROUTES_UNKNOWN
        try:
            names = orjson.loads(routes)
        except (orjson.JSONDecodeError, TypeError):
            return ROUTES_UNKNOWN
        return routes if isinstance(names, list) and names else ROUTES_UNKNOWN


def _as_it_is(record: Record) -> Record | None:
    return record

"""A day of a fleet of simulated hubs, written by all cores, with the manifests of its export."""

from __future__ import annotations

import gzip
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from tests.support.journal_days import HubModel
from tests.support.journal_lines import write_manifest
from tests.support.report import DATE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.support.journal_lines import Segment


def write_fleet(export: Path, messages: Sequence[int], *, times: int = 1) -> int:
    """Write the day of hubs `hub-00`, `hub-01` and so on.

    Args:
        export: The export.
        messages: Of each hub; a message is some two lines.
        times: How many hubs there are of each, with the same day.

    Returns:
        The number of lines.
    """
    with ProcessPoolExecutor() as pool:
        write = partial(_write_hub, export, times)
        return sum(pool.map(write, range(len(messages)), messages))


def _write_hub(export: Path, times: int, number: int, messages: int) -> int:
    model = HubModel(f"hub-{number:02}", messages, Random(number), headroom=0.95 + number / 100)
    segments = model.write_day(export, DATE)
    write_manifest(export, model.hub, model.store, DATE, segments)
    for time in range(1, times):
        hub = f"{model.hub}-{time}"
        repeated = [_repeat(segment, model.hub, hub) for segment in segments]
        write_manifest(export, hub, model.store, DATE, repeated)
    return times * sum(segment.lines for segment in segments)


def _repeat(segment: Segment, model: str, hub: str) -> Segment:
    """Write a segment of another hub with the same lines."""
    folder = segment.path.parent.with_name(f"hub={hub}")
    folder.mkdir(exist_ok=True)
    text = gzip.decompress(segment.path.read_bytes())
    text = text.replace(f'"hub":"{model}"'.encode(), f'"hub":"{hub}"'.encode())
    path = folder / segment.path.name
    path.write_bytes(gzip.compress(text, 1))
    return segment._replace(path=path)

"""Which hubs of a date can be reported on: each is judged alone, before its lines are read.

Owns the comparison of segments with manifests. A hub whose segments are not those of its
manifests, or cannot be unpacked, is damaged; the others are not concerned.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zlib
from collections import defaultdict
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType

from analytics.args import EXPECTED_DAYS
from analytics.errors import InputError
from analytics.files import literal
from analytics.session import is_small

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from analytics.args import JobArgs
    from analytics.files import Files

SEGMENTS: Final = "*.{jsonl,jsonl.gz}"
_FILE: Final = re.compile(r"/hub=([^/]*)/([^/]*)$")
_STORE: Final = re.compile(r"^\d{12}-([0-9a-f]{8})\.jsonl")
_COMMITS: Final = re.compile(r"^(\d{12})-(\d{12})")
_MANIFEST: Final = (
    "segments array<struct<path string, bytes bigint, sha256 string,"
    " first_commit bigint, last_commit bigint>>"
)


class Found(NamedTuple):
    """A segment as it lies in the folder of its hub."""

    size: int
    sha256: str


class Listed(NamedTuple):
    """A segment as a manifest has it."""

    size: int
    sha256: str
    first_commit: int
    last_commit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What is known of the hubs of a date before a line is read.

    Attributes:
        folders: Folder of each sound hub.
        damaged: The other hubs, each with the reason.
        doubtful: Sound hubs of which lines may be there twice.
        has_several_stores: Whether a sound hub had more than one database file.
        size: Bytes of the segments of sound hubs.
        fingerprint: Of the same segments, and of what is doubtful.
    """

    folders: Mapping[str, str]
    damaged: Mapping[str, str]
    doubtful: frozenset[str]
    has_several_stores: bool
    size: int
    fingerprint: str


def survey(spark: SparkSession, files: Files, args: JobArgs) -> Survey:
    """Judge the segments of each hub by the manifests of its exports.

    Args:
        spark: The session.
        files: Access to the folders.
        args: What is asked for; hubs that are left out are not looked at.

    Raises:
        InputError: The export itself is not there.
    """
    if not files.exists(args.input):
        raise InputError(f"--input {args.input}: no such folder; name what the hubs export to")
    folders = _folders(files, f"{args.input}/date={args.date}")
    for hub in args.exclude_hubs:
        folders.pop(hub, None)
    if not folders:
        return judged({}, {}, {}, {})
    packed = _content(spark, folders.values(), SEGMENTS)
    # The digest takes a second for ten million lines, and finds what sizes do not show.
    found: dict[str, dict[str, Found]] = {hub: {} for hub in folders}
    for path, size, digest in packed.select("path", "length", F.sha2("content", 256)).collect():
        hub, name = _place(path)
        found[hub][name] = Found(size, digest)
    listed = _listed(spark, files, args, found)
    unlisted = [hub for hub in found if found[hub].keys() - listed[hub].keys()]
    torn: dict[str, set[str]] = defaultdict(set)
    if unlisted:
        size = sum(segment.size for hub in unlisted for segment in found[hub].values())
        packed = _content(spark, [folders[hub] for hub in unlisted], "*.jsonl.gz")
        for path in _torn(packed, size):
            hub, name = _place(path)
            torn[hub].add(name)
    return judged(folders, found, listed, torn)


def expected_hubs(spark: SparkSession, files: Files, args: JobArgs) -> set[str]:
    """Return the hubs that should have lines: those of `--hubs`, or of the last dates.

    Raises:
        InputError: The file of `--hubs` is not there.
    """
    if args.hubs is not None:
        if not files.exists(args.hubs):
            raise InputError(f"--hubs {args.hubs}: no such file; write one hub id a line")
        named = spark.read.text(literal(args.hubs)).collect()
        return {row["value"].strip() for row in named} - {"", *args.exclude_hubs}
    dates = (args.date - timedelta(days=ago) for ago in range(1, EXPECTED_DAYS + 1))
    folders = [f"{args.output}/hubs/date={date}" for date in dates]
    known = [literal(folder) for folder in folders if files.exists(folder)]
    if not known:
        return set()
    seen = spark.read.parquet(*known).where(F.col("state") != "silent").select("hub").distinct()
    return {row["hub"] for row in seen.collect()} - set(args.exclude_hubs)


def judged(
    folders: Mapping[str, str],
    found: Mapping[str, Mapping[str, Found]],
    listed: Mapping[str, Mapping[str, Listed]],
    torn: Mapping[str, Collection[str]],
) -> Survey:
    """Judge hubs.

    Args:
        folders: Folder of each hub.
        found: Segments of each hub by name.
        listed: The same as manifests have them.
        torn: Segments of no manifest that cannot be unpacked.
    """
    damaged = {}
    for hub in sorted(folders):
        if reason := _damage(found[hub], listed[hub], torn.get(hub, ())):
            damaged[hub] = reason
    sound = [hub for hub in folders if hub not in damaged]
    doubtful = frozenset(hub for hub in sound if _may_repeat(found[hub], listed[hub]))
    return Survey(
        folders={hub: folders[hub] for hub in sound},
        damaged=damaged,
        doubtful=doubtful,
        has_several_stores=any(
            _are_several({_store(name) for name in found[hub]}) for hub in sound
        ),
        size=sum(segment.size for hub in sound for segment in found[hub].values()),
        fingerprint=_fingerprint({hub: found[hub] for hub in sound}, doubtful),
    )


def _fingerprint(found: Mapping[str, Mapping[str, Found]], doubtful: Collection[str]) -> str:
    segments = [
        (hub, name, segment.sha256, hub in doubtful)
        for hub, own in sorted(found.items())
        for name, segment in sorted(own.items())
    ]
    return hashlib.sha256(json.dumps(segments).encode()).hexdigest()


def is_whole(packed: bytes) -> bool:
    """Return whether a gzip file can be unpacked to its end."""
    try:
        gzip.decompress(packed)
    except (EOFError, OSError, zlib.error):
        return False
    return bool(packed)


def _torn(packed: DataFrame, size: int) -> list[str]:
    """Return the gzip files that cannot be unpacked to their end; `size` is that of all."""
    if is_small(size):
        # Starting Python workers takes longer than to unpack them here.
        read = packed.select("path", "content").collect()
        return [row["path"] for row in read if not is_whole(bytes(row["content"]))]
    unpacks = F.udf(is_whole, BooleanType(), useArrow=False)
    return [row["path"] for row in packed.where(~unpacks("content")).select("path").collect()]


def _damage(
    found: Mapping[str, Found], listed: Mapping[str, Listed], torn: Collection[str]
) -> str | None:
    """Return what is wrong with the segments of a hub, the first by name."""
    for name in sorted(found.keys() | listed.keys()):
        if name not in found:
            # Spark lists no file without a byte.
            return f"segment {name}, which a manifest names, is missing or empty"
        size, digest = found[name]
        if name in listed and size != listed[name].size:
            return f"segment {name} has {size} bytes, by its manifest {listed[name].size}"
        if name in listed and digest != listed[name].sha256:
            return f"segment {name} has other bytes than its manifest says"
        if name in torn:
            return f"segment {name} cannot be unpacked to its end"
    return None


def _may_repeat(found: Mapping[str, Found], listed: Mapping[str, Listed]) -> bool:
    """Return whether a line may be in two segments: their commits overlap, or are not known."""
    if found.keys() - listed.keys():
        return True
    spans: dict[str | None, list[tuple[int, int]]] = defaultdict(list)
    for name in found:
        spans[_store(name)].append((listed[name].first_commit, listed[name].last_commit))
    return any(
        before[1] >= after[0] for each in spans.values() for before, after in pairwise(sorted(each))
    )


def _listed(
    spark: SparkSession,
    files: Files,
    args: JobArgs,
    found: Mapping[str, Mapping[str, Found]],
) -> dict[str, dict[str, Listed]]:
    """Read the segments of the date that manifests name."""
    listed: dict[str, dict[str, Listed]] = {hub: {} for hub in found}
    known = _folders(files, f"{args.input}/_exports")
    folders = [folder for hub, folder in known.items() if hub in found]
    if not folders:
        return listed
    manifests = _content(spark, folders, "*.json").select("path").collect()
    wanted = [row["path"] for row in manifests if _may_name(row["path"], found)]
    if not wanted:
        return listed
    segments = (
        spark.read.schema(_MANIFEST)
        .option("multiLine", value=True)
        .json([literal(path) for path in wanted])
        .select(F.inline("segments"))
        .where(F.col("path").startswith(f"date={args.date}/"))
    )
    for path, *said in segments.collect():
        hub, name = _place(path)
        if hub in listed:
            listed[hub][name] = Listed(*said)
    return listed


def _may_name(path: str, found: Mapping[str, Mapping[str, Found]]) -> bool:
    """Return whether a manifest may name a segment of the date, by the commits in its name.

    A hub has one for each export that it ever made; those of other stores are taken too.
    """
    hub, name = _place(path)
    commits = _COMMITS.match(name)
    if commits is None:
        return True
    first = min((segment[:12] for segment in found[hub]), default="")
    return commits[2] >= first


def _folders(files: Files, parent: str) -> dict[str, str]:
    return {
        folder.rsplit("/hub=", 1)[1]: folder for folder in files.glob(f"{literal(parent)}/hub=*")
    }


def _content(spark: SparkSession, folders: Iterable[str], pattern: str) -> DataFrame:
    return (
        spark.read.format("binaryFile")
        .option("pathGlobFilter", pattern)
        .option("recursiveFileLookup", value=True)
        .load([literal(folder) for folder in folders])
    )


def _place(path: str) -> tuple[str, str]:
    """Return hub and name of a file."""
    match = _FILE.search(path)
    assert match is not None
    return match[1], match[2]


def _are_several(stores: Collection[str | None]) -> bool:
    return len(stores) > 1 or None in stores


def _store(name: str) -> str | None:
    match = _STORE.match(name)
    return match[1] if match else None

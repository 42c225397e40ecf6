"""The batch format: several messages as one payload, for thin links.

Pure functions on bytes. A payload is JSON Lines, plain or as one zstd frame; the first line has the
version and the count, and each further line is the record of one message. Invariants: `read_batch`
reads what `build_batch` builds; the memory for a payload is bounded before it is unpacked.

Source: RFC 8878 (zstd), and docs/reference/batch-format.md.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import orjson

from edgehub.errors import EdgeHubError
from edgehub.message import PROPERTIES_MAX

try:
    # At the start: while the hub runs, its files may be replaced, or no descriptor may be free.
    import zstandard
except ImportError:
    zstandard = None  # type: ignore[assignment]  # an extra

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BATCH_TYPE: Final = "application/vnd.edgehub.batch+jsonl"
"""Content type of a payload; the content encoding is `zstd` or absent."""

BATCH_VERSION: Final = 1
RECORDS_MAX: Final = 4096
UNPACKED_BYTES_MAX: Final = 2 * 2**20
"""Bytes of an unpacked payload, unless a single message needs more."""

ZSTD_ENCODING: Final = "zstd"

PLAIN_BYTES: Final = 64 * 1024
"""Longer JSON of a client has to be `PLAIN_OBJECT` before it is parsed.

Nested arrays take 50 times the memory of their text, and a hundred milliseconds for each MiB.
"""

_TEXT: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_MEMBERS: Final = rb'[^"{}\[\]]*+(?:%b[^"{}\[\]]*+){0,%d}+'
_TEXTS_MAX: Final = 2 * PROPERTIES_MAX + 32
PLAIN_OBJECT: Final = re.compile(
    rb"\{%b\}" % (_MEMBERS % (rb"(?:%b|\{%b\})" % (_TEXT, _MEMBERS % (_TEXT, _TEXTS_MAX)), 32))
)
"""An object of few members: texts, numbers, literals, and objects of at most so many properties."""

_VERSION_KEY: Final = "edgehub_batch"
_COUNT_KEY: Final = "records"
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
# 64 records in 0.2 ms; level 15 gains 3 % of it, and takes ten times as long.
_ZSTD_LEVEL: Final = 9


class BatchError(EdgeHubError):
    """A payload is not a batch; the text is the reason."""


class BatchLibraryError(EdgeHubError):
    """A batch is compressed, and the library for it is not installed."""


def has_zstd() -> bool:
    """Return whether compressed batches can be written and read."""
    return zstandard is not None


def build_batch(records: Sequence[bytes], *, compress: bool) -> bytes:
    """Build the payload of some records.

    Args:
        records: One JSON object each, without a line end.
        compress: Build one zstd frame with its content size.
    """
    assert 1 <= len(records) <= RECORDS_MAX, len(records)
    head = orjson.dumps({_VERSION_KEY: BATCH_VERSION, _COUNT_KEY: len(records)})
    lines = b"\n".join((head, *records, b""))
    if not compress:
        return lines
    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(lines)


def read_batch(payload: bytes, *, bytes_max: int) -> Iterator[dict[str, Any]]:
    """Read the records of a payload one by one, in their order.

    Whether it is a whole batch is known after the last record.

    Args:
        payload: Received payload, compressed or not.
        bytes_max: Bound of the unpacked bytes.

    Raises:
        BatchError: If it is not a whole batch of a supported version, or takes more.
        BatchLibraryError: If the library that unpacks it is not installed.
    """
    text = _unpacked(payload, bytes_max)
    # Counted before they are read: a kilobyte of zstd holds hundreds of thousands of lines.
    if (count := text.count(b"\n")) > RECORDS_MAX + 1:
        raise BatchError(f"{count} lines, at most {RECORDS_MAX + 1}")
    lines = text.split(b"\n")
    if lines[-1]:
        raise BatchError("the last line has no end")
    if not lines[:-1]:
        raise BatchError("it is empty: not an object")
    head = _object(lines[0])
    if head.get(_VERSION_KEY) != BATCH_VERSION:
        raise BatchError(f"version {ascii(head.get(_VERSION_KEY))[:20]}, known is {BATCH_VERSION}")
    if head.get(_COUNT_KEY) != len(lines) - 2:
        raise BatchError(f"{len(lines) - 2} records, where its first line says otherwise")
    for line in lines[1:-1]:
        yield _object(line)


def _object(line: bytes) -> dict[str, Any]:
    if len(line) > PLAIN_BYTES and PLAIN_OBJECT.fullmatch(line) is None:
        raise BatchError("a long line is no object of texts, numbers and properties")
    try:
        document = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise BatchError(f"a line is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise BatchError("a line is not an object")
    return document


def _unpacked(payload: bytes, bytes_max: int) -> bytes:
    if not payload.startswith(_ZSTD_MAGIC):
        if len(payload) > bytes_max:
            raise BatchError(f"{len(payload)} bytes, at most {bytes_max}")
        return payload
    if not has_zstd():
        raise BatchLibraryError("a zstd batch, and zstandard is not installed")
    try:
        size = zstandard.frame_content_size(payload)
        if not 0 <= size <= bytes_max:
            raise BatchError(f"unpacks to {size} bytes, at most {bytes_max}")
        return zstandard.ZstdDecompressor().decompress(
            payload, max_output_size=bytes_max, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise BatchError(f"not a whole zstd frame: {error}") from None

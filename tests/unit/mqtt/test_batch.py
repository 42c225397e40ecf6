"""The batch format: what is built is read, and what is none is refused within bounds."""

from __future__ import annotations

import json

import pytest
import zstandard

from edgehub.mqtt import batch
from edgehub.mqtt.batch import (
    UNPACKED_BYTES_MAX,
    BatchError,
    BatchLibraryError,
    build_batch,
    read_batch,
)
from tests.support.fuzzing import bounded

LIMIT = 10_000
ONE = b'{"id":"a","body":"x"}'


@pytest.mark.parametrize("compress", [False, True])
def test_what_is_built_is_read(compress: bool) -> None:
    """All records, in their order, whatever stands in their texts."""
    bodies = ["", "a\nb\r\n", "\u2028 é \U0001f600", "x" * 3000]
    records = [json.dumps({"id": str(n), "body": body}).encode() for n, body in enumerate(bodies)]
    payload = build_batch(records, compress=compress)
    assert [record["body"] for record in read_batch(payload, bytes_max=LIMIT)] == bodies


def test_a_payload_says_what_it_is() -> None:
    """The first line names format, version and count; compressed, it is one frame of zstd."""
    plain = build_batch([ONE, ONE], compress=False)
    assert plain == b'{"edgehub_batch":1,"records":2}\n' + 2 * (ONE + b"\n")
    packed = build_batch([ONE, ONE], compress=True)
    assert packed.startswith(b"\x28\xb5\x2f\xfd")
    assert zstandard.frame_content_size(packed) == len(plain)


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"", "not an object"),
        (b"21.5", "no end"),
        (b"{}\n", "version None"),
        (b'{"edgehub_batch":2,"records":0}\n', "version 2, known is 1"),
        (b'{"edgehub_batch":1,"records":2}\n' + ONE + b"\n", "1 records"),
        (b'{"edgehub_batch":1,"records":1}\n' + ONE, "no end"),
        (b'{"edgehub_batch":1,"records":1}\n{"id":\n', "not JSON"),
        (b'{"edgehub_batch":1,"records":1}\n[]\n', "not an object"),
        (b'{"edgehub_batch":1,"records":1}\n{"id":"\xff"}\n', "not JSON"),
        (b'{"edgehub_batch":1,"records":1}\n{"id":"\\ud800"}\n', "not JSON"),
        (build_batch([ONE] * 600, compress=False), "at most 10000"),
        (build_batch([ONE] * 4096, compress=True), "unpacks to 90147 bytes, at most 10000"),
        (build_batch([ONE], compress=True)[:-3], "not a whole zstd frame"),
        (build_batch([ONE], compress=True) + b"more", "not a whole zstd frame"),
        (zstandard.ZstdCompressor(write_content_size=False).compress(ONE), "unpacks to -1"),
    ],
)
def test_what_is_no_batch_is_refused(payload: bytes, words: str) -> None:
    """Torn, foreign, of another version, larger than may be: said in words, nothing unpacked."""
    with pytest.raises(BatchError, match=words):
        list(read_batch(payload, bytes_max=LIMIT))


def test_the_lines_are_counted_before_they_are_read() -> None:
    """Two megabytes of empty objects in a kilobyte of zstd cost neither their time nor room."""
    payload = zstandard.ZstdCompressor().compress(b"{}\n" * (UNPACKED_BYTES_MAX // 3))
    assert len(payload) < 1_000

    def refusal() -> str:
        with pytest.raises(BatchError) as refused:
            list(read_batch(payload, bytes_max=UNPACKED_BYTES_MAX))
        return str(refused.value)

    assert bounded(refusal, memory_bytes=2 * UNPACKED_BYTES_MAX) == "699050 lines, at most 4097"


def test_without_the_library_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub without the extra tells a compressed batch from a broken one; plain ones it reads."""
    packed = build_batch([ONE], compress=True)
    monkeypatch.setattr(batch, "zstandard", None)
    assert not batch.has_zstd()
    with pytest.raises(BatchLibraryError):
        list(read_batch(packed, bytes_max=LIMIT))
    assert len(list(read_batch(build_batch([ONE], compress=False), bytes_max=LIMIT))) == 1

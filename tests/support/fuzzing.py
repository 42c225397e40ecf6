"""Hostile inputs for parsers: damaged copies of valid ones, and the bounds that hold for each."""

from __future__ import annotations

import gc
import itertools
import os
import time
import tracemalloc
from typing import TYPE_CHECKING, Any, AnyStr, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")
Test = TypeVar("Test", bound="Callable[..., Any]")

EXAMPLES = 2_000 if os.environ.get("EDGEHUB_SOAK") else 20
DAMAGES_MAX = 4
COPIES_MAX = 40
TRIES = 3
DEEP = 3_000
"""Levels of nesting that no parser takes."""

JSON_PIECES = [
    *[b"{", b"}", b"[", b"]", b'"', b",", b":", b"\\", b"null", b"true", b"-1", b"0", b"1e999"],
    *[
        b"[" * DEEP,
        b'{"a":' * DEEP,
        b"9" * 5_000,
        b"0.5",
        b'""',
        b"{}",
        b"[]",
        b"18446744073709551616",
    ],
    *[rb'"\ud800"', rb'"\u0000"', b"\xff", b"\xef\xbb\xbf", b"\n", b"\xe2\x80\xa8", b"NaN"],
]
"""What breaks readers of JSON."""

cuts = st.lists(st.integers(0, 2**16), max_size=8)
"""Places for `cut`."""


def sized(examples: int) -> Callable[[Test], Test]:
    """Return a decorator that runs a test of `@given` with some examples, and in `make soak`."""

    def decorate(test: Test) -> Test:
        quiet = [HealthCheck.too_slow, HealthCheck.data_too_large]
        limited = settings(max_examples=examples, suppress_health_check=quiet)(test)
        return pytest.mark.timeout(60 + EXAMPLES)(pytest.mark.scaled(limited))

    return decorate


fuzzer = sized(EXAMPLES)
"""Runs a test with few examples, and with many in `make soak`."""


def hostile(valid: Sequence[bytes], pieces: Sequence[bytes] = ()) -> st.SearchStrategy[bytes]:
    """Build valid inputs with bits flipped and parts cut out, repeated and exchanged, or any bytes.

    Args:
        valid: Inputs that the parser takes.
        pieces: Parts that are put in, besides short random ones.
    """
    damaged = _damaged(valid, _with(pieces, st.binary(max_size=4)), _flipped)
    return damaged | st.binary(max_size=200)


def hostile_text(valid: Sequence[str], pieces: Sequence[str] = ()) -> st.SearchStrategy[str]:
    """Build damaged texts, as `hostile` does bytes."""
    damaged = _damaged(valid, _with(pieces, st.text(max_size=4)), lambda _draw, _part: "")
    return damaged | st.text(max_size=200)


def cut(stream: bytes, places: Sequence[int]) -> list[bytes]:
    """Cut a stream at places, which count modulo its length."""
    bounds = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[start:end] for start, end in itertools.pairwise(bounds)]


def bounded(
    call: Callable[[], T],
    refusal: type[Exception] | tuple[type[Exception], ...] = (),
    *,
    cpu_s: float = 0.05,
    memory_bytes: int = 4 * 2**20,
) -> Any:
    """Return the result of a call that keeps to its bounds, or the error by which it refuses.

    It is called once for the time and once for the memory, since tracing makes it several times
    slower. One that seems to take longer is called again: a collection of garbage may have come
    between.

    Args:
        call: Has the same result each time.
        refusal: Errors that are documented; another one is raised.
        cpu_s: Seconds that it may take on a processor.
        memory_bytes: What it may hold at once.
    """

    def answer() -> Any:
        try:
            return call()
        except refusal as error:
            return error

    took_s = []
    for _ in range(TRIES):
        began_s = time.thread_time()
        answer()
        took_s.append(time.thread_time() - began_s)
        if took_s[-1] <= cpu_s:
            break
        gc.collect()
    else:
        raise AssertionError(f"{min(took_s)} s")
    tracemalloc.start()
    try:
        result = answer()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= memory_bytes, f"{peak} bytes"
    return result


def _with(pieces: Sequence[AnyStr], others: st.SearchStrategy[AnyStr]) -> st.SearchStrategy[AnyStr]:
    return st.sampled_from(pieces) | others if pieces else others


def _flipped(draw: st.DrawFn, part: bytes) -> bytes:
    return bytes([part[0] ^ 1 << draw(st.integers(0, 7))]) + part[1:] if part else b""


@st.composite
def _damaged(
    draw: st.DrawFn,
    valid: Sequence[AnyStr],
    pieces: st.SearchStrategy[AnyStr],
    flip: Callable[[st.DrawFn, AnyStr], AnyStr],
) -> AnyStr:
    whole = draw(st.sampled_from(valid))
    for _ in range(draw(st.integers(1, DAMAGES_MAX))):
        start = draw(st.integers(0, len(whole)))
        end = draw(st.integers(start, min(len(whole), start + 16)))
        before, part, after = whole[:start], whole[start:end], whole[end:]
        match draw(st.sampled_from(["flip", "cut", "end", "double", "put", "splice"])):
            case "flip":
                whole = before + flip(draw, part) + after
            case "cut":
                whole = before + after
            case "end":
                whole = before
            case "double":
                whole = before + part * draw(st.integers(2, COPIES_MAX)) + after
            case "put":
                whole = before + draw(pieces) + draw(st.sampled_from([part, part[:0]])) + after
            case "splice":
                other = draw(st.sampled_from(valid))
                whole = before + other[draw(st.integers(0, len(other))) :]
    return whole

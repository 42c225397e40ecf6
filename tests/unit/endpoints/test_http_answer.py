"""What answers of an HTTP peer mean."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgehub.endpoints.http_answer import interpret
from edgehub.endpoints.http_link import Answer
from edgehub.message import FailureKind

NOW_MS = 1_777_636_800_000  # 2026-05-01 12:00:00 UTC


def answer(status: int, body: bytes = b"", **headers: str) -> Answer:
    """Build an answer; `_` in names of headers stands for `-`."""
    built = Answer()
    built.status = status
    built.body = body
    built.headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return built


@pytest.mark.parametrize(
    ("status", "kind", "splits", "doubtful", "pauses"),
    [
        (200, None, False, False, False),
        (202, None, False, False, False),
        (400, FailureKind.REJECTED, True, False, False),
        (422, FailureKind.REJECTED, True, False, False),
        (413, FailureKind.TOO_LARGE, True, False, False),
        (401, FailureKind.UNAUTHORIZED, False, False, True),
        (403, FailureKind.NOT_AUTHORIZED, True, False, False),
        (407, FailureKind.UNAUTHORIZED, False, False, True),
        (404, FailureKind.TRANSIENT, True, True, False),
        (409, FailureKind.TRANSIENT, True, True, False),
        (429, FailureKind.THROTTLED, False, False, True),
        (500, FailureKind.TRANSIENT, True, True, False),
        (503, FailureKind.TRANSIENT, True, True, False),
        (599, FailureKind.TRANSIENT, True, True, False),
    ],
)
def test_statuses(
    status: int, kind: FailureKind | None, splits: bool, doubtful: bool, pauses: bool
) -> None:
    """Delivered, never acceptable, not let in, later, and who is to blame."""
    verdict = interpret(answer(status), NOW_MS)
    assert verdict.result.kind is kind
    assert (verdict.splits, verdict.doubtful, verdict.pauses) == (splits, doubtful, pauses)
    assert not verdict.broken


@pytest.mark.parametrize(
    ("text", "date", "wait_s"),
    [
        ("0", "", 0.0),
        ("120", "", 120.0),
        ("99999999999999999999", "", 3600.0),
        ("Fri, 01 May 2026 12:00:30 GMT", "", 30.0),
        ("Fri, 01 May 2026 12:00:30 GMT", "Fri, 01 May 2026 12:00:20 GMT", 10.0),
        ("Fri, 01 May 2026 11:00:00 GMT", "", 0.0),
    ],
)
def test_retry_after(text: str, date: str, wait_s: float) -> None:
    """Seconds or a date, cut to an hour; the peer's own date goes before our clock."""
    headers = {"retry_after": text, **({"date": date} if date else {})}
    verdict = interpret(answer(503, **headers), NOW_MS)
    assert verdict.result.kind is FailureKind.THROTTLED
    assert verdict.result.retry_after_s == wait_s


def test_a_retry_after_that_cannot_be_read_is_none() -> None:
    """Then 503 is an error like others."""
    verdict = interpret(answer(503, retry_after="soon"), NOW_MS)
    assert verdict.result.kind is FailureKind.TRANSIENT


def test_reasons_are_short_and_printable() -> None:
    """Texts of the peer go to logs and dead letters."""
    document = orjson.dumps({"detail": "tag \x1b[31m" + "x" * 500})
    reason = interpret(answer(422, document, content_type="application/problem+json"), NOW_MS)
    assert reason.result.reason.startswith("422 Unprocessable Entity: tag \\x1b[31mxxx")
    assert len(reason.result.reason) < 200
    plain = interpret(answer(400, b"no\r\nsuch tag", content_type="text/plain"), NOW_MS)
    assert plain.result.reason == "400 Bad Request: no such tag"
    page = interpret(answer(400, b"<html>", content_type="text/html"), NOW_MS)
    assert page.result.reason == "400 Bad Request"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
ENTRY = st.fixed_dictionaries(
    {"id": st.text() | JSON, "status": st.integers(0, 700) | JSON}, optional={"reason": JSON}
)
RESULTS = st.fixed_dictionaries({"results": st.lists(ENTRY) | JSON})


@given(
    st.integers(200, 600),
    st.binary()
    | (RESULTS | JSON).map(lambda value: orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)),
    st.dictionaries(
        st.sampled_from(["retry_after", "date", "content_type", "location"]), st.text()
    ),
)
def test_any_answer_has_one_meaning(status: int, body: bytes, headers: dict[str, str]) -> None:
    """Whatever a peer says; a row with a status below 200 or above 299 is never delivered."""
    verdict = interpret(answer(status, body, **headers), NOW_MS)
    if status >= 300:
        assert verdict.broken or verdict.result.kind is not None
    elif verdict.by_id:
        for entry in orjson.loads(body)["results"]:
            if not 200 <= entry["status"] < 300:
                last = [e for e in orjson.loads(body)["results"] if e["id"] == entry["id"]][-1]
                delivered = verdict.by_id[entry["id"]].kind is None
                assert delivered == (200 <= last["status"] < 300)

"""What peers of endpoints send: any bytes are packets, answers or an error, however cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgehub.endpoints.http_answer import RETRY_AFTER_MAX_S, interpret
from edgehub.endpoints.http_link import Answer
from tests.support.fuzzing import JSON_PIECES, bounded, fuzzer, hostile, hostile_text

NOW_MS = 1_777_636_800_000

BODIES = [
    b'{"results":[{"id":"1","status":204},{"id":"2","status":422,"reason":"no such tag"}]}',
    b'{"detail":"later","status":503}',
    b"plain words",
]
VALUES = ["120", "Fri, 01 May 2026 12:00:30 GMT", "application/problem+json", "text/plain"]
VALUE_PIECES = ["0001", "9999", "99999", "+9999", "-2400", "9" * 5_000, "\xb2", "\u0663", "31 Feb"]


@fuzzer
@given(
    st.integers(200, 600),
    hostile(BODIES, JSON_PIECES),
    st.dictionaries(
        st.sampled_from(["retry-after", "date", "content-type", "location"]),
        hostile_text(VALUES, VALUE_PIECES),
    ),
)
def test_a_damaged_answer_of_an_http_peer_has_one_meaning(status, body, headers):
    """Its reason is short and printable, a pause is bounded, and an error delivers nothing."""
    answer = Answer()
    answer.status, answer.body, answer.headers = status, body, headers
    verdict = bounded(lambda: interpret(answer, NOW_MS))
    assert verdict.broken or status < 300 or verdict.result.kind is not None
    for result in (verdict.result, *verdict.by_id.values()):
        assert result.reason is None or (len(result.reason) < 700 and result.reason.isprintable())
        assert 0 <= (result.retry_after_s or 0) <= RETRY_AFTER_MAX_S

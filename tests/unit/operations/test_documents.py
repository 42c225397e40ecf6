"""Rows and dead letters as they are shown: nothing of the payload unless asked for."""

from __future__ import annotations

import json

import pytest

from edgehub.message import NEVER_MS, EndpointId, FailureKind, Message, Priority, Row, queue_id
from edgehub.operations.documents import letter_document, row_document
from edgehub.pump.poison import NextStep, Suspicion
from edgehub.store import DeadLetter
from edgehub.store.statistics import RowState

MARKER = "SECRET-42"


def a_message(body: bytes = MARKER.encode()) -> Message:
    """Build a message whose values all hold the marker."""
    values: dict[str, str | None] = {"kind": MARKER, "empty": None}
    return Message("dev", "cam", "/messages/", values, {"messageId": MARKER}, body, None, "s-1")


@pytest.mark.parametrize("payload", [False, True])
def test_a_row_hides_its_payload(payload: bool) -> None:
    """O-03: names of properties and sizes are shown, values and bodies are not."""
    row = Row(5, a_message(), 1000, NEVER_MS, ("r",), 300)
    document = row_document(
        row, RowState.WAITING, None, now_ms=3000, utc_ms=lambda hub_ms: hub_ms, payload=payload
    )
    assert (MARKER in json.dumps(document)) is payload
    assert (document["age_s"], document["ttl_s"], document["expires_in_s"]) == (2.0, None, None)
    assert document["enqueued"] == "1970-01-01T00:00:01.000Z"
    assert sorted(document["properties"]) == ["empty", "kind"]


@pytest.mark.parametrize("payload", [False, True])
def test_a_dead_letter_hides_its_payload(payload: bool) -> None:
    """O-03, likewise; its tries count the last one, which ended it."""
    letter = DeadLetter(
        id=7,
        dead_ms=2000,
        endpoint_id=EndpointId("lab"),
        priority=Priority(2),
        kind=FailureKind.REJECTED,
        reason="no",
        offset=5,
        enqueued_ms=1000,
        expires_ms=NEVER_MS,
        attempts=3,
        routes=("r",),
        size=300,
        body_bytes=9,
        message=a_message(),
    )
    document = letter_document(letter, utc_ms=lambda hub_ms: hub_ms, payload=payload)
    assert (MARKER in json.dumps(document)) is payload
    assert (document["dead_letter"], document["attempts"]) == (7, 4)
    assert document["queue"] == queue_id(letter.endpoint_id, letter.priority)


def test_a_body_that_is_no_text_is_shown_as_base64() -> None:
    """Any bytes can be shown."""
    row = Row(5, a_message(b"\xff\x00"), 1000, 5000, ("r",), 300)
    document = row_document(
        row, RowState.HELD, None, now_ms=3000, utc_ms=lambda hub_ms: hub_ms, payload=True
    )
    assert (document["body_base64"], document["expires_in_s"]) == ("/wA=", 2.0)


def test_closes_over_a_row_are_tries_of_it() -> None:
    """They are not among its attempts, which count refusals by name."""
    row = Row(5, a_message(), 1000, NEVER_MS, ("r",), 300)
    suspicion = Suspicion(
        closes=3,
        alone=3,
        cleared=False,
        next=NextStep.KEPT_OUT,
        closes_left=None,
        quiet_left_s=None,
    )
    document = row_document(
        row, RowState.KEPT_OUT, suspicion, now_ms=3000, utc_ms=lambda hub_ms: hub_ms, payload=False
    )
    assert (document["state"], document["attempts"], document["closes"]) == ("kept_out", 0, 3)

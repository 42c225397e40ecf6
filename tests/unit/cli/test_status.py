"""`edgehub status`: lines above the table."""

from __future__ import annotations

from edgehub.cli.status import _clock_text, _entities_text


def test_a_clock_that_is_not_trusted_says_what_that_costs() -> None:
    """Whoever sees it first wants to know whether messages are held up."""
    clock = {"trusted": False, "reason": "not set", "correction_s": 0, "off_s": 0, "ageing": False}
    assert _clock_text(clock) == "not trusted, not set (queues work; nothing is exported)"
    assert _clock_text({**clock, "trusted": True}) == "trusted"


def test_unusable_messages_stand_next_to_the_entities() -> None:
    """With where to read why; one is not many."""
    entities = {
        "entities": 2,
        "errors_total": 3,
        "errors_topic": "te/errors",
        "pending": {"messages": 1, "entities_total": 1},
        "creations_under_way": 0,
        "creations_refused": 0,
    }
    assert _entities_text(entities) == (
        "2 registered; 1 message held for 1 that are not;"
        " 3 messages could not be used (edgehub listen te/errors)"
    )
    assert "1 message could not" in _entities_text({**entities, "errors_total": 1})

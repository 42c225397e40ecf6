"""Warnings of `edgehub status`: what they say of senders whose messages a peer refuses."""

from __future__ import annotations

from typing import Any

from edgehub.hub.status import refused_warnings


def _text(*, state: str = "up", depth: int, dead: int, retry_s: float = 0.0) -> str:
    sender = {
        "sender": "line-8-x",
        "closes": 4,
        "reason": "closed by the peer",
        "dead_lettered": dead,
        "retry_in_s": retry_s,
    }
    endpoint: dict[str, Any] = {"id": "upstream", "state": state, "refused_senders": [sender]}
    (text,) = refused_warnings([endpoint], [{"endpoint": "upstream", "depth": depth}])
    assert "'line-8-x' (it closed the connection 4 times)" in text
    return text


def test_a_refused_sender_of_which_nothing_waits_is_not_announced_to_be_tried() -> None:
    """Its dead letters are named, with the command that sends them."""
    text = _text(depth=0, dead=3, retry_s=5)
    assert "waits" not in text
    assert "5 s" not in text
    assert "3 messages of them have become dead letters: `edgehub queue dead requeue`" in text
    assert "1 message of them has become a dead letter" in _text(depth=0, dead=1)


def test_the_next_try_of_a_refused_sender_is_named() -> None:
    """With the seconds, and where the endpoint is down with that instead."""
    assert "what waits of them is tried in 5 s" in _text(depth=2, dead=0, retry_s=5)
    assert _text(depth=2, dead=0).endswith("what waits of them is tried now")
    text = _text(depth=2, dead=0, state="down")
    assert text.endswith("what waits of them is tried once the endpoint, which is down, is up")

"""One line of the page for each scenario, and the advice before the others."""

from __future__ import annotations

from typing import Any

from analytics.page.scenarios import scenarios


def effect(name: str, **more: object) -> dict[str, Any]:
    """Build what a scenario comes to."""
    known = {"arrived": 0, "of": 0, "costs": {}, "net": 0, "hubs": 3, "untold": 0}
    return {"scenario": name, **known, **more}


def page(*effects: dict[str, Any], best: str | None = None, advised: bool = False) -> str:
    """Return the section."""
    return scenarios({"effects": effects, "best": best, "advised": advised, "fragment": None})


def test_nothing_is_shown_where_nothing_was_asked() -> None:
    """The section is not there."""
    assert not scenarios({})


def test_the_advice_comes_first_with_what_it_costs() -> None:
    """Then the others, by what they come to."""
    shown = page(
        effect("less <1>", net=-5, costs={"0": 5}),
        effect("longer", arrived=180_000, of=448_407, costs={"9": 9_000}, net=171_000, untold=1),
        effect("more", arrived=10, of=20, net=10),
        best="longer",
        advised=True,
    )
    lines = shown.split("<li>")[1:]
    assert [line.startswith("<b>Advice</b>: longer: ") for line in lines] == [True, False, False]
    assert "180\u202f000 of 448\u202f407 messages that did not arrive would have" in lines[0]
    assert "costs 9\u202f000 messages of priority 9. Cannot be told at 1 hub." in lines[0]
    assert lines[1].startswith("more: 10 of 20")
    lost = "no more messages would have arrived; costs 5 messages of priority 0"
    assert f"less &lt;1&gt;: {lost}" in lines[2]


def test_a_grid_without_a_use_is_shown() -> None:
    """And a scenario that could be told nowhere."""
    shown = page(effect("n", hubs=0, untold=2), advised=True)
    assert "No other priority or time to live would have let more arrive." in shown
    assert "n: concerns no hub whose day can be simulated. Cannot be told at 2 hubs." in shown

"""Bare words in place of texts: which are warned of, and which are properties."""

import pytest

from edgehub.routes.query.parser import parse_condition, parse_route


def words(condition: str) -> list[str]:
    """Return the names that the condition is warned of."""
    warnings = parse_condition(condition).warnings
    assert all("is the name of a property" in each.message for each in warnings)
    return [each.message.split("`")[1] for each in warnings]


@pytest.mark.parametrize(
    ("condition", "suspicious"),
    [
        ("kind = alarm", ["alarm"]),
        ("kind != alarm", ["alarm"]),
        ("kind <> alarm", ["alarm"]),
        ("kind = alarm OR kind = warning", ["alarm", "warning"]),
        ("kind = alarm OR level = Alarm", ["alarm"]),
        ("site = 'n' AND NOT (kind = alarm)", ["alarm"]),
        ("$body.state = running", ["running"]),
        ("running = $body.state", ["running"]),
        ("$connectionDeviceId = pump", ["pump"]),
        ("lower(kind) = alarm", ["alarm"]),
        ("starts_with(site, north)", ["north"]),
        ("ends_with(site, north)", ["north"]),
        ("contains($body.text, error)", ["error"]),
        ("index_of(site, north) >= 0", ["north"]),
    ],
)
def test_a_bare_word_in_place_of_a_text_is_warned_of(condition, suspicious):
    """Opposite to a value in an equality, or as what a search looks for, each word once."""
    assert words(condition) == suspicious


@pytest.mark.parametrize(
    "condition",
    [
        "kind = 'alarm'",
        "'alarm' = kind",
        "level < limit",
        "kind = kind",
        "is_defined(expected) AND kind = expected",
        "kind = expected AND expected != 'none'",
        "length(kind) = length(expected)",
        "concat(kind, site) = 'alarmnorth'",
        "(kind ?? fallback) = 'alarm'",
        "contains(site, $body.part)",
        "$body.a = $body.b",
        "is_null(kind)",
    ],
)
def test_what_is_a_property_is_not_warned_of(condition):
    """Comparisons with texts, order, and names that the condition uses in another way as well."""
    assert words(condition) == []


def test_the_warning_has_place_and_remedy():
    """It names the word, the text to write instead, and how to end the warning."""
    (warning,) = parse_route("FROM /messages/* WHERE kind = alarm INTO $upstream").warnings
    assert str(warning) == (
        "line 1, column 31: `alarm` is the name of a property; for a text write 'alarm' "
        "(where it is one, `is_defined(alarm) AND ...` ends this warning)"
    )

"""Static types: what compiles, what does not, and what is said about it."""

import pytest

from edgehub.errors import RouteCompileError
from edgehub.routes.query.parser import parse_condition


@pytest.mark.parametrize(
    ("condition", "hint"),
    [
        ("level > 5", "as_number"),
        ("5 < level", "as_number"),
        ("site = null", "is_null"),
        ("site = undefined", "is_defined"),
        ("true = 1", ""),
        ("1 < 2 < 3", "parentheses"),
        ("NOT site = 'x'", ""),
        ("altitude ?? 'n' = 'n'", "parentheses"),
        ("site ?? null", "is_null"),
        ("3 + level", "as_number"),
        ("3 + true", ""),
        ("undefined + 3", ""),
        ("$body.x % 2 = 0", "as_number"),
        ("- $body.x = 2", "as_number"),
        ("- site = 2", "as_number"),
        ("'a' || 5 = 'a5'", ""),
        ("'a' || null = 'a'", ""),
        ("NOT 'x'", ""),
        ("NOT undefined", ""),
        ("site AND true", "as_number"),
        ("undefined AND 'x'", "as_number"),
        ("site = 'x' AND $body.flag", "= true"),
        ("null AND $body.flag", "= true"),
        ("$body.flag AND site", ""),
        ("$body.flag AND 5", ""),
        ("$body.x = undefined", "is_defined"),
        ("$body.x ?? undefined = 1", "is_defined"),
        ("5-3 = 2", "blanks"),
        ("a*b + 1 = 2", "blanks"),
        ("$x[0] = 'x'", ""),
    ],
)
def test_operands_that_do_not_fit_are_refused(condition, hint):
    """There are no implicit casts; the hint says what to write."""
    with pytest.raises(RouteCompileError) as refused:
        parse_condition(condition)
    assert refused.value.faults[0].kind == "condition"
    assert hint in refused.value.hint


@pytest.mark.parametrize(
    "condition",
    [
        "undefined = undefined",
        "null = null AND null",
        "null OR $body.x = 1",
        "$body.flag AND site = 'x'",
        "$body.flag AND undefined",
        "$body.flag OR $body.other",
        "NOT $body.flag",
        "NOT null",
        "$body.x + $body.y * 2 = 4",
        "$body.x = $body.y",
        "true = $body.x",
        "$body.x = null",
        "($body.x ?? 1) = 1",
        "$body.s || 'x' = 'yx'",
        "abs($body.x) = 1",
        "is_defined($x[0])",
        "site",
        "5",
        "undefined ?? undefined",
    ],
)
def test_what_fits_compiles(condition):
    """Body values fit everywhere but where the original refuses them."""
    assert parse_condition(condition).expression is not None


@pytest.mark.parametrize(
    ("condition", "kind"),
    [("site", "text"), ("5 + 1", "number"), ("null", "null"), ("undefined", "undefined")],
)
def test_a_condition_that_can_never_be_true_gives_a_warning(condition, kind):
    """It compiles, as in the original, but says that the route takes nothing."""
    assert kind in parse_condition(condition).warnings[0].message


@pytest.mark.parametrize(
    "condition",
    [
        "as_number()",
        "as_number('1', '2')",
        "as_number(true) = 1",
        "as_number(null) = 1",
        "concat('a') = 'a'",
        "concat('a', 1) = 'a1'",
        "length(5) = 1",
        "lower(null) = 'x'",
        "substring('a') = 'a'",
        "substring('a', '1') = 'a'",
        "substring('a', 1, 2, 3) = 'a'",
        "index_of('a', 1) = 0",
        "starts_with('a', undefined)",
        "contains(true, 'a')",
        "abs('x') = 1",
        "power(2) = 4",
        "is_defined()",
        "is_null(1, 2)",
    ],
)
def test_functions_check_number_and_type_of_arguments(condition):
    """The message has the name and the forms that exist."""
    with pytest.raises(RouteCompileError) as refused:
        parse_condition(condition)
    name = condition.partition("(")[0]
    assert f"`{name}` does not take" in refused.value.message
    assert f"{name}(" in refused.value.hint


def test_unknown_functions_get_a_near_miss():
    """A misspelt name is answered with the right one, the unusable one with the reason."""
    with pytest.raises(RouteCompileError) as misspelt:
        parse_condition("start_with(a, 'x')")
    assert "starts_with" in misspelt.value.hint
    with pytest.raises(RouteCompileError) as unusable:
        parse_condition("twin_change_includes(properties.reported)")
    assert "unknown function" in unusable.value.message


def test_one_mistake_is_reported_once():
    """What is built on a faulty expression is not complained about again."""
    with pytest.raises(RouteCompileError) as refused:
        parse_condition("NOT (level > 5) AND lower(concat(1, 'x')) || 'y' = 'z' ?? true")
    assert len(refused.value.faults) == 2


@pytest.mark.parametrize(
    "path",
    [
        "",
        "a.",
        ".a",
        "a..b",
        "a[]",
        "a[-1]",
        "a[x]",
        "a[1.5]",
        "a[0]b",
        "a[",
        "[0]",
        "0",
        "a.0.b",
        "*",
        "a.*.b",
        "a]",
    ],
)
def test_body_paths_that_break_the_grammar_are_refused(path):
    """Empty steps, negative indexes, wildcards, bare digits and stray text are faults."""
    with pytest.raises(RouteCompileError) as refused:
        parse_condition(f"$body.{path} = 1")
    assert refused.value.message

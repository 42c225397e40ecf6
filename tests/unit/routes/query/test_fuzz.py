"""Whatever the text and whatever the message: compile errors at most, never another exception."""

import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edgehub.errors import ManifestError, RouteCompileError
from edgehub.routes.explain import explain_routing
from edgehub.routes.query.lexer import TEXT_CHARS_MAX
from edgehub.routes.query.parser import parse_condition, parse_route
from tests.support.condition_strategies import bools, messages
from tests.support.routes import a_message, a_table, matches, value_of

VALID = [
    "FROM /messages/* INTO $upstream",
    "SELECT * FROM /messages/modules/cam/outputs/* WHERE kind = 'alarm' INTO $upstream",
    'FROM /mqtt/p/+/tele/# WHERE as_number(level) > 5 AND $body.a[0].b = "x" INTO $upstream',
    "FROM /* WHERE NOT (a = 'x' OR is_defined(b)) /* why */ INTO Endpoint('lab')",
    "FROM /* WHERE ({$messageId} ?? 'n') = 'n' INTO BrokeredEndpoint('/modules/m/inputs/i')",
    "FROM /messages WHERE concat(a, 'b', c) || 'd' <> substring(lower(x), 1, 2 % 2) INTO $upstream",
]
PIECES = [
    *string.printable,
    *["/*", "*/", "??", "||", "'", '"', "\\u00e9", "\\", "$body.", "WHERE ", " INTO ", "NOT "],
    *["null", "undefined", "0x", "1e5", "((((", "))))", "\x00", "\ud800", "😀", "[0]", "{$"],
]


def assert_only_compile_errors(parse, text):
    """Parse; a refusal must carry faults with places inside the text."""
    try:
        parse(text)
    except RouteCompileError as error:
        lines = text.split("\n")
        for fault in error.faults:
            assert 0 < len(fault.message) < 400
            assert 1 <= fault.line <= len(lines)
            assert 1 <= fault.column <= len(lines[fault.line - 1]) + 1


@given(st.text(max_size=200))
@example("")
@example("\x00")
@example("FROM")
def test_any_text_is_parsed_or_refused(text):
    """Arbitrary text raises nothing but compile errors."""
    assert_only_compile_errors(parse_route, text)
    assert_only_compile_errors(parse_condition, text)
    assert_only_compile_errors(parse_route, f"FROM /messages/* WHERE {text} INTO $upstream")


@pytest.mark.parametrize(
    "piece",
    [
        "(",
        "NOT ",
        "- ",
        "a || ",
        "true AND ",
        "1 + ",
        "lower(",
        "a ?? ",
        "a = ",
        "'",
        "$body.a.",
        "/*",
        "/m",
    ],
)
def test_huge_texts_are_parsed_or_refused(piece):
    """Text of the allowed length and beyond neither overflows the stack nor takes for ever."""
    for repeats in (1_000, TEXT_CHARS_MAX // len(piece), TEXT_CHARS_MAX):
        assert_only_compile_errors(parse_condition, piece * repeats + "a")
        assert_only_compile_errors(parse_route, "FROM " + piece * repeats + " INTO $upstream")


def test_a_long_chain_compiles():
    """A chain of one operator is no nesting, however long it is."""
    condition = " OR ".join(f"kind = 'kind-{number}'" for number in range(75))
    assert matches(condition, a_message(properties={"kind": "kind-74"}))
    assert matches(" || ".join(["a"] * 150) + f" = '{'x' * 150}'", a_message(properties={"a": "x"}))


@pytest.mark.parametrize(
    "text", ["FROM /\ud800messages/* INTO $upstream", "FROM /* WHERE a = 'x\udfff' INTO $upstream"]
)
def test_half_a_character_is_refused_where_it_stands(text):
    """No file and no topic can hold it, so a check of the route says so before a manifest does."""
    with pytest.raises(RouteCompileError) as refused:
        parse_route(text)
    (fault,) = refused.value.faults
    assert (fault.line, fault.column) == (1, 1 + max(text.find("\ud800"), text.find("\udfff")))
    assert "half a character" in fault.message


@st.composite
def mutated_routes(draw):
    """Take a valid route and delete, double, replace or insert pieces."""
    text = draw(st.sampled_from(VALID))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = draw(st.integers(start, min(len(text), start + 8)))
        text = (
            text[:start]
            + draw(st.sampled_from([*PIECES, ""])) * draw(st.integers(1, 2))
            + (text[draw(st.sampled_from([start, end])) :])
        )
    return text


@given(mutated_routes(), messages)
def test_mutated_routes_are_refused_or_run(text, message):
    """A route with errors sprinkled in is refused, or compiles and runs."""
    assert_only_compile_errors(parse_route, text)
    try:
        route = parse_route(text)
    except RouteCompileError:
        return
    if not route.sink.named:
        table = a_table({"r": text})
        table.evaluate(message)
        explain_routing(table, message)


@given(bools, messages)
def test_compiled_conditions_agree_with_their_value(condition, message):
    """The short code of a table routes exactly what has the value true, and never raises."""
    try:
        value = value_of(condition, message)
    except RouteCompileError as error:
        refusal = error.message
    else:
        refusal = ""
    if refusal:
        # Only chains of AND and OR with a body value in the wrong place are made here.
        assert "takes bools" in refusal, condition
        return
    table = a_table(
        {
            "yes": f"FROM /* WHERE {condition} INTO $upstream",
            "no": f"FROM /* WHERE NOT {condition} INTO BrokeredEndpoint('/modules/m/inputs/i')",
        }
    )
    taken = {name for result in table.evaluate(message) for name in result.routes}
    assert taken == ({"yes"} if value is True else {"no"} if value is False else set())
    explain_routing(table, message)


@pytest.mark.parametrize(
    ("before", "core", "after"),
    [
        ("NOT (", "a = 'x'", ")"),
        ("(", "a = 'x'", ") = true"),
        ("is_bool(", "a = 'x'", ")"),
        ("(b = 'y' AND ", "a = 'x'", " = false)"),
        ("(b = 'y' OR ", "a = 'x'", " ?? true)"),
        ("($body.x OR ", "a = 'x'", " = $body.y)"),
        ("lower(upper(", "a", "))"),
        ("(", "a", " || 'x' ?? 'y')"),
        ("(1 + ", "as_number(a)", ") * 2"),
        ("substring(concat(a, ", "a", "), 0)"),
        ("power(2, ", "as_number(a)", ")"),
        ("($body.x ?? ", "$body.z", ")"),
    ],
)
def test_nesting_compiles_up_to_the_limit(before, core, after):
    """Nested up to the limit a condition becomes code, beyond it is refused; both in good order."""
    deepest = 0
    for depth in range(3, 63, 4):
        inner = before * depth + core + after * depth
        condition = f"is_defined({inner}) AND NOT is_null({inner})"
        try:
            table = a_table({"r": f"FROM /* WHERE {condition} INTO $upstream"})
        except ManifestError as error:
            refusal = str(error)
            break
        table.evaluate(a_message(properties={"a": "x"}))
        deepest = depth
    else:
        refusal = ""
    assert "levels deep" in refusal
    assert deepest >= 15

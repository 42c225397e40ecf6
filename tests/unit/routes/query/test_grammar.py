"""How route text is cut into tokens and put together."""

import pytest

from edgehub.errors import RouteCompileError, RouteFaultKind
from edgehub.routes.query.parser import parse_condition, parse_route
from tests.support.routes import a_message, matches, value_of


def refusal(text: str) -> RouteCompileError:
    """Parse a route that must be refused."""
    with pytest.raises(RouteCompileError) as refused:
        parse_route(text)
    return refused.value


@pytest.mark.parametrize(
    ("text", "source", "condition"),
    [
        ("FROM /messages/* WHERE c = 'x' /* why */ INTO $upstream", "/messages/", "c = 'x'"),
        ("FROM /* WHERE c = 'x' /* why */ INTO $upstream", "/", "c = 'x'"),
        ("FROM /* /* all */ INTO $upstream", "/", "true"),
        ("FROM /* all */ /messages INTO $upstream", "/messages/", "true"),
        ("FROM /messages/*/* all */ INTO $upstream", "/messages/", "true"),
        ("FROM /messages/* /* INTO */ INTO $upstream", "/messages/", "true"),
        ("FROM /messages/modules/cam/* it */ INTO $upstream", "/messages/modules/cam/", "true"),
        ("FROM /messages/*\nWHERE(c = 'x')/* c */INTO $upstream", "/messages/", "(c = 'x')"),
        ("FROM /messages /* INTO $upstream", "/messages/", "true"),
        ("/* a */ FROM /messages/* INTO $upstream /* b */ /* c */", "/messages/", "true"),
        ("FROM / messages / * INTO $upstream", "/messages/", "true"),
        (
            "FROM /messages/* WHERE a /* b */ = /* c */ 'x' INTO $upstream",
            "/messages/",
            "a /* b */ = /* c */ 'x'",
        ),
        ("FROM /mqtt/a/* WHERE true INTO $upstream", None, None),
        ("FROM /MQTT/a/+/b%20c/# /* x */ INTO $upstream", "/mqtt/a/+/b%20c/#", "true"),
    ],
)
def test_stars_and_comments_are_distinguished(text, source, condition):
    """`/*` is a star where the path ends in it, and a comment everywhere else."""
    if source is None:
        refusal(text)
        return
    route = parse_route(text)
    assert (str(route.source), route.condition.text) == (source, condition)


@pytest.mark.parametrize(
    ("text", "column", "words"),
    [
        ("FROM /messages /* a /* b */ INTO $upstream", 16, "star of the path or"),
        ("FROM /messages/* WHERE true /* INTO $upstream", 30, "unexpected `*`"),
        ("FROM /messages/* INTO $upstream WHERE x = 'y'", 33, "after the end"),
        ("FROM /messages/* INTO $upstream ;", 33, "';'"),
        ("FROM /messages/* INTO $upstream $upstream", 33, "after the end"),
        ("FROM /messages/*INTO $upstream", 22, "unexpected `$upstream`"),
        ("SELECT*FROM /messages/* INTO $upstream", 1, "begins with FROM"),
        ("SELECT FROM /messages/* INTO $upstream", 8, "unexpected `FROM`"),
        ("FROM /messages/modules/404 INTO $upstream", 24, "part of a path"),
        ("FROM /messages/modules/null INTO $upstream", 24, "part of a path"),
        ("FROM /messages/modules/$x INTO $upstream", 24, "part of a path"),
        ("FROM /messages/* WHERE from = 'x' INTO $upstream", 24, "unexpected `from`"),
        ("FROM /messages/* WHERE a = 'x' && b = 'y' INTO $upstream", 32, "unexpected `&&`"),
        ("FROM /messages/* WHERE a = 'x'AND b = 'y' INTO $upstream", 35, "unexpected `b`"),
        ("FROM /messages/* WHERE (a = 'x' INTO $upstream", 33, "unexpected `INTO`"),
        ("FROM /messages/* WHERE (a = 'x'", 32, "`)` is missing"),
        ("FROM /messages/* WHERE a =", 27, "missing after `=`"),
        ("FROM /messages/* INTO", 22, "sink is missing"),
        ("FROM /messages/* INTO upstream", 31, "`upstream` is not a whole sink"),
        ("FROM /messages/* INTO Endpoint", 31, "`Endpoint` is not a whole sink"),
        ("SELECT * INTO $upstream", 10, "unexpected `INTO`"),
        ("FROM /messages/'a' INTO $upstream", 16, "part of a path"),
        ("FROM /messages/* WHERE INTO $upstream", 24, "unexpected `INTO`"),
        ("FROM /messages/* WHERE a = 'b\\q' INTO $upstream", 30, "unknown escape `\\q`"),
        ("FROM /messages/* WHERE a = '\\U0041' INTO $upstream", 29, "unknown escape `\\U`"),
        ('FROM /messages/* WHERE a = "x INTO $upstream', 28, "string has no end"),
        ("/messages/* INTO $upstream", 1, "begins with FROM"),
    ],
)
def test_syntax_errors_say_where_and_what(text, column, words):
    """A syntax error points at the place in the whole route text."""
    error = refusal(text)
    assert (error.line, error.column) == (1, column)
    assert words in error.message
    assert error.faults[0].kind is RouteFaultKind.SYNTAX


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("FROM '/messages/*' INTO $upstream", "a source is a path such as /messages/*"),
        ("FROM /messages/* a INTO $upstream", "after the source comes WHERE or INTO"),
        ("FROM /messages/* WHERE AND a = 'x' INTO $upstream", "something is missing between it"),
        ("FROM /messages/* WHERE a = 'x' b INTO $upstream", "an operator is missing between `'x'`"),
        ("FROM /messages/* WHERE (a = 'x' INTO $upstream", "a closing `)` is missing before it"),
        ("FROM /messages/* WHERE a = 'x') INTO $upstream", "no `(` is open here"),
        ("FROM /messages/* INTO 'x'", "a sink is $upstream, "),
    ],
)
def test_syntax_errors_say_what_would_be_right(text, hint):
    """The hint goes by what stands before the place."""
    assert hint in refusal(text).hint


def test_a_fault_of_a_second_condition_does_not_name_what_follows_a_source():
    """What could follow is an operator or INTO, and no source stands before it."""
    assert not refusal("FROM /messages/* WHERE a = 'x' WHERE b = 'y' INTO $upstream").hint


def test_places_count_lines():
    """Lines and columns are those of the route text, both from 1 on."""
    error = refusal("FROM /messages/*\nWHERE a = 'x'\n  AND level > 5\nINTO $upstream")
    assert (error.line, error.column) == (3, 13)


def test_a_sink_without_its_dollar_gets_a_hint():
    """The commonest slip of a route is mended in the message."""
    assert refusal("FROM /messages/* INTO Upstream").hint == "write $upstream"


def test_all_faults_of_a_route_are_reported_together():
    """Type errors, unknown functions, body paths and the sink are found in one go."""
    error = refusal(
        "FROM /messages/* WHERE lengths(a) = 2 AND level > 5 AND $body.a[-] = 1 INTO Endpoints('x')"
    )
    assert [fault.column for fault in error.faults] == [24, 49, 57, 77]
    assert "length" in error.faults[0].hint
    assert "as_number" in error.faults[1].hint
    assert "Endpoint" in error.faults[3].hint
    assert [fault.kind for fault in error.faults] == ["condition"] * 3 + ["sink"]


@pytest.mark.parametrize("bad", ["@", "a ; b", "a ? b", "x:y = 'z'", "a[0] = 'x'", "{a} = 'x'"])
def test_characters_that_form_no_token_are_refused(bad):
    """What belongs to no token is a syntax error."""
    with pytest.raises(RouteCompileError):
        parse_condition(bad)


@pytest.mark.parametrize(
    ("name", "condition"),
    [
        ("a-b", "a-b = 'x'"),
        ("a!", "a!='x'"),
        ("'x'||'y'", "'x'||'y' = 'x'"),
        ("1_000", "1_000 = 'x'"),
        ("+5", "+5 = 'x'"),
        ("-0x10", "-0x10 = 'x'"),
        ("True", "True = 'x'"),
        ("e2", "e2 = 'x'"),
        ("größe", "größe = 'x'"),
        ("#", "# = 'x'"),
    ],
)
def test_names_hold_almost_any_character(name, condition):
    """The longest match makes one name of what looks like an operation."""
    assert matches(condition, a_message(properties={name: "x"}))


@pytest.mark.parametrize("condition", ["a+b = 'x'", "a!='x'", "5-3 = 'x'", "'x'||'y' = 'z'"])
def test_names_that_look_like_operations_give_a_warning(condition):
    """What was probably meant otherwise is said, though it compiles as in the original."""
    assert "one property name" in parse_condition(condition).warnings[0].message


@pytest.mark.parametrize(
    "condition",
    [
        "0x10 = 16",
        "0XFF = 255",
        "0Xff = 0xFF",
        "0xFFFFFFFFFFFFFFFF = - 1",
        "0x8000000000000000 < 0",
        "0x00000000000000000000001 = 1",
        "007 = 7",
        ".5 = 0.5",
        "-.5e1 = -5",
        "1e400 = 1 / 0",
        "12e-1 = 1.2",
        "6/3 = 2",
        "- -5 = 5",
        "'a\\'b\\\"\\\\' = \"a'b\\\"\\\\\"",
        "'\\u0041' = 'A'",
        "length('\\\\u0041') = 6",
        "length('\\ud83d\\ude00') = 2",
        "'\\ud83d\\ude00' = '😀'",
        "'a\nb' = \"a\nb\"",
        '"x"||"y" = "xy"',
        "(true)and(true)OR(false)",
        "TRUE = 'x' OR true",
    ],
)
def test_literals_and_operators(condition):
    """Numbers, strings with escapes, and operators next to parentheses and quotes."""
    assert matches(condition, a_message(properties={"TRUE": "x"}))


@pytest.mark.parametrize(
    ("condition", "value"),
    [
        ("2 + 3 * 4 = 14", True),
        ("(2 + 3) * 4 = 20", True),
        ("- 2 * 3 = -6", True),
        ("10 - 4 - 3 = 3", True),
        ("16 / 4 / 2 = 2", True),
        ("1 + 1 < 3 = true", True),
        ("true OR true AND false", True),
        ("(true OR true) AND false", False),
        ("NOT false AND false", False),
        ("false ?? true OR true", False),
        ("('a' || 'b' = 'ab') ?? false", True),
        ("7 % 4 = 3", True),
        ("- 7 % 4 = -3", True),
    ],
)
def test_operators_bind_as_documented(condition, value):
    """Tightest first: minus, NOT, products, sums, order, equality, AND, OR, `??`."""
    assert value_of(condition) is value


def test_a_hexadecimal_of_more_than_64_bits_is_refused():
    """It has no value in two's complement."""
    with pytest.raises(RouteCompileError, match="64 bits"):
        parse_condition("0x1FFFFFFFFFFFFFFFF = 1")


def test_conditions_alone_count_from_their_own_start():
    """Places in a condition that stands alone are its own."""
    with pytest.raises(RouteCompileError) as refused:
        parse_condition("level > 5")
    assert (refused.value.line, refused.value.column) == (1, 7)
    assert parse_condition("  a = 'x' /* b */ ").text == "a = 'x'"

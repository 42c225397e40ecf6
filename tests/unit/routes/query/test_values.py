"""What conditions give: functions and their edges, three-valued logic, comparisons."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgehub.routes.query import text, values
from edgehub.routes.query.values import UNDEFINED, as_number
from tests.support.routes import a_message, matches, value_of

PROPERTIES = {
    "site": "north",
    "level": "7",
    "blank": None,
    "empty": "",
    "city": "Zürich",
    "face": "a😀b",
    "Mixed": "case",
    "$tier": "gold",
}
MESSAGE = a_message(
    properties=PROPERTIES,
    system={"messageId": "m-1", "tier": "from-system", "Zone": "z9", "cid": "c-1"},
)


@pytest.mark.parametrize(
    ("condition", "value"),
    [
        # Names.
        ("SITE = 'north'", True),
        ("mixed = 'case'", True),
        ("CITY = 'Zürich'", True),
        ("$tier = 'gold'", True),
        ("{$tier} = 'from-system'", True),
        ("{ $tier } = 'from-system'", True),
        ("$MESSAGEID = 'm-1'", True),
        ("$zone = 'z9'", True),
        ("$correlationId = 'c-1'", True),
        ("$cid = 'c-1'", True),
        ("$connectionDeviceId = 'd1'", True),
        ("is_defined($connectionModuleId)", False),
        ("is_defined($edgeMessageId)", False),
        ("$edgeHubOriginInterface = 'downstream'", True),
        ("is_defined($body)", False),
        ("is_defined($x[0])", False),
        ("messageId = 'm-1'", UNDEFINED),
        # Undefined and null.
        ("missing != 'x'", UNDEFINED),
        ("missing = missing", UNDEFINED),
        ("blank = ''", UNDEFINED),
        ("blank = blank", UNDEFINED),
        ("blank != 'x'", UNDEFINED),
        ("empty = ''", True),
        ("is_defined(blank)", True),
        ("is_null(blank)", True),
        ("is_string(blank)", False),
        ("is_null(missing)", False),
        ("is_null(empty)", False),
        ("is_null(null)", True),
        ("is_null(5)", False),
        ("null = null", True),
        ("null != null", False),
        ("null <= null", True),
        ("null < null", False),
        ("(null AND true) = null", True),
        ("(null OR true) = true", True),
        ("null OR missing = 'x'", UNDEFINED),
        ("NOT null", True),
        ("NOT (null AND null)", True),
        ("(null AND null) OR true", True),
        ("NOT NOT null", False),
        ("false OR (null AND true) = null", True),
        ("is_defined(NOT null)", True),
        ("undefined = undefined", UNDEFINED),
        ("(missing ?? 'none') = 'none'", True),
        ("is_null(blank ?? 'x')", True),
        ("(missing = 'x') ?? true", True),
        ("is_bool(missing = 'x')", UNDEFINED),
        ("is_bool(missing)", False),
        ("is_bool(true)", True),
        # Numbers.
        ("1 / 0 > 1e308", True),
        ("is_number(1 / 0)", False),
        ("is_defined(0 / 0)", False),
        ("is_defined(1 / 0 - 1 / 0)", False),
        ("1 / -0 < 0", True),
        ("is_defined(5 % 0)", False),
        ("-5 % 3 = -2", True),
        ("power(10, 400) = 1 / 0", True),
        ("power(-10, 401) = -1 / 0", True),
        ("power(0, -1) = 1 / 0", True),
        ("is_defined(power(-8, 0.5))", False),
        ("exp(1000) = 1 / 0", True),
        ("exp(0) = 1", True),
        ("is_defined(sqrt(-1))", False),
        ("sqrt(9) = 3", True),
        ("square(1e200) = 1 / 0", True),
        ("ceiling(-1.5) = -1", True),
        ("floor(-1.5) = -2", True),
        ("floor(1 / 0) = 1 / 0", True),
        ("sign(-2.5) = -1", True),
        ("sign(-1 / 0) = -1", True),
        ("abs(-2) = 2", True),
        ("as_number(level) + 1 = 8", True),
        ("as_number(as_number(level)) = 7", True),
        ("is_defined(as_number(site))", False),
        ("is_defined(as_number(blank))", False),
        # Texts.
        ("'10' < '9'", True),
        ("'a' < 'B'", False),
        ("'😀' < '\ufe69'", True),
        ("length(face) = 4", True),
        ("length(blank) = 0", UNDEFINED),
        ("substring(face, 3) = 'b'", True),
        ("length(substring(face, 1, 1)) = 1", True),
        ("substring(face, 1, 1) || substring(face, 2, 1) = '😀'", True),
        ("substring('abc', 3) = ''", True),
        ("is_defined(substring('abc', 4))", False),
        ("is_defined(substring('abc', 3, 0))", False),
        ("substring('abc', 1.9, 1) = 'b'", True),
        ("is_defined(substring('abc', 1, 3))", False),
        ("is_defined(substring('abc', 0 / 0))", False),
        ("index_of(face, 'b') = 3", True),
        ("index_of('abc', '') = 0", True),
        ("index_of('abc', 'C') = -1", True),
        ("starts_with(site, '')", True),
        ("starts_with(site, missing)", UNDEFINED),
        ("starts_with(missing, 'x')", UNDEFINED),
        ("ends_with(face, 'b')", True),
        ("contains(city, 'ü')", True),
        ("contains(blank, '')", UNDEFINED),
        ("upper('straße') = 'STRAßE'", True),
        ("upper('\u0131') = '\u0131'", True),
        ("lower('ÀÉ') = 'àé'", True),
        ("concat('a', blank, 'b') = 'ab'", True),
        ("is_defined(concat('a', missing))", False),
        ("'a' || site || blank = 'anorth'", True),
    ],
)
def test_conditions_have_the_documented_value(condition, value):
    """The value, and with it whether a route takes the message."""
    assert value_of(condition, MESSAGE) is value
    assert matches(condition, MESSAGE) is (value is True)
    if value is not UNDEFINED or "undefined =" not in condition:
        assert matches(f"NOT ({condition})", MESSAGE) is (value is False)


def test_null_joined_by_and_is_null_and_does_not_route():
    """Null is not false, so that its negation is true."""
    assert value_of("null AND true") is None
    assert not matches("null AND true")
    assert matches("NOT (null AND true)")


@pytest.mark.parametrize(
    ("written", "number"),
    [
        ("3", 3),
        ("  19 ", 19),
        ("12,500", 12_500),
        ("2.50", 2.5),
        ("4e2", 400),
        ("(8)", -8),
        ("(8 ) ", -8),
        ("5-", -5),
        ("5 -", -5),
        ("+5", 5),
        ("1.", 1),
        (".5", 0.5),
        ("1e400", float("inf")),
        ("Infinity", float("inf")),
        ("5\0\0", 5),
    ],
)
def test_as_number_reads_what_the_original_reads(written, number):
    """Blanks, signs on both sides, thousands, decimals, exponents and accounting parentheses."""
    assert as_number(written) == number


@pytest.mark.parametrize(
    "written",
    [
        "",
        " ",
        "0x10",
        "seven",
        "NaN",
        "- 5",
        "(-5)",
        "(8",
        "8)",
        "--5",
        "-5-",
        "1e",
        "1 2",
        ".",
        ",5",
        "1.5,0",
        "1_0",
        "٣",
        "( 8)",
    ],
)
def test_as_number_refuses_what_is_no_number(written):
    """Hex, words, doubled signs and other digits are undefined."""
    assert as_number(written) is UNDEFINED


def test_as_number_is_quick_on_hostile_text():
    """Long texts cost no more than their length."""
    blanks = " " * 100_000
    assert as_number(f"{blanks}1{blanks}x") is UNDEFINED
    assert as_number("9" * 200_000) == float("inf")


TRUTHS = st.sampled_from([True, False, UNDEFINED])


@given(TRUTHS, TRUTHS, TRUTHS)
def test_three_valued_logic_keeps_its_laws(a, b, c):
    """AND and OR commute, associate and distribute, and De Morgan holds."""
    both, either, neither = values.conjunction, values.disjunction, values.negation
    assert both(a, b) is both(b, a)
    assert either(a, b) is either(b, a)
    assert both(a, both(b, c)) is both(both(a, b), c) is both(a, b, c)
    assert either(a, either(b, c)) is either(either(a, b), c) is either(a, b, c)
    assert both(a, either(b, c)) is either(both(a, b), both(a, c))
    assert neither(both(a, b)) is either(neither(a), neither(b))
    assert neither(neither(a)) is a
    assert both(a, True) is a
    assert either(a, False) is a
    assert both(a, False) is False
    assert either(a, True) is True


SCALARS = st.one_of(
    st.just(UNDEFINED), st.none(), st.booleans(), st.floats(allow_nan=False), st.text(max_size=4)
)


@given(SCALARS, SCALARS)
def test_comparisons_are_consistent(left, right):
    """Equality and order mirror and exclude each other; undefined makes all of them undefined."""
    assert values.equal(left, right) is values.equal(right, left)
    assert values.less(left, right) is values.greater(right, left)
    assert values.less_or_equal(left, right) is values.greater_or_equal(right, left)
    assert values.unequal(left, right) is values.negation(values.equal(left, right))
    outcomes = [compare(left, right) for compare in (values.less, values.equal, values.greater)]
    if left is UNDEFINED or right is UNDEFINED:
        assert outcomes == [UNDEFINED] * 3
    elif left.__class__ is right.__class__:
        assert outcomes.count(True) == 1
    else:
        assert outcomes == [UNDEFINED, False, UNDEFINED]


@given(st.text(), st.text(max_size=3))
def test_text_functions_work_on_utf_16(whole, part):
    """Searching, cutting and comparing agree with what UTF-16 code units say."""
    units = whole.encode("utf-16-le", "surrogatepass")
    assert text.length(whole) == len(units) // 2
    assert text.from_units(text.units(whole)) == text.joined(whole)
    assert text.starts_with(whole + part, whole)
    assert text.ends_with(whole + part, part)
    found = text.find(whole + part, part)
    assert 0 <= found <= text.length(whole)
    assert text.before(whole, part) == (text.units(whole) < text.units(part))
    assert len(text.upper(whole)) == len(text.lower(whole)) == len(whole)


def test_half_a_character_is_found_at_its_unit():
    """A lone surrogate is a code unit like any other, but is no part of a byte pair."""
    high, low = "\ud83d", "\ude00"
    assert text.find("x😀", low) == 2
    assert text.find("x😀", high) == 1
    assert text.find("😀", "\u3dde") == -1

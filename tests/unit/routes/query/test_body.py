"""Values of the JSON body: encodings, paths, kinds, and bodies that are none."""

import json

import pytest

from edgehub.routes.query.body import PARTS_MAX, VALUES_MAX
from edgehub.routes.query.values import UNDEFINED
from tests.support.routes import a_message, matches, value_of

BODY = {
    "temp": 21.5,
    "count": 4,
    "ok": True,
    "bad": False,
    "gone": None,
    "name": "Boiler",
    "digits": "42",
    "when": "2024-05-01T10:00:00Z",
    "geo": {"lat": 10, "tag": {"id": "A1"}},
    "grid": [[1, 2], [3, 4]],
    "events": [{"code": "E1"}, {"code": "E2"}],
    "num-dash": 3,
}
MESSAGE = a_message(
    json_body=BODY, properties={"site": "north", "$body.temp": "own", "blank": None}
)


@pytest.mark.parametrize(
    ("condition", "value"),
    [
        ("$body.count = 4", True),
        ("$BODY.count = 4", True),
        ("$body.Count = 4", False),
        ("$body.temp = 'own'", True),
        ("{$body.temp} = 21.5", True),
        ("$body.num-dash = 3", True),
        ("$body.geo.tag.id = 'A1'", True),
        ("$body.events[1].code = 'E2'", True),
        ("$body.grid[1][0] = 3", True),
        ("$body.grid[1][9] = null", True),
        ("$body.grid[99999999999999999999][0] = null", True),
        ("$body.nope = null", True),
        ("$body.name.x = null", True),
        ("is_defined($body.nope)", True),
        ("$body.nope != 'x'", True),
        ("is_null($body.nope)", True),
        ("is_null($body.gone)", True),
        ("is_null($body.count)", False),
        ("is_null($body.geo)", False),
        ("is_defined($body.geo)", False),
        ("is_defined($body.grid)", False),
        ("$body.geo != null", UNDEFINED),
        ("$body.when = '2024-05-01T10:00:00Z'", True),
        ("is_string($body.when)", True),
        ("is_number($body.count)", True),
        ("is_bool($body.ok)", True),
        ("is_bool($body.count)", False),
        # Kinds are never cast, and have no order between them.
        ("$body.digits = 42", False),
        ("$body.digits != 42", True),
        ("$body.count = '4'", False),
        ("$body.ok = 1", False),
        ("$body.count = true", False),
        ("$body.nope > 20", UNDEFINED),
        ("$body.nope < 20", UNDEFINED),
        ("$body.name > 20", UNDEFINED),
        ("$body.ok < 2", UNDEFINED),
        ("NOT ($body.nope > 20)", UNDEFINED),
        ("$body.name > 'A'", True),
        ("$body.gone <= null", True),
        ("$body.bad < true", True),
        # Bools of the body take part in three-valued logic.
        ("$body.ok", True),
        ("NOT $body.bad", True),
        ("NOT $body.count", UNDEFINED),
        ("$body.ok AND site = 'north'", True),
        ("$body.count AND false", False),
        ("$body.nope OR site = 'north'", True),
        ("$body.bad OR $body.ok", True),
        ("$body.count OR false", UNDEFINED),
        ("$body.ok ?? false", True),
        ("($body.nope ?? 1) = null", True),
        ("($body.geo ?? 1) = 1", True),
        # Functions and arithmetic.
        ("$body.count * 2 + 1 = 9", True),
        ("$body.name + 1 = 2", UNDEFINED),
        ("$body.name - 1 = 2", UNDEFINED),
        ("$body.name * 1 = 2", UNDEFINED),
        ("$body.name / 1 = 2", UNDEFINED),
        ("as_number($body.name) % 2 = 1", UNDEFINED),
        ("(true = $body.ok) = $body.ok", True),
        ("(true < $body.ok) = false", True),
        ("($body.ok = true) < true", False),
        ("ceiling($body.name) = 1", UNDEFINED),
        ("sign($body.name) = 1", UNDEFINED),
        ("exp($body.name) = 1", UNDEFINED),
        ("power($body.name, 2) = 1", UNDEFINED),
        ("index_of($body.name, 'l') = 3", True),
        ("index_of($body.count, 'l') = 3", UNDEFINED),
        ("ends_with($body.name, $body.gone)", UNDEFINED),
        ("10 / $body.count = 2.5", True),
        ("as_number($body.digits) = 42", True),
        ("as_number($body.count) % 3 = 1", True),
        ("is_defined(as_number($body.ok))", False),
        ("length($body.name) = 6", True),
        ("is_defined(length($body.count))", False),
        ("concat($body.name, '!') = 'Boiler!'", True),
        ("is_defined(concat('a', $body.gone))", False),
        ("is_defined($body.nope || 'a')", False),
        ("concat('a', blank) = 'a'", True),
        ("starts_with($body.name, 'Boi')", True),
        ("contains($body.count, '4')", UNDEFINED),
        ("substring($body.name, 0, $body.gone) = ''", UNDEFINED),
        ("abs($body.name) = 1", UNDEFINED),
        ("$body.name = blank", UNDEFINED),
        ("$body.name = missing", UNDEFINED),
    ],
)
def test_body_values(condition, value):
    """The value, and with it whether a route takes the message."""
    assert value_of(condition, MESSAGE) is value
    assert matches(condition, MESSAGE) is (value is True)


@pytest.mark.parametrize("value", ["$body.name", "$body.ok", "$body.gone", "$body.nope"])
@pytest.mark.parametrize("name", ["abs", "ceiling", "exp", "floor", "sign", "sqrt", "square"])
def test_functions_of_a_number_have_no_value_for_anything_else(name, value):
    """Not null either, which is a value."""
    assert value_of(f"is_defined({name}({value}))", MESSAGE) is False


@pytest.mark.parametrize(
    ("encoding", "codec"),
    [("utf-8", "utf-8"), ("UTF-8", "utf-8"), ("utf-16", "utf-16-le"), ("Utf-32", "utf-32-le")],
)
def test_known_encodings_are_read(encoding, codec):
    """UTF-8, and the wide ones in little-endian order without a mark."""
    body = json.dumps({"t": "Genève"}, ensure_ascii=False).encode(codec)
    assert matches("$body.t = 'Genève'", a_message(body=body, encoding=encoding))


@pytest.mark.parametrize(
    "message",
    [
        a_message(body=b'{"t": 1}', encoding="utf8"),
        a_message(body=b'{"t": 1}', system={"contentType": "application/json; charset=utf-8"}),
        a_message(body=b'{"t": 1}', system={"contentType": None}),
        a_message(body=b"[1, 2]"),
        a_message(body=b"5"),
        a_message(body=b""),
        a_message(body=b'{"t": 1'),
        a_message(body=b'{"t": 1} x'),
        a_message(body=b"\xff\xfe"),
        a_message(body=b'{"t":' * 100_000),
        a_message(),
    ],
)
def test_what_is_no_json_object_makes_body_values_undefined(message):
    """Nothing is raised, and neither the condition nor its negation routes."""
    for condition in ("$body.t = 1", "$body.t != 1", "is_defined($body.t)", "$body.t = null"):
        assert not matches(condition, message)


@pytest.mark.parametrize(
    ("body", "condition"),
    [
        (b'{"a": NaN, "b": 1}', "$body.b = 1 AND NOT is_defined($body.a)"),
        (b'{"a": 1e400}', "$body.a = 1 / 0"),
        (b'{"a": 123456789012345678901234567890}', "$body.a > 1e29"),
        (b'{"a": ' + b"9" * 5_000 + b"}", "$body.a = 1 / 0"),
        (b'{"a": 1, "a": 2}', "$body.a = 2"),
        (b'{"a": "\\ud800"}', "length($body.a) = 1"),
        (b'{"a": "x\xff"}', "starts_with($body.a, 'x')"),
    ],
)
def test_odd_json_is_read_as_far_as_it_has_a_meaning(body, condition):
    """NaN, huge numbers, doubled names, lone surrogates and stray bytes spoil only themselves."""
    assert matches(condition, a_message(body=body))


@pytest.mark.parametrize(
    ("element", "odd", "at_most"),
    [(b"[]", b"1", PARTS_MAX - 4), (b"1", b"1", VALUES_MAX - 5), (b"1", b"NaN", PARTS_MAX - 5)],
    ids=["parts", "elements", "elements of odd JSON"],
)
def test_a_body_of_too_many_parts_is_not_read(element, odd, at_most):
    """With one more element than there may be, all body values are undefined."""
    for count, is_read in ((at_most, True), (at_most + 1, False)):
        body = b'{"t": 1, "a": [' + (element + b",") * count + odd + b"]}"
        assert matches("$body.t = 1", a_message(body=body)) is is_read


def test_the_body_is_decoded_once_per_message():
    """The memo of a message is filled by the first body value and used by the others."""
    message = a_message(json_body={"a": 1, "b": 2})
    assert matches("$body.a = 1 AND $body.b = 2 AND $body.a < $body.b", message)

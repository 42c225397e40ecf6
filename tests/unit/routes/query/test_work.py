"""Memory and time that a condition of legal size may cost, whatever a message holds."""

import time
import tracemalloc

import pytest

from edgehub.errors import RouteCompileError
from edgehub.routes.explain import explain_routing
from edgehub.routes.query import values
from edgehub.routes.query.checker import ARGUMENTS_MAX
from edgehub.routes.query.parser import PARTS_MAX, parse_condition, parse_route
from edgehub.routes.query.syntax import parts
from edgehub.routes.query.values import UNDEFINED
from edgehub.routes.query.work import WORK_MAX
from tests.support.routes import a_message, a_table, matches, value_of

LARGE = 60_000
MESSAGE = a_message(properties={"a": "x" * LARGE, "kind": "alarm"})
WIDE_MESSAGE = a_message(properties={"a": "ßé" * (LARGE // 4), "kind": "alarm"})
BROKEN_MESSAGE = a_message(body=b'{"t": "\\ud83d' + b"\\ud800\\ud83d\\ude00" * 10_000 + b'"}')


def chain(form: str, joint: str = " OR ") -> str:
    """Build the longest condition of many pieces, in which `{n}` numbers the piece."""
    expression = parse_condition(form.format(n=0)).expression
    assert expression is not None
    count = (PARTS_MAX - 1) // parts(expression)
    return joint.join(form.format(n=number) for number in range(count))


MANY_SEARCHES = chain("contains(a, '{n}z')")
MANY_WORDS = chain("a = '{n}'")


def nested(outer: str, inner: str, levels: int) -> str:
    """Build calls within calls."""
    for _ in range(levels):
        inner = outer.format(inner)
    return inner


@pytest.mark.parametrize(
    ("condition", "function", "column"),
    [
        (f"length(concat({', '.join(['a'] * 8_000)})) > 5", "concat", 8),
        (f"is_defined(lower({', '.join(['a'] * 8_000)}))", "lower", 12),
        (f"{' || '.join(['a'] * 6_000)} = 'x'", "||", 1_278),
    ],
)
def test_too_many_arguments_are_refused(condition, function, column):
    """A call, or a chain of `||`, with too many arguments is an error with place and hint."""
    with pytest.raises(RouteCompileError) as refused:
        parse_condition(condition)
    (fault,) = refused.value.faults
    assert fault.message == f"`{function}` has more than {ARGUMENTS_MAX} arguments"
    assert (fault.line, fault.column) == (1, column)
    assert fault.hint


def test_a_condition_of_too_many_parts_is_refused():
    """The largest condition is taken; with one part more its limit and a way out are named."""
    comparisons = " OR ".join(["a = 'x'"] * ((PARTS_MAX - 2) // 3))
    largest = f"NOT ({comparisons})"
    expression = parse_condition(largest).expression
    assert expression is not None
    assert parts(expression) == PARTS_MAX
    with pytest.raises(RouteCompileError) as refused:
        parse_route(f"FROM /* WHERE NOT {largest} INTO $upstream")
    (fault,) = refused.value.faults
    assert f"has {PARTS_MAX + 1} parts" in fault.message
    assert f"{PARTS_MAX} are allowed" in fault.message
    assert (fault.line, fault.column) == (1, 15)
    assert fault.hint == "split it over several routes"


def test_as_many_arguments_as_allowed_are_taken():
    """The largest number of arguments compiles, as a call and as a chain."""
    many = ["a"] * ARGUMENTS_MAX
    short = a_message(properties={"a": "x"})
    assert matches(f"length(concat({', '.join(many)})) = {ARGUMENTS_MAX}", short)
    assert matches(f"length({' || '.join(many)}) = {ARGUMENTS_MAX}", short)


def test_a_text_beyond_one_mebibyte_is_undefined():
    """Joined texts have up to 1 MiB of characters; what would be longer is undefined."""
    half = "x" * (values.TEXT_CHARS_MAX // 2)
    assert len(values.concat(half, half)) == values.TEXT_CHARS_MAX
    assert values.concat(half, half, "x") is UNDEFINED
    longest = a_message(json_body={"a": half})
    assert value_of("is_defined($body.a || $body.a)", longest) is True
    assert value_of("is_defined($body.a || $body.a || 'x')", longest) is False


@pytest.mark.parametrize(
    "condition",
    [
        f"length(concat({', '.join(['a'] * ARGUMENTS_MAX)})) > 5",
        "length(" + nested("concat({0}, {0})", "a", 7) + ") > 5",
        chain("length(concat(a, a, a, a, a, '{n}')) = 3"),
    ],
)
@pytest.mark.parametrize("message", [MESSAGE, WIDE_MESSAGE])
def test_a_route_does_not_multiply_a_message(condition, message):
    """A condition of legal size takes no more than a few MiB over a large property."""
    table = a_table({"r": f"FROM /* WHERE {condition} INTO $upstream"})
    table.evaluate(a_message())
    tracemalloc.start()
    table.evaluate(message)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * 2**20


@pytest.mark.parametrize("message", [MESSAGE, WIDE_MESSAGE, BROKEN_MESSAGE])
@pytest.mark.parametrize(
    "condition",
    [
        chain("contains(a, '{n}z')"),
        chain("contains($body.t, '{n}z')"),
        chain("contains(substring(a, {n}), '#')"),
        chain("upper(substring(a, {n})) = '#'"),
        chain("lower(substring($body.t, {n})) = '#'"),
        chain("index_of(a, '{n}z') = 3"),
        chain("as_number(substring(a, {n})) = 3"),
        chain("length($body.t || '{n}') = 3"),
        chain("a < $body.t"),
        chain("a > kind"),
        nested("upper(lower({}))", "a", 24) + " = '#'",
        "length(" + nested("concat({0}, {0})", "$body.t", 7) + ") > 5",
    ],
)
def test_a_condition_of_legal_size_takes_a_few_milliseconds(condition, message):
    """However many functions a condition calls, a large message does not hold up the hub."""
    table = a_table({"r": f"FROM /* WHERE {condition} INTO $upstream"})
    table.evaluate(a_message())
    spent = []
    for _ in range(3):
        start = time.thread_time()
        table.evaluate(message)
        spent.append(time.thread_time() - start)
    assert min(spent) < 0.05


@pytest.mark.parametrize("text", ["x" * 131_072, "é" * 131_072, "ß" * 131_072, "😀" * 65_536])
@pytest.mark.parametrize(
    "call",
    ["upper({})", "lower({})", "substring({}, 1)", "concat({}, 'a')"],
)
def test_one_function_over_the_largest_message_takes_a_few_milliseconds(call, text):
    """A single call keeps up with any text that a message can hold."""
    message = a_message(properties={"a": text})
    table = a_table({"r": f"FROM /* WHERE length({call.format('a')}) > 5 INTO $upstream"})
    table.evaluate(a_message())
    spent = []
    for _ in range(3):
        start = time.thread_time()
        assert table.evaluate(message)
        spent.append(time.thread_time() - start)
    assert min(spent) < 0.02


def test_too_much_work_makes_the_condition_undefined():
    """Beyond its bound a condition is undefined as a whole; below, it is what it says."""
    asked = " AND ".join(f"contains(a, '{letter}')" for letter in "xxxxxxxx")
    small = a_message(properties={"a": "x" * (WORK_MAX // 8 - 32)})
    large = a_message(properties={"a": "x" * (WORK_MAX // 8)})
    assert matches(asked, small)
    assert not matches(asked, large)
    assert value_of(asked, large) is UNDEFINED
    assert not matches(f"NOT ({asked})", large)


def test_the_bound_of_one_route_is_no_other_s():
    """A route that is undefined by its work leaves the others as they are."""
    table = a_table(
        {
            "heavy": f"FROM /* WHERE {MANY_SEARCHES} INTO $upstream",
            "alarm": "FROM /* WHERE kind = 'alarm' AND contains(a, 'x') INTO $upstream",
        }
    )
    (result,) = table.evaluate(MESSAGE)
    assert result.routes == ("alarm",)


def test_explain_names_the_text_that_is_too_much():
    """The verdict on a condition beyond its bound says which text is passed over how often."""
    table = a_table({"r": f"FROM /* WHERE {MANY_SEARCHES} INTO $upstream"})
    (verdict,) = explain_routing(table, MESSAGE)
    assert verdict.outcome == "undefined"
    assert verdict.reason.startswith(
        f"the condition is undefined, since it would pass over the {LARGE} characters of `a` "
    )
    assert (verdict.line, verdict.column) == (1, 24)


def test_a_route_that_passes_over_one_text_hundreds_of_times_is_warned_of():
    """The warning says how many characters are too many; fewer passes raise none."""
    (warning,) = parse_route(
        f"FROM /* WHERE {' OR '.join(['contains(a, $body.x)'] * 100)} INTO $upstream"
    ).warnings
    assert "passes over `a` 100 times" in warning.message
    assert f"more than some {WORK_MAX // 100} characters" in warning.message
    assert warning.column == 24
    assert not parse_route(
        f"FROM /* WHERE {' OR '.join(['contains(a, $body.x)'] * 60)} INTO $upstream"
    ).warnings
    assert not parse_route(f"FROM /* WHERE {MANY_WORDS} INTO $upstream").warnings

"""Hypothesis strategies for well-typed conditions, and for messages that they ask about."""

from __future__ import annotations

import json

from hypothesis import strategies as st

from edgehub.message import Message

NAMES = ("a", "b", "Kind", "missing")
BODY_PATHS = ("n", "t", "f", "gone", "o", "l[1]", "o.n", "l[9]", "nope.x")

_TEXTS = ("", "a", "ab", "10", "-3.5", "Zoë", "😀", "﹩", "1e400")

texts = st.deferred(lambda: _texts)
numbers = st.deferred(lambda: _numbers)
body_values = st.deferred(lambda: _body_values)
bools = st.deferred(lambda: _bools)

_literals = st.sampled_from([f"'{text}'" for text in _TEXTS])
_properties = st.sampled_from([*NAMES, "$a", "{$b}", "$messageId", "$connectionDeviceId"])
_number_literals = st.sampled_from(["0", "-0", "1", "2.5", "-3", "1e308", "0x10", "1e999"])
_comparators = st.sampled_from(["=", "!=", "<>", "<", "<=", ">", ">="])


def _joined(template: str, *parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(*parts).map(lambda values: template.format(*values))


_body_values = st.one_of(
    st.sampled_from([f"$body.{path}" for path in BODY_PATHS]),
    st.sampled_from([f"{{$body.{path}}}" for path in BODY_PATHS]),
    _joined("({} ?? {})", body_values, numbers),
    _joined("({} {} {})", body_values, st.sampled_from("+-*/"), numbers),
)
_texts = st.one_of(
    _literals,
    _properties,
    _joined("({} || {})", texts, texts | body_values),
    _joined("({} ?? {})", texts, texts),
    _joined("{}({})", st.sampled_from(["lower", "upper"]), texts | body_values),
    _joined("substring({}, {})", texts | body_values, numbers),
    _joined("substring({}, {}, {})", texts, numbers, numbers | body_values),
)
_numbers = st.one_of(
    _number_literals,
    _joined("as_number({})", texts | numbers | body_values),
    _joined("length({})", texts | body_values),
    _joined("index_of({}, {})", texts, texts | body_values),
    _joined("(- {})", numbers),
    _joined("({} {} {})", numbers, st.sampled_from("+-*/%"), numbers),
    _joined("({} {} {})", numbers, st.sampled_from("+-*/%"), _number_literals),
    _joined(
        "{}({})",
        st.sampled_from(["abs", "ceiling", "floor", "sign", "sqrt", "square", "exp"]),
        numbers | body_values,
    ),
    _joined("power({}, {})", numbers, numbers | body_values),
    _joined("({} ?? {})", numbers, numbers),
)
_anything = texts | numbers | body_values | bools | st.just("null")
_bools = st.one_of(
    st.sampled_from(["true", "false"]),
    _joined("({} {} {})", texts, _comparators, texts),
    _joined("({} {} {})", numbers, _comparators, numbers),
    _joined("({} {} {})", bools, _comparators, bools),
    _joined("({} {} {})", body_values, _comparators, texts | numbers | bools | body_values),
    _joined("({} {} {})", texts | numbers | st.just("null"), _comparators, body_values),
    _joined("(NOT {})", bools | body_values),
    _joined("({} AND {})", bools | body_values, bools),
    _joined("({} OR {})", bools | body_values, bools),
    _joined("({} OR undefined)", bools),
    _joined("({} ?? {})", bools, bools),
    _joined(
        "{}({})",
        st.sampled_from(["is_defined", "is_null", "is_number", "is_string", "is_bool"]),
        _anything,
    ),
    _joined(
        "{}({}, {})",
        st.sampled_from(["starts_with", "ends_with", "contains"]),
        texts | body_values,
        texts,
    ),
)

_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(_TEXTS),
)
_bodies = st.one_of(
    st.fixed_dictionaries(
        {},
        optional={
            "n": _scalars,
            "t": _scalars,
            "f": st.booleans(),
            "gone": st.none(),
            "o": st.dictionaries(st.sampled_from("nxt"), _scalars, max_size=3),
            "l": st.lists(_scalars, max_size=4),
        },
    ).map(lambda value: json.dumps(value).encode()),
    st.binary(max_size=20),
    st.just(b"[" * 5_000),
)
_bags = st.dictionaries(
    st.sampled_from([*NAMES, "A", "$a", "$body.n", "kind"]),
    st.none() | st.sampled_from(_TEXTS) | st.text(max_size=5),
    max_size=5,
)
messages = st.builds(
    Message,
    device_id=st.just("d1"),
    module_id=st.none() | st.just("m"),
    source=st.just("/messages/"),
    properties=_bags,
    system=st.fixed_dictionaries(
        {"contentType": st.just("application/json"), "contentEncoding": st.just("utf-8")},
        optional={"a": st.just("sys"), "b": st.none(), "messageId": st.just("m1")},
    ),
    body=_bodies,
)

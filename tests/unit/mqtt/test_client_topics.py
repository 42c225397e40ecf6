"""Topics of twins and methods: parsed and built."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgehub.mqtt.client_topics import (
    CLIENTS_FILTER,
    DESIRED,
    GET_TWIN,
    METHOD_CALL,
    METHOD_RESULT,
    REPORT,
    TWIN_RESULT,
    ClientPath,
    client_levels,
    parse_client_topic,
)
from edgehub.mqtt.topic_filter import matches

PLAIN = (GET_TWIN, REPORT, DESIRED)
NAMED = (TWIN_RESULT, METHOD_CALL, METHOD_RESULT)
words = st.sampled_from(["d", "twin", "methods", "res", "GET", "d-1:x"])
paths = st.tuples(st.sampled_from(PLAIN), st.just("")) | st.tuples(st.sampled_from(NAMED), words)


@given(words, st.none() | words, paths, st.none() | words, st.none() | st.integers(1, 9))
def test_what_is_built_is_parsed(device, module, path, rid, version) -> None:
    """Whatever device, module and method are called, a topic of either kind names them again."""
    client = device if module is None else f"{device}/{module}"
    levels = client_levels(*path, rid=rid, version=version)
    given_ = {"$rid": rid, "$version": None if version is None else str(version)}
    wanted = {name: value for name, value in given_.items() if value is not None}
    for prefix, whose in (("$iothub/", ""), (f"$edge/clients/{client}/", client)):
        found = parse_client_topic(prefix + levels)
        assert found is not None
        assert found[:3] == (whose, *path)
        assert {name: value for name, value in found.parameters.items() if name} == wanted
        assert matches(CLIENTS_FILTER, prefix + levels) == bool(whose)


@pytest.mark.parametrize(
    ("topic", "found"),
    [
        ("$iothub/twin/GET/", ("", GET_TWIN, "", {})),
        ("$iothub/twin/GET", ("", GET_TWIN, "", {})),
        ("$iothub/twin/GET/?$rid=a=b&$rid=c&x", ("", GET_TWIN, "", {"$rid": "a=b", "x": ""})),
        ("$edge/clients/d/twin/twin/GET/?$rid=1", ("d/twin", GET_TWIN, "", {"$rid": "1"})),
        ("$edge/clients/d/methods/res/200/?$rid=1", ("d", METHOD_RESULT, "200", {"$rid": "1"})),
    ],
)
def test_forms_of_topics(topic, found) -> None:
    """The last level may be absent; of repeated parameters the first counts."""
    assert parse_client_topic(topic) == ClientPath(*found)


@pytest.mark.parametrize(
    "topic",
    [
        "",
        "$iothub/",
        "$iothub/twin",
        "$iothub/twin/get/?$rid=1",
        "$iothub/twin/res/?$rid=1",
        "$iothub/twin/GET/x/?$rid=1",
        "$iothub/methods/POST/?$rid=1",
        "$iothub/methods/POST/a/b/?$rid=1",
        "$edge/clients/",
        "$edge/clients/d",
        "$edge/clients/d/connected",
        "$edge/clients/d/m/x/twin/GET/?$rid=1",
        "devices/d/messages/events/",
    ],
)
def test_other_topics_are_none(topic) -> None:
    """Nothing is read into a topic that is not of these forms."""
    assert parse_client_topic(topic) is None


@given(st.text(st.sampled_from("$iothub/edgclnsw?&=#+é\0 "), max_size=40))
def test_any_text_is_parsed_or_refused(text) -> None:
    """Junk never raises."""
    for topic in (text, f"$iothub/{text}", f"$edge/clients/{text}"):
        found = parse_client_topic(topic)
        assert found is None or found.path in {*PLAIN, *NAMED}

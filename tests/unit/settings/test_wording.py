"""Faults of settings in the user's words, whatever is wrong with whichever key."""

from __future__ import annotations

import re
from typing import Any, get_args

import pytest

from edgehub.settings import Settings, SettingsError, check_settings
from edgehub.settings.endpoints import ENDPOINT_TYPES
from edgehub.settings.sections import is_by_name, section_types

WRONG: tuple[Any, ...] = (-1, 1e9, float("nan"), True, "", "x y/#", "75 %", [], [3], {}, {"a b": 3})
"""What some key or other cannot be."""
INNER_WORDS = re.compile(
    r"Input should|String should|Value error|valid (string|tuple|dict|integer)|function-|functools"
    r"|constrained|\[key\]|lax-or-strict|json-or-python|nullable|settings: "
)


def _faults(document: dict[str, Any]) -> list[str]:
    try:
        check_settings(document, file=None)
    except SettingsError as error:
        return [str(fault) for fault in error.faults]
    return []


def _sections() -> dict[str, tuple[str, dict[str, Any], tuple[str, ...]]]:
    """Give, by a name, a section, what is right in it, and its keys."""
    found: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {}
    for name, field in Settings.model_fields.items():
        if name != "upstream" and not is_by_name(field):
            for section in section_types(field):
                found[name] = name, {}, tuple(section.model_fields)
    for model in ENDPOINT_TYPES:
        (kind,) = get_args(model.model_fields["type"].annotation)
        keys = tuple(key for key in model.model_fields if key != "type")
        found[f"upstream({kind})"] = "upstream", {"type": kind}, keys
    return found


@pytest.mark.parametrize("name", _sections().keys())
def test_no_fault_speaks_of_the_validator(name):
    """All keys of a section with a value of every wrong kind: names of ours, words for people."""
    section, right, keys = _sections()[name]
    refused: set[str] = set()
    for value in WRONG:
        for fault in _faults({section: {**right, **dict.fromkeys(keys, value)}}):
            assert not INNER_WORDS.search(fault), fault
            refused.add(fault.partition(": ")[0].split(".")[1])
    # Whatever a key may be, it cannot be all of these.
    assert refused >= set(keys)


def test_no_fault_at_the_top_speaks_of_the_validator():
    """Likewise, where a section may be missing too."""
    for value in WRONG:
        for fault in _faults(dict.fromkeys(Settings.model_fields, value)):
            assert not INNER_WORDS.search(fault), fault


@pytest.mark.parametrize(
    ("document", "fault"),
    [
        (
            {"store": {"overflow": "by_valu"}},
            (
                "store.overflow: must be 'by_value', 'drop_oldest', 'drop_newest' or 'reject_new',"
                " got 'by_valu' (did you mean 'by_value'?)"
            ),
        ),
        (
            {"store": {"bytes_max": "75 %"}},
            (
                "store.bytes_max: must be a number of bytes, 0 or more, or a share of the volume"
                " such as \"75%\", got '75 %'"
            ),
        ),
        ({"mqtt": {"port": "x"}}, "mqtt.port: must be a whole number, got 'x'"),
        ({"mqtt": {"local_topics": "a/#"}}, "mqtt.local_topics: must be a list, in [ ], got 'a/#'"),
        (
            {"upstream": {"type": "http", "url": "ftp://x"}},
            "upstream.url: not http://<host>/... or https://<host>/...",
        ),
        (
            {"endpoints": {"upstream": {"type": "file", "path": "x"}}},
            "endpoints.upstream: the name belongs to $upstream; use the [upstream] section",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_wrong_with_a_value(document, fault):
    """The key, what it must be, what it is, and the near miss of a word."""
    assert _faults(document) == [fault]


def test_a_section_in_a_variable_is_a_json_object(monkeypatch):
    """There the hint is not how to write it into a file."""
    monkeypatch.setenv("EDGEHUB_UPSTREAM", '{"type": "file"')
    (fault,) = _faults({})
    assert fault.startswith("EDGEHUB_UPSTREAM: a section belongs here")
    assert "write a JSON object, or set its keys one by one: EDGEHUB_UPSTREAM__<KEY>" in fault

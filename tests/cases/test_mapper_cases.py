"""Every case of `mapper_cases.json`, through the mapper and the tables that the daemon uses."""

import json
import re
from collections import Counter

from edgehub.entities.replay import replay

CASES = "mapper_cases.json"

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)"
PLACEHOLDERS = {"{{time}}": TIME, "{{any}}": r"(?s:.+)", "{{rest}}": r"(?s:.*)"}


def text_matches(expected: str, actual: object) -> bool:
    """Return whether a text is as expected; placeholders may stand inside it."""
    if not isinstance(actual, str):
        actual = json.dumps(actual)
    parts = re.split(r"(\{\{(?:time|any|rest)\}\})", expected)
    pattern = "".join(PLACEHOLDERS.get(part) or re.escape(part) for part in parts)
    return re.fullmatch(pattern, actual) is not None


def value_matches(expected: object, actual: object) -> bool:
    """Return whether a JSON value is as expected, with exactly these members; 1 equals 1.0."""
    if isinstance(expected, str):
        return isinstance(actual, str) and text_matches(expected, actual)
    if isinstance(expected, dict):
        return (
            isinstance(actual, dict)
            and expected.keys() == actual.keys()
            and all(value_matches(value, actual[key]) for key, value in expected.items())
        )
    if isinstance(expected, list):
        return (
            isinstance(actual, list)
            and len(expected) == len(actual)
            and all(map(value_matches, expected, actual))
        )
    return isinstance(expected, bool) == isinstance(actual, bool) and expected == actual


def message_matches(expected: dict, actual: dict) -> bool:
    """Return whether a message is as expected; a payload that is a text is compared as a text."""
    payload = expected["payload"]
    same = text_matches if isinstance(payload, str) else value_matches
    return (
        expected["topic"] == actual["topic"]
        and same(payload, actual["payload"])
        and expected.get("retain", actual["retain"]) == actual["retain"]
    )


def test_mapper_sends_what_the_case_expects(case):
    """Topics, payloads, order and number of messages are those of the case."""
    left = replay(case)
    if case["ordered"]:
        shown = [message for message, _ in zip(left, case["expect"], strict=False)]
        assert all(map(message_matches, case["expect"], shown)), (case["why"], left)
        assert len(left) == len(case["expect"]), (case["why"], left)
        return
    for expected in case["expect"]:
        found = next((actual for actual in left if message_matches(expected, actual)), None)
        assert found is not None, (case["why"], expected, left)
        left.remove(found)
    assert not left, (case["why"], Counter(message["topic"] for message in left))

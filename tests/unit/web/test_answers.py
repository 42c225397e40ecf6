"""Answers hold whatever JSON can: what devices sent comes back, whatever it was."""

from __future__ import annotations

import json
from http import HTTPStatus

from edgehub.errors import ManifestFault
from edgehub.operations.problem import ProblemError
from edgehub.web.answers import json_answer, problem_answer


def test_large_numbers_and_lone_surrogates_are_no_fault_of_the_hub():
    """They come back as they were sent."""
    document = {"number": 10**30, "text": "\ud800", "nested": [{"\udfff": -(2**70)}], "é": 1.5}
    assert json.loads(json_answer(document).body) == document


def test_a_refusal_may_name_them():
    """The reason of a refusal often shows what was sent."""
    fault = ManifestFault(path="\ud800", message="x")
    problem = ProblemError(HTTPStatus.BAD_REQUEST, "odd", "\ud800 is odd", faults=[fault])
    assert json.loads(problem_answer(problem).body)["faults"] == [
        {"path": "\ud800", "message": "x"}
    ]

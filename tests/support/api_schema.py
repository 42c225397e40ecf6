"""Requests that the API's own document allows, and some that it does not, against a running hub."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import CHECKS, load_all_checks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

load_all_checks()

# A route's text has a grammar that JSON Schema cannot tell, so allowed bodies may be refused; the
# token decides about access, which the tests of access look at one by one.
_NOT_TOLD = {"positive_data_acceptance", "ignored_auth"}


def operations(url: str, headers: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """Return every operation of the document with its name."""
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json", headers=dict(headers))
    for found in schema.get_all_operations():
        operation = found.ok()
        yield operation.label, operation


def ask(
    operation: Any,
    headers: Mapping[str, str],
    *,
    examples: int,
    mode: Any,
    known: Mapping[str, str] | None = None,
) -> int:
    """Ask one operation; raises what is wrong with an answer, gives the number of requests.

    Args:
        operation: From `operations`.
        headers: Sent along.
        examples: At most so many requests.
        mode: Allowed or forbidden ones.
        known: Parameters of paths by name, that name something there is; for every other request.
    """
    checks = [check for check in CHECKS.get_all() if check.__name__ not in _NOT_TOLD]
    asked = 0

    @settings(
        max_examples=examples,
        database=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def each(case: Any) -> None:
        nonlocal asked
        asked += 1
        if asked % 2:
            names = case.path_parameters.keys() & (known or {}).keys()
            case.path_parameters |= {name: (known or {})[name] for name in names}
        case.call_and_validate(headers=dict(headers), checks=checks)

    each()
    return asked

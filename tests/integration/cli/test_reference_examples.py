"""The reference against the operations of a hub: all are there, and examples are as declared."""

from __future__ import annotations

import json
import re
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import fastjsonschema
import pytest
from pydantic import TypeAdapter

from tests.support.broker_hub import running_hub

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgehub.operations.operation import Operation

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"
ADDED_UP = {"queue purge", "queue move", "dead purge", "dead requeue"}
"""The command line calls these several times, and prints the sum."""
LEFT_OUT = {"status"}
"""Its example says that it is not whole."""


@pytest.fixture
async def operations(tmp_path: Path) -> Mapping[str, Operation]:
    """Return those of a hub."""
    async with running_hub(tmp_path, mqtt={"port": 0}) as hub:
        return dict(hub.hub.operations)


def sections() -> dict[str, str]:
    """Return the sections of the reference by command."""
    text = "\n".join(page.read_text("utf-8") for page in (REFERENCE / "cli").glob("*.md"))
    parts = text.split("\n## `edgehub ")
    return {part.partition("`\n")[0]: part for part in parts}


def closed(schema: Any) -> Any:
    """Return a schema whose objects have no members that are not declared."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    members = {name: closed(value) for name, value in schema.items()}
    return {"additionalProperties": False, **members} if "properties" in schema else members


def fault(schema: dict[str, Any], documents: list[str]) -> str:
    """Return why no document fits a schema, empty = one does."""
    check = fastjsonschema.compile(schema)
    reason = "there is no example"
    for document in documents:
        try:
            check(json.loads(document))
        except fastjsonschema.JsonSchemaException as error:
            reason = str(error)
        else:
            return ""
    return reason


def test_examples_have_the_declared_members(operations: Mapping[str, Operation]) -> None:
    """An example that was written before the last change of a result is found."""
    found, checked = sections(), 0
    faults = {}
    for name, operation in operations.items():
        section = found.get(name) or found.get(f"queue {name}", "")
        documents = re.findall(r"^```json\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
        if not documents or name in ADDED_UP | LEFT_OUT:
            continue
        checked += 1
        schema = TypeAdapter(resolve_name(operation.result)).json_schema(mode="serialization")
        if why := fault(closed(schema), documents):
            faults[name] = why
    assert faults == {}
    assert checked > 40


def test_every_operation_is_in_the_reference_of_the_http_api(
    operations: Mapping[str, Operation],
) -> None:
    """By its path, or by its name in the list of those whose path is made of it."""
    api = (REFERENCE / "http-api.md").read_text("utf-8")
    named = {name for name, operation in operations.items() if f"`{name}`" in api}
    placed = {name for name, operation in operations.items() if operation.place.path in api}
    assert sorted(operations.keys() - named - placed) == []

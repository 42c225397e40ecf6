"""The reference of routes says what there is, and its examples work."""

import json
import re
from pathlib import Path

import pytest

from edgehub.routes.manifest import parse_manifest
from edgehub.routes.query.functions import FUNCTIONS
from edgehub.routes.query.lexer import TEXT_CHARS_MAX
from edgehub.routes.query.parser import DEPTH_MAX, PARTS_MAX
from edgehub.routes.query.properties import SYSTEM_NAMES

ROOT = Path(__file__).parents[3]


@pytest.fixture
def reference():
    """Return the text of the reference."""
    return (ROOT / "docs" / "reference" / "routes.md").read_text("utf-8")


def test_every_function_and_limit_is_documented(reference):
    """A function that is added must be described."""
    documented = set(re.findall(r"`([a-z_]+)[`(]", reference))
    assert set(FUNCTIONS) <= documented
    assert str(TEXT_CHARS_MAX) in reference
    assert f"{DEPTH_MAX} levels" in reference
    assert f"{PARTS_MAX} parts" in reference


def test_system_properties_that_senders_set_are_documented(reference):
    """Every name that a head can fill is in the list."""
    missing = {name for name in SYSTEM_NAMES if f"`{name}`" not in reference}
    assert missing == {"messageType", "enqueuedTime", "rpSenderDeviceId", "rpSenderModuleId"}


@pytest.mark.parametrize("document", ["docs/reference/routes.md", "README.md"])
def test_example_manifests_are_accepted(document):
    """What people copy must work, without a warning."""
    text = (ROOT / document).read_text("utf-8")
    examples = [
        example
        for example in re.findall(r"```json\n(.*?)```", text, re.DOTALL)
        if "schemaVersion" in example
    ]
    assert examples
    for example in examples:
        assert not parse_manifest(json.loads(example), file=document).warnings

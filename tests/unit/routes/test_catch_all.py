"""Catch-alls: what counts as one, in a manifest and in a table."""

import json

import pytest

from edgehub.routes.catch_all import is_catch_all, missing_warnings
from edgehub.routes.manifest import DEFAULT_MANIFEST, parse_manifest
from edgehub.routes.query.parser import parse_route
from tests.support.routes import a_manifest, a_table

WIDE = [
    "FROM /messages/* INTO $upstream",
    "FROM /messages INTO $upstream",
    "FROM /* INTO $upstream",
    "FROM /Messages/* WHERE true INTO $upstream",
]
NARROW = [
    "FROM /messages/* WHERE kind = 'alarm' INTO $upstream",
    "FROM /messages/* WHERE false INTO $upstream",
    "FROM /messages/modules/* INTO $upstream",
    "FROM /mqtt/# INTO $upstream",
]


@pytest.mark.parametrize("text", WIDE)
def test_a_route_that_takes_all_is_a_catch_all(text):
    """Every message of devices and modules, without a condition or with one that is `true`."""
    assert is_catch_all(parse_route(text))
    assert a_table({"narrow": NARROW[0], "wide": text}).has_catch_all()


@pytest.mark.parametrize("text", NARROW)
def test_a_route_that_takes_less_is_none(text):
    """A condition, a narrower source, or topics."""
    assert not is_catch_all(parse_route(text))
    assert not a_table({"narrow": text}).has_catch_all()


def test_a_manifest_that_takes_messages_of_devices_in_part_has_a_warning():
    """Not one with a catch-all, nor one that is about modules or topics alone."""
    assert missing_warnings(DEFAULT_MANIFEST) == ()
    for routes, warned in (
        ({"a": NARROW[0]}, True),
        ({"a": NARROW[0], "b": WIDE[0]}, False),
        ({"a": NARROW[2], "b": NARROW[3]}, False),
    ):
        manifest = parse_manifest(json.dumps(a_manifest(routes)), file="m.json")
        assert bool(missing_warnings(manifest)) is warned

"""Catch-alls: what counts as one, in a manifest and in a table."""

import pytest

from edgehub.routes.catch_all import is_catch_all
from edgehub.routes.query.parser import parse_route
from tests.support.routes import a_table

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

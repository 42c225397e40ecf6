"""Hosts that no resolver takes are refused, whichever section names them."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from edgehub.settings import Settings

USERS = {
    "mqtt": lambda host: {"mqtt": {"host": host}},
    "http": lambda host: {"http": {"host": host}},
    "web": lambda host: {"web": {"host": host}},
    "broker": lambda host: {"broker": {"host": host}},
    "upstream": lambda host: {"upstream": {"type": "mqtt", "host": host}},
    "cumulocity": lambda host: {"endpoints": {"c8y": {"type": "cumulocity", "host": host}}},
}
URLS = {
    "http": lambda url: {"endpoints": {"web": {"type": "http", "url": f"http://{url}/"}}},
    "redis": lambda url: {"redis": {"url": f"redis://{url}/0"}},
}


@pytest.mark.parametrize("user", USERS.values(), ids=USERS)
@pytest.mark.parametrize(
    "host", ["a..b", ".a", "x" * 64, "mqtt://a", "a:1883", "[::1]", "a b", "a/b", "", " a"]
)
def test_a_host_that_is_none(user, host):
    """Its lookup would raise what is no error of the network."""
    with pytest.raises(ValidationError, match="host"):
        Settings(**user(host))


@pytest.mark.parametrize("user", USERS.values(), ids=USERS)
@pytest.mark.parametrize(
    "host", ["a", "a.b.", "a_b", "münchen.example", "::1", "fe80::1%eth0", "127.0.0.1", "localhost"]
)
def test_a_host(user, host):
    """Names and addresses are kept as they are."""
    Settings(**user(host))


@pytest.mark.parametrize("user", URLS.values(), ids=URLS)
@pytest.mark.parametrize("address", ["a..b", "a:70000", "a:x", "a:0", "[::1"])
def test_an_address_in_a_url_that_is_none(user, address):
    """Likewise in URLs, ports too."""
    with pytest.raises(ValidationError, match="url"):
        Settings(**user(address))


@pytest.mark.parametrize("user", URLS.values(), ids=URLS)
@pytest.mark.parametrize("address", ["a", "a:6379", "[::1]:80", "127.0.0.1:80"])
def test_an_address_in_a_url(user, address):
    """What clients of the protocol take."""
    Settings(**user(address))

"""Settings of the HTTP API."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from edgehub.settings import Settings, WebSettings


def test_the_api_is_off_until_it_has_a_port():
    """And then it listens on loopback only."""
    assert Settings().web.port is None
    assert WebSettings(port=0).host == "127.0.0.1"


def test_names_of_hosts_are_names():
    """Without scheme, port and path; capitals do not matter."""
    assert WebSettings(host_names=("Gateway-7.Example.org",)).host_names == (
        "gateway-7.example.org",
    )
    for wrong in ("https://a", "a:80", "a/b", "", "-a", "*"):
        with pytest.raises(ValidationError, match="is no host name"):
            WebSettings(host_names=(wrong,))


def test_names_of_hosts_are_kept_as_browsers_send_them():
    """The same rule as for every host, in the form of the header `Host`."""
    names = WebSettings(host_names=("münchen.example", "gateway-7.", "::1")).host_names
    assert names == ("xn--mnchen-3ya.example", "gateway-7", "::1")


@pytest.mark.parametrize("given", ["certificate_file", "key_file"])
def test_a_certificate_needs_its_key(given):
    """One without the other is a fault."""
    with pytest.raises(ValidationError, match="belong together"):
        WebSettings(**{given: "x.pem"})

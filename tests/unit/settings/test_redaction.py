"""Secrets that slipped into settings are shown nowhere."""

from __future__ import annotations

import pytest
from pydantic import SecretStr

from edgehub.settings import SettingsError, check_settings
from edgehub.settings.redaction import HIDDEN, shown


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("upstream.password_file", "/run/p", "/run/p"),
        ("upstream.password", "p", HIDDEN),
        ("http.token", SecretStr("t"), HIDDEN),
        (
            "x.headers",
            {"Authorization": "t", "Accept": "a"},
            {"Authorization": HIDDEN, "Accept": "a"},
        ),
        ("x.url", "https://user:word@host/p?q=1", "https://***@host/p?q=1"),
        ("x.names", ("a", 1, None), ["a", 1, None]),
        ("x.port", 2**64 - 1, 2**64 - 1),
        pytest.param("x.port", 16**5000, "an integer of 20001 bits", id="thousands-of-digits"),
    ],
)
def test_secrets_are_blanked_out(key, value, expected):
    """Names of files that hold secrets are shown, secrets are not."""
    assert shown(key, value) == expected


def test_faults_do_not_repeat_a_secret():
    """A wrong value is quoted, a secret in it is not."""
    document = {"endpoints": {"lab": {"type": "http", "url": "http://u:word@h:99999/"}}}
    with pytest.raises(SettingsError) as caught:
        check_settings(document, file=None)
    assert "word" not in str(caught.value)
    with pytest.raises(SettingsError) as caught:
        check_settings({"hub_id": "http://u:word@h"}, file=None)
    assert "http://***@h" in str(caught.value)


def test_an_integer_of_thousands_of_digits_is_refused_like_any_other():
    """Python raises ValueError where it writes one in decimal."""
    with pytest.raises(SettingsError, match=r"mqtt.port: must be at most 65535"):
        check_settings({"mqtt": {"port": 16**5000}}, file=None)

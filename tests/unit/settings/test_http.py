"""Settings of the HTTP head and of HTTP endpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pydantic import TypeAdapter, ValidationError

from edgehub.settings import (
    HttpEndpointSettings,
    HttpSettings,
    Settings,
    SettingsError,
    load_settings,
)

if TYPE_CHECKING:
    from pathlib import Path

URL = "https://collect.example.com:8443/v1/in?site=2"


def test_http_is_off_until_it_has_a_port() -> None:
    """A hub without settings listens for MQTT alone."""
    assert Settings().http.port is None
    assert HttpSettings(port=0).port == 0


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"port": -1}, "port"),
        ({"certificate_file": "a.pem"}, "belong together"),
        ({"key_file": "a.key"}, "belong together"),
    ],
)
def test_wrong_settings_of_the_head(values: dict[str, Any], word: str) -> None:
    """Named with the key."""
    with pytest.raises(ValidationError, match=word):
        HttpSettings(**values)


def test_a_whole_endpoint() -> None:
    """Everything that may be set at once."""
    built = HttpEndpointSettings(
        type="http",
        url=URL,
        headers={"X-Site": "hall 2"},
        username="gateway-7",
        password_file="secret",
        ca_file="ca.pem",
        certificate_file="c.pem",
        key_file="k.pem",
        gzip=True,
    )
    assert built.headers == {"X-Site": "hall 2"}


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"url": "collect.example.com"}, "not http"),
        ({"url": "ftp://collect.example.com/"}, "not http"),
        ({"url": "http:///in"}, "not http"),
        ({"url": "http://a:99999/"}, "Port out of range"),
        ({"url": "http://user:secret@a/"}, "holds a user name"),
        ({"url": "http://a/#x"}, "fragment"),
        ({"url": "http://a/x y"}, "blank"),
        ({"url": "http://a/\r\nX: 1"}, "%XX"),
        ({"url": "http://a/ü"}, "%XX"),
        ({"username": "a"}, "belong together"),
        ({"username": "a:b", "password_file": "p"}, "username"),
        ({"username": "a", "password_file": "p", "token_file": "t"}, "one way to sign in"),
        ({"url": "http://a/", "ca_file": "ca.pem"}, "not https"),
        ({"certificate_file": "c.pem"}, "belong together"),
        ({"headers": {"Content-Type": "x"}}, "Content-Type is set by the hub"),
        ({"headers": {"X Y": "x"}}, "headers"),
        ({"headers": {"X": "a\r\nY: b"}}, "headers"),
        ({"batch_rows_max": 0}, "batch_rows_max"),
    ],
)
def test_wrong_settings_of_an_endpoint(values: dict[str, Any], word: str) -> None:
    """What would fail at each request is refused at the start."""
    with pytest.raises(ValidationError, match=word):
        TypeAdapter(HttpEndpointSettings).validate_python({"type": "http", "url": URL, **values})


def test_near_misses_get_hints(tmp_path: Path) -> None:
    """Also in the sections of HTTP."""
    file = tmp_path / "edgehub.toml"
    file.write_text('[http]\nprot = 1\n[upstream]\ntype = "http"\nurl = "http://a"\nzip = 1\n')
    with pytest.raises(SettingsError) as caught:
        load_settings(file)
    text = str(caught.value)
    assert "did you mean 'port'" in text
    assert "did you mean 'gzip'" in text

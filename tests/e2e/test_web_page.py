"""The live page in a real browser: it shows the hub, loads nothing else, and writes no errors."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from importlib import resources
from typing import TYPE_CHECKING

import pytest

from edgehub.devices.token_file import Role, Token, changing_tokens
from tests.support.chromium import Browser, open_url
from tests.support.devices import Device
from tests.support.web import web_daemon

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.daemon import Daemon
    from tests.support.mosquitto import Mosquitto

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]


class Cells(HTMLParser):
    """Texts of a document's table rows, line by line."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self._in_cell = False
        self.feed(document)

    def handle_starttag(self, tag: str, _attributes: object) -> None:
        """Begin a row or a cell."""
        if tag == "tr":
            self.rows.append([])
        elif tag in {"td", "th"}:
            self.rows[-1].append("")
            self._in_cell = True

    def handle_endtag(self, tag: str) -> None:
        """End a cell."""
        if tag in {"td", "th"}:
            self._in_cell = False

    def handle_data(self, data: str) -> None:
        """Take its text."""
        if self._in_cell:
            self.rows[-1][-1] += data


def test_the_page_shows_the_hub(make_daemon: Callable[..., Daemon], tmp_path: Path) -> None:
    """Summary, warnings, endpoints and queues, as the status has them; no error of any kind."""
    upstream = '[upstream]\ntype = "mqtt"\nhost = "127.0.0.1"\nport = 1\n'
    routes = '{"a": "FROM /messages/* WHERE kind = \'alarm\' INTO $upstream"}'
    manifest = (
        f'{{"schemaVersion": "1.1", "routes": {routes},'
        ' "storeAndForwardConfiguration": {"timeToLiveSecs": 7200}}'
    )
    (tmp_path / "m.json").write_text(manifest, "utf-8")
    top = f'hub_id = "gw-7"\nmanifest = "{tmp_path / "m.json"}"'
    daemon, api = web_daemon(make_daemon, extra=upstream, top=top)
    device = Device("d1", daemon.mqtt_port)
    for number in range(5):
        device.publish("alarm", number)
    device.publish("unrouted", 6)
    assert device.wait_in_flight_below(1, 10)
    device.close()
    opened = open_url(f"http://127.0.0.1:{api.port}/", tmp_path / "profile")
    assert opened.console == []
    assert "gw-7" in opened.document
    assert api.get("/api/v1/status").document["summary"] in opened.document
    assert "1 message was acknowledged and dropped" in opened.document
    assert '<span id="phase" class="state warn">running</span>' in opened.document
    started = api.get("/api/v1/status").document["started"]
    assert (
        f"counts since {started[:10]} {started[11:16]} UTC, when the hub started" in opened.document
    )
    rows = Cells(opened.document).rows
    (endpoint,) = (row for row in rows if row[0] == "upstream" and len(row) == 7)
    assert endpoint[1] in {"connecting", "down"}
    heads = ["queue", "waiting", "bytes", "oldest", "expires in", "empty in", "sent"]
    (head,) = (row for row in rows if row[0] == "queue")
    assert head[:7] == heads
    (queue,) = (row for row in rows if row[0] == "upstream" and len(row) == len(head))
    assert (queue[1], queue[5]) == ("5", "offline")
    assert daemon.stop() == 0


def test_the_page_is_green_only_while_messages_can_leave(
    make_daemon: Callable[..., Daemon], broker: Mosquitto, tmp_path: Path
) -> None:
    """Amber without a link, and no figures of a link that is not there any more."""
    daemon, api = web_daemon(make_daemon, upstream=broker.port)
    device = Device("d1", daemon.mqtt_port)
    for number in range(20):
        device.publish("alarm", number)
    assert device.wait_in_flight_below(1, 10)
    device.close()

    def endpoint() -> dict[str, object]:
        document: dict[str, object] = daemon.call("status")["endpoints"][0]
        return document

    def row(document: str) -> list[str]:
        (found,) = (row for row in Cells(document).rows if row[0] == "upstream" and len(row) == 7)
        return found

    daemon.wait_until(lambda: endpoint()["rate_bytes_s"] is not None, 10)
    url = f"http://127.0.0.1:{api.port}/"
    opened = open_url(url, tmp_path / "first").document
    assert '<span id="phase" class="state good">running</span>' in opened
    assert row(opened)[4].endswith("/s")
    assert row(opened)[5].endswith(" ms")
    broker.stop()
    daemon.wait_until(lambda: endpoint()["state"] != "up", 10)
    opened = open_url(url, tmp_path / "second").document
    assert '<span id="phase" class="state warn">running</span>' in opened
    assert row(opened)[4:6] == ["\u2013", "\u2013"]
    assert daemon.stop() == 0


def test_the_page_asks_for_a_token(make_daemon: Callable[..., Daemon], tmp_path: Path) -> None:
    """Where the hub has tokens it shows nothing without one, and no error beside the browser's."""
    with changing_tokens(tmp_path / "tokens") as tokens:
        tokens["ops"] = Token.new("ops", Role.READ)[0]
    daemon, api = web_daemon(make_daemon, web=f'token_file = "{tmp_path / "tokens"}"')
    opened = open_url(f"http://127.0.0.1:{api.port}/", tmp_path / "profile")
    assert "a token is needed" in opened.document
    assert re.search(r'<main id="main" hidden', opened.document)
    assert all("401" in line for line in opened.console)
    assert daemon.stop() == 0


SHOWN = """
new Promise((done) => {
  const look = () => {
    const at = (id) => document.getElementById(id);
    if (at("main") && (%s)) done([at("phase").textContent, at("refusal").textContent]);
    else setTimeout(look, 20);
  };
  look();
})
"""
ASKED, REFUSED, SIGNED_IN = (
    SHOWN % condition
    for condition in (
        '!at("sign-in").hidden && at("phase").textContent === "a token is needed"',
        '!at("sign-in").hidden && at("refusal").textContent !== ""',
        'at("sign-in").hidden && !at("main").hidden',
    )
)
SIGN_IN = """
document.getElementById("token").value = %r;
document.getElementById("sign-in").requestSubmit();
"""


def test_a_person_signs_in(make_daemon: Callable[..., Daemon], tmp_path: Path) -> None:
    """A wrong token is refused with its reason; a right one shows the hub until the tab closes."""
    entry, text = Token.new("ops", Role.READ)
    with changing_tokens(tmp_path / "tokens") as tokens:
        tokens["ops"] = entry
    daemon, api = web_daemon(make_daemon, web=f'token_file = "{tmp_path / "tokens"}"')
    browser = Browser(tmp_path / "profile")
    try:
        browser.open(f"http://127.0.0.1:{api.port}/")
        assert browser.run(ASKED)[1] == ""
        for wrong in ("ops.wrong", "ops.\u20ac", "x" * 20_000):
            browser.run(SIGN_IN % wrong)
            assert "token" in browser.run(REFUSED)[1]
            browser.run('document.getElementById("refusal").textContent = ""')
        browser.run(SIGN_IN % f" {text} ")
        assert browser.run(SIGNED_IN)[0] == "running"
        browser.reload()
        assert browser.run(SIGNED_IN)[0] == "running"
        with changing_tokens(tmp_path / "tokens") as tokens:
            del tokens["ops"]
        assert daemon.call("config reload")["outcome"] == "applied"
        assert "not known" in browser.run(REFUSED)[1]
        browser.open(f"http://127.0.0.1:{api.port}/")
        assert browser.run(ASKED)[1] == ""
    finally:
        browser.close()
    assert daemon.stop() == 0


def test_the_page_names_no_other_place() -> None:
    """Nothing is loaded from elsewhere: no address, no import, no inline handler."""
    text = resources.files("edgehub.web").joinpath("page.html").read_text("utf-8")
    assert re.findall(r"https?://|//[a-z]|@import|url\(|\bon[a-z]+=|innerHTML|eval\(", text) == []
    assert len(text.encode()) < 20_000

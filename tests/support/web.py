"""A client of the HTTP API, and a daemon that serves it."""

from __future__ import annotations

import http.client
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.support.daemon import Daemon

TIMEOUT_S = 10.0
PROBLEM = "application/problem+json"
SAMPLE = re.compile(r"^(\w+)(\{[^\n]*\})? (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the API said."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        """Return the JSON of it; of a refusal, its form is checked too."""
        document = json.loads(self.body)
        if self.status >= 400:
            assert self.headers["content-type"] == PROBLEM
            assert document["status"] == self.status
            assert document["code"]
        return document


class Api:
    """Asks one hub, one connection for each request.

    Args:
        port: Where it listens on loopback.
        token: Presented with each request, None = none.
    """

    def __init__(self, port: int, token: str | None = None) -> None:
        self.port = port
        self.token = token

    def metrics(self) -> dict[str, float]:
        """Scrape; gives the samples by name and labels."""
        answer = self.get("/metrics")
        assert answer.status == 200
        found = SAMPLE.findall(answer.body.decode())
        return {name + labels: float(value) for name, labels, value in found}

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """Ask; a body is sent as JSON, underscores in names of headers stand for hyphens."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.token is not None:
            sent.setdefault("Authorization", f"Bearer {self.token}")
        content = None
        if body is not None:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, content, sent)
            response = connection.getresponse()
            read = response.read()
        finally:
            connection.close()
        names = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, names, read)

    def get(self, path: str, **headers: str) -> Answer:
        """Ask for something."""
        return self.ask("GET", path, **headers)


def web_daemon(
    make_daemon: Callable[..., Daemon], *, web: str = "", extra: str = "", **options: Any
) -> tuple[Daemon, Api]:
    """Start a daemon with the API; gives it and a client without a token.

    Args:
        make_daemon: The fixture.
        web: More settings of `[web]`.
        extra: More settings.
        options: For the fixture.
    """
    port = free_port()
    daemon = make_daemon(extra=f"[web]\nport = {port}\n{web}\n{extra}", **options)
    daemon.start()
    daemon.wait_event("web.listening")
    return daemon, Api(port)

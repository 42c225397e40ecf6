"""The API against its own document: whatever that allows, and forbids, has the answer it says."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis.errors import Unsatisfiable
from schemathesis.generation import GenerationMode

from edgehub.devices.token_file import Role, Token, changing_tokens
from tests.support.api_schema import ask, operations
from tests.support.ports import free_port
from tests.support.web import Api

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.daemon import Daemon

SOAK = bool(os.environ.get("EDGEHUB_SOAK"))
EXAMPLES = 300 if SOAK else 5
PATHS = 20
KNOWN = {"id": "known", "topic_id": "device/known//"}
MAPPER = """
[mapper]
enabled = true
external_id = "gw"
[endpoints.cloud]
type = "file"
path = "cloud.jsonl"
"""

pytestmark = [pytest.mark.e2e, pytest.mark.scaled, pytest.mark.timeout(60 + 10 * EXAMPLES)]


def test_answers_are_as_the_document_says(make_daemon: Callable[..., Daemon]) -> None:
    """No 5xx, no status, header or body that is not written down; nonsense is refused."""
    daemon = make_daemon()
    entry, token = Token.new("ops", Role.WRITE)
    with changing_tokens(daemon.folder / "tokens") as tokens:
        tokens["ops"] = entry
    port = free_port()
    web = f'[web]\nport = {port}\ntoken_file = "tokens"\n{MAPPER}'
    daemon.config.write_text(daemon.config.read_text("utf-8") + web, "utf-8")
    daemon.start()
    daemon.wait_event("web.listening")
    headers = {"Authorization": f"Bearer {token}"}
    api = Api(port, token)
    asked, wrong = {}, 0
    for name, operation in operations(f"http://127.0.0.1:{port}", headers):
        route, entity = (
            f"/api/v1/routes/{KNOWN['id']}",
            f"/api/v1/entities/{KNOWN['topic_id']}",
        )
        assert api.ask("PUT", route, "FROM /messages/* INTO $upstream").status < 300
        assert api.ask("PUT", entity, {"@type": "child-device"}).status < 300
        mode = GenerationMode.POSITIVE
        asked[name] = ask(operation, headers, examples=EXAMPLES, mode=mode, known=KNOWN)
        if SOAK or name.startswith(("PUT", "PATCH", "POST /api/v1/routes")):
            wrong += forbidden(operation, headers)
    assert api.get("/api/v1/entities?parent=a%2B").status == 422
    assert "\nedgehub_entities_held 0" in api.get("/metrics").body.decode()
    assert len(asked) >= PATHS
    assert min(asked.values()) > 0
    assert wrong > 3 * EXAMPLES
    faults = [line for line in daemon.log if line.get("level") == "error"]
    assert faults == []
    assert daemon.stop() == 0


def forbidden(operation: Any, headers: dict[str, str]) -> int:
    """Ask what the document forbids, where it forbids anything; gives the number of requests."""
    try:
        return ask(operation, headers, examples=EXAMPLES, mode=GenerationMode.NEGATIVE)
    except Unsatisfiable:
        return 0

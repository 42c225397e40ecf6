"""The API of hubs that share a table in a real Redis: waiting, tenants, and a table that is old."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from edgehub.cli.main import main
from edgehub.cli.refusal import CommandError
from edgehub.devices.token_file import Role, Token, changing_tokens
from tests.support.redis import RedisServer
from tests.support.web import Api, web_daemon

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.daemon import Daemon

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]

ALARMS = "FROM /messages/* WHERE kind = 'alarm' INTO $upstream"
MANIFEST = {
    "schemaVersion": "1.1",
    "routes": {"rest": "FROM /messages/* INTO $upstream"},
    "storeAndForwardConfiguration": {"timeToLiveSecs": 7200},
}


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    """Run a Redis that keeps its data over a restart."""
    with RedisServer(tmp_path, persistent=True) as server:
        yield server


def test_hubs_share_routes_and_say_when_their_table_is_old(
    make_daemon: Callable[..., Daemon],
    redis: RedisServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A change waits for every hub; tenants see their own; a start without Redis is not ready."""
    texts = {}
    with changing_tokens(tmp_path / "tokens") as tokens:
        for name, tenant in (("ops", None), ("acme", "acme/press")):
            tokens[name], texts[name] = Token.new(name, Role.WRITE, tenant)
    shared = f'[redis]\nurl = "{redis.url}"\n[routing_table]\nstorage = "redis"\n'
    shared += '[tenants."acme/press"]\nroutes_max = 1\n'
    web = f'token_file = "{tmp_path / "tokens"}"'
    hubs = [web_daemon(make_daemon, web=web, extra=shared) for _ in range(2)]
    first, second = (Api(api.port, texts["ops"]) for _, api in hubs)
    made = first.ask("PUT", "/api/v1/routes/alarms?wait=true&timeout_s=10", ALARMS)
    assert made.status == 201
    assert len(made.document["applied"]["by"]) == 2
    seen = second.get("/api/v1/routes/alarms")
    assert (seen.document["state"], seen.headers["etag"]) == ("running", made.headers["etag"])
    states = second.get("/api/v1/routes/alarms").document["instances"]
    assert [each["state"] for each in states] == ["running", "running"]
    assert len(first.get("/api/v1/table/instances").document["instances"]) == 2

    check_tenants(first, Api(first.port, texts["acme"]))
    daemon = hubs[1][0]
    text = json.dumps(MANIFEST)
    with pytest.raises(CommandError) as refused:
        daemon.call("manifest apply", text=text, file="m.json", expected_revision=1)
    assert refused.value.problem["code"] == "conflict"
    check_manifest(hubs[1][0], first, tmp_path / "m.json", capsys)

    assert daemon.stop() == 0
    redis.stop()
    daemon.start()
    daemon.wait_event("web.listening")
    unready = second.get("/readyz")
    assert unready.document["code"] == "not_ready"
    assert unready.document["detail"].startswith("table stale")
    assert second.get("/healthz").status == 200
    away = second.ask("PUT", "/api/v1/routes/new", ALARMS)
    assert (away.status, away.document["code"]) == (503, "storage_unavailable")
    redis.start()
    daemon.wait_until(lambda: second.get("/readyz").status == 200, 15)
    for hub, _ in hubs:
        assert hub.stop() == 0


def check_manifest(
    daemon: Daemon, other: Api, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A manifest replaces the one before in the shared table, and runs on the other hub too."""
    file.write_text(json.dumps(MANIFEST), "utf-8")
    with pytest.raises(SystemExit) as ended:
        main(["--config", str(daemon.config), "manifest", "apply", str(file), "--wait"])
    told = capsys.readouterr().out.splitlines()
    assert ended.value.code == 0
    assert told[:2] == ["added: rest", "removed: upstream"]
    assert told[-1] == "applied by 2 hubs"
    assert other.get("/api/v1/routes/rest").document["origin"] == "manifest"
    file.write_text(json.dumps({**MANIFEST, "routes": {"rest": "FROM nowhere"}}), "utf-8")
    with pytest.raises(SystemExit) as ended:
        main(["--config", str(daemon.config), "manifest", "apply", str(file)])
    assert ended.value.code == 78
    assert "column 6 of its text" in capsys.readouterr().err


def check_tenants(everybody: Api, tenant: Api) -> None:
    """A tenant has its own routes under ids that others use too, and no more than its quota."""
    assert tenant.ask("PUT", "/api/v1/routes/alarms", ALARMS).status == 201
    full = tenant.ask("PUT", "/api/v1/routes/more", "FROM /messages/* INTO $upstream")
    assert (full.status, full.document["code"]) == (403, "quota_exceeded")
    assert [each["id"] for each in tenant.get("/api/v1/routes").document["routes"]] == ["alarms"]
    assert tenant.get("/api/v1/routes?tenant=default/default").status == 403
    assert tenant.get("/api/v1/status").document["code"] == "other_tenant"
    theirs = everybody.get("/api/v1/routes/alarms?tenant=acme/press").document
    assert theirs["tenant"] == "acme/press"
    assert everybody.ask("DELETE", "/api/v1/routes/alarms").document["changed"] is True
    assert tenant.get("/api/v1/routes/alarms").status == 200

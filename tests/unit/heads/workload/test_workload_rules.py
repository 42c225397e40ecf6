"""The workload API without sockets: who gets what signed, and what is refused."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json

import pytest
from structlog.testing import capture_logs

from edgehub.clock import ManualClock
from edgehub.devices.entry_file import EntryList
from edgehub.devices.identities import Identities
from edgehub.devices.identity_file import Identity
from edgehub.heads.workload.api import Caller, WorkloadApi
from edgehub.mqtt.shared_access import SharedAccessKey

KEYS = SharedAccessKey(bytes(range(32))), SharedAccessKey(bytes(32))
ENTRIES = (
    Identity(id="hub/cam", keys=KEYS),
    Identity(id="hub/pump", keys=KEYS[:1], uid=1001),
    Identity(id="hub/off", keys=KEYS, disabled=True),
    Identity(id="hub/.", keys=KEYS),
    Identity(id="hub/..", keys=KEYS),
    Identity(id="hub/keyless"),
    Identity(id="other/cam", keys=KEYS),
    Identity(id="hub", keys=KEYS),
)
OWN = Caller(module="cam", uid=0)
SHARED = Caller(module=None, uid=1001)


@pytest.fixture
def api():
    """An API with modules of this hub and others."""
    identities = Identities(lambda: None)
    identities.apply(EntryList(entries={entry.id: entry for entry in ENTRIES}))
    made = WorkloadApi("hub", identities, ManualClock())
    made.trust_bundle = "PEM"
    yield made
    identities.close()


def request(data: bytes = b"text", **fields: object) -> bytes:
    """Build a request for a signature."""
    return json.dumps({"data": base64.b64encode(data).decode(), **fields}).encode()


def sign_path(module: str) -> str:
    """Return the path as the SDKs send it."""
    return f"/modules/{module}/genid/636/sign?api-version=2019-01-30"


@pytest.mark.parametrize(
    ("fields", "key"),
    [({}, 0), ({"keyId": "primary", "algo": "HMACSHA256"}, 0), ({"keyId": "secondary"}, 1)],
)
def test_a_signature(api, fields, key):
    """It is the HMAC of the data with that key of the module."""
    status, document = api.answer("POST", sign_path("cam"), request(b"a\nb", **fields), OWN)
    expected = hmac.new(KEYS[key].value, b"a\nb", hashlib.sha256).digest()
    assert (status, base64.b64decode(document["digest"])) == (200, expected)
    assert (api.signed_total, api.refused_total) == (1, 0)


def test_the_trust_bundle(api):
    """Everybody gets it."""
    for caller in (OWN, SHARED, Caller(module=None, uid=5)):
        assert api.answer("GET", "/trust-bundle?api-version=x", b"", caller) == (
            200,
            {"certificate": "PEM"},
        )


@pytest.mark.parametrize(
    ("module", "caller"),
    [
        ("cam", SHARED),
        ("cam", Caller(module="pump", uid=1001)),
        ("cam", Caller(module=None, uid=0)),
        ("pump", OWN),
        ("pump", Caller(module=None, uid=1002)),
        ("off", Caller(module="off", uid=0)),
        ("none", Caller(module="none", uid=0)),
        ("..%2Fother%2Fcam", OWN),
        ("cam%2F..%2Fpump", OWN),
    ],
)
def test_another_module(api, module, caller):
    """It is refused and logged, whoever it is."""
    with capture_logs() as logs:
        status, document = api.answer("POST", sign_path(module), request(), caller)
    assert (status, list(document)) == (403, ["message"])
    assert [(line["event"], line["uid"]) for line in logs] == [
        ("workload.request_refused", caller.uid)
    ]
    assert (api.signed_total, api.refused_total) == (0, 1)


@pytest.mark.parametrize(
    ("method", "target", "body", "status"),
    [
        ("GET", "/", b"", 404),
        ("GET", "/modules/cam/genid/1/encrypt", b"", 404),
        ("GET", "/modules/cam/genid/sign", b"", 404),
        ("GET", sign_path("cam"), b"", 405),
        ("POST", "/trust-bundle", b"", 405),
        ("POST", sign_path("cam"), b"", 400),
        ("POST", sign_path("cam"), b"[]", 400),
        ("POST", sign_path("cam"), b'"text"', 400),
        ("POST", sign_path("cam"), b"{}", 400),
        ("POST", sign_path("cam"), b'{"data": 1}', 400),
        ("POST", sign_path("cam"), b'{"data": "no base64"}', 400),
        ("POST", sign_path("cam"), request(keyId="tertiary"), 400),
        ("POST", sign_path("cam"), request(keyId=[]), 400),
        ("POST", sign_path("cam"), request(algo="MD5"), 400),
    ],
)
def test_what_is_no_request(api, method, target, body, status):
    """Each has its status."""
    assert api.answer(method, target, body, OWN)[0] == status
    assert api.signed_total == 0


def test_a_key_that_there_is_not(api):
    """A module with one key has no secondary one."""
    body = request(keyId="secondary")
    status, document = api.answer("POST", sign_path("pump"), body, SHARED)
    assert (status, "no secondary key" in document["message"]) == (404, True)


def test_own_sockets(api):
    """Modules of this hub with a key and without a user, whose name can be a folder."""
    assert api.own_sockets() == {"cam", "off"}

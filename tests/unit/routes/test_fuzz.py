"""Manifests and routes as operators and storages hand them in: read, or refused with all faults."""

from __future__ import annotations

import json

from hypothesis import given

from edgehub.errors import ManifestError
from edgehub.operations.problem import ProblemError
from edgehub.routes.content import InvalidRouteError, content_hash, read_stored
from edgehub.routes.manifest import parse_manifest
from edgehub.routes.tenant import DEFAULT_TENANT
from edgehub.web.revisions import parse_if_match
from tests.support.fuzzing import JSON_PIECES, bounded, fuzzer, hostile, hostile_text
from tests.support.routes import a_manifest

ROUTE = "FROM /messages/* WHERE kind = 'alarm' AND $body.a[0] > 5 INTO $upstream"
MANIFESTS = [
    json.dumps(
        a_manifest(
            {
                "alarm": {"route": ROUTE, "priority": 0, "timeToLiveSecs": 86400},
                "rest": "FROM /messages/* INTO $upstream",
                "old": {
                    "route": "FROM /messages/modules/cam/outputs/* INTO $upstream",
                    "Recency": {"Seconds": 60, "FallbackPriority": 7},
                    "order": "skip",
                    "maxAttempts": 4,
                    "maxAgeSecs": 60,
                },
            }
        )
    ).encode(),
    json.dumps({"modulesContent": {"$edgeHub": {"properties.desired": a_manifest({})}}}).encode(),
]
ROUTE_PIECES = [b"priority", b"2000000000", b"-0", b"1.0", b"/*", b"'", b"$", b"INTO", b"(" * 500]


@fuzzer
@given(hostile(MANIFESTS, [*JSON_PIECES, *ROUTE_PIECES]))
def test_a_damaged_manifest_is_read_or_refused(data):
    """Each fault says what is wrong, and can be printed."""
    text = data.decode("utf-8", "replace")
    try:
        manifest = bounded(lambda: parse_manifest(text, file="m"), cpu_s=0.2)
    except ManifestError as error:
        faults = error.faults
    else:
        faults = []
        assert manifest.fingerprint
        assert all(spec.name.encode() for spec in manifest.routes)
    for fault in faults:
        assert 0 < len(fault.message) < 600
        assert str(fault)


STORED = [
    json.dumps({"route": ROUTE, "priority": 0, "timeToLiveSecs": 60}).encode(),
    json.dumps(
        {"route": "FROM /mqtt/a/+/# INTO $upstream", "name": "a b", "description": "é"}
    ).encode(),
    json.dumps("FROM /* INTO $upstream").encode(),
]


@fuzzer
@given(hostile(STORED, [*JSON_PIECES, *ROUTE_PIECES]))
def test_a_damaged_route_of_a_storage_is_read_or_refused(data):
    """What was read has a canonical text that is read as the same content."""
    text = data.decode("utf-8", "replace")
    try:
        content = bounded(lambda: read_stored(text, DEFAULT_TENANT), cpu_s=0.2)
    except InvalidRouteError as error:
        faults = error.faults
    else:
        faults = ()
        assert read_stored(content.text, DEFAULT_TENANT).hash == content.hash
        assert content_hash(content.text, DEFAULT_TENANT) == content.hash
    assert all(0 < len(fault.message) < 600 for fault in faults)


@fuzzer
@given(hostile_text(['"17"', 'W/"1", "2"', "*"], ['"' + "9" * 5_000 + '"', ",", "W/", '""']))
def test_a_damaged_revision_of_a_request_is_read_or_refused(header):
    """Revisions that a table may have, or 400."""
    try:
        wanted = bounded(lambda: parse_if_match(header))
    except ProblemError:
        return
    assert all(0 < revision < 2**63 for revision in wanted or ())

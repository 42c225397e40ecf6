"""Whatever comes in, the mapper answers, and says what it cannot use."""

import json

from hypothesis import given
from hypothesis import strategies as st

from edgehub.entities.effects import Output
from tests.support.entities import MapperBench
from tests.support.fuzzing import JSON_PIECES, bounded, fuzzer, hostile, hostile_text

KEYS = [
    *["@type", "@id", "@parent", "@health", "name", "type", "time", "text", "severity", "v", "id"],
    *["properties", "externalSource", "externalId", "status", "reason", "types", "version", "url"],
    *["currentSoftwareList", "modules", "operations", "operation", "payload", "serverUrl"],
    *["remoteUrl", "c8y_Restart", "c8y_SoftwareUpdate", "c8y_Firmware", "c8y_DeviceProfile"],
    *["c8y_LogfileRequest", "c8y_UploadConfigFile", "c8y_DownloadConfigFile", "profileName"],
    *["configuration", "firmware", "software", "logFile", "dateFrom", "dateTo", "maximumLines"],
    *["action", "softwareType"],
]
TEXTS = [
    *["", "x", "up", "executing", "successful", "failed", "install", "7", "critical", "hub-01"],
    *["child-device", "service", "device", "device/a//", "device/main//", "a/b/c/d/e", "\0", "é"],
    "2026-02-03T04:05:06Z",
]
TOPIC_IDS = [
    "device/main//",
    "device/a//",
    "device/b//",
    "device/a/service/s",
    "device/main/service/mosquitto-c8y-bridge",
    "x/y/z/w",
    "///",
]
CHANNELS = [
    *[
        "",
        "",
        "",
        "/twin/k",
        "/twin/firmware",
        "/twin/",
        "/m/",
        "/m/x",
        "/m/x/meta",
        "/e/x",
        "/a/x",
    ],
    *["/cmd/restart", "/cmd/software_update", "/cmd/log_upload", "/status/health", "/config"],
    *["/cmd/restart/c8y-mapper-7", "/cmd/software_list/c8y-mapper-8", "/signal/sync"],
    *["/cmd/config_update/c8y-mapper-9", "/cmd/device_profile/c8y-mapper-10"],
    "/cmd/firmware_update/c8y-mapper-11",
]

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(TEXTS),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
    ),
    max_leaves=8,
)
documents = st.dictionaries(st.sampled_from(KEYS), values, max_size=6)
registrations = st.fixed_dictionaries(
    {"@type": st.sampled_from(["child-device", "service", "device"])},
    optional={"@id": st.sampled_from("ABS"), "@parent": st.sampled_from(TOPIC_IDS)},
)
payloads = st.one_of(
    st.sampled_from([b"", b"{", b"7", b"\xff"]),
    st.one_of(values, documents, registrations).map(lambda value: json.dumps(value).encode()),
)
entity_topics = st.builds("te/{}{}".format, st.sampled_from(TOPIC_IDS), st.sampled_from(CHANNELS))
operations = st.builds(
    lambda number, external_id, members: json.dumps(
        {"id": number, "externalSource": {"externalId": external_id}, **members}
    ).encode(),
    st.sampled_from(["7", "8", 9, None]),
    st.sampled_from(["hub-01", "A", "S"]),
    documents,
)
messages = st.one_of(
    st.tuples(entity_topics, payloads),
    st.tuples(entity_topics, payloads),
    st.tuples(st.just("c8y/devicecontrol/notifications"), operations),
    st.tuples(st.sampled_from(TOPIC_IDS).map("c8y-internal/alarms/te/{}/a/x".format), payloads),
)
options = st.fixed_dictionaries(
    {
        "auto_register": st.booleans(),
        "clean_start": st.booleans(),
        "alarm_sync_ms": st.sampled_from([0, 5]),
        "pending_ttl_s": st.sampled_from([0.007, 10**6]),
        "entities_max": st.sampled_from([2, 100]),
        "state_bytes_max": st.sampled_from([3000, 10**7]),
        "pending_client_bytes_max": st.sampled_from([600, 10**6]),
        "pending_max": st.sampled_from([2, 1000]),
        "packet_bytes_max": st.sampled_from([120, 16_184]),
        "software_types": st.booleans(),
        "availability": st.booleans(),
        "availability_interval_s": st.sampled_from([1, 3600]),
    }
)


@given(options, st.lists(st.one_of(messages, st.none()), min_size=10, max_size=25))
def test_anything_is_answered(settings_, steps):
    """No message ends the mapper; rows about an entity follow its creation and fit the limit."""
    bench = MapperBench(**settings_)
    created = {"hub-01"}
    for step in steps:
        bench.now_ms += 1
        if step is None:
            bench.restart()
        else:
            bench.send(*step)
        effects = list(bench.effects)
        bench.go_on(0)
        for effect in effects + bench.effects:
            if isinstance(effect, Output):
                if effect.creates is not None:
                    created.add(effect.device)
                assert effect.device in created
                assert len(effect.payload) + len(effect.topic) <= settings_["packet_bytes_max"]
                assert (not effect.needs) <= (
                    effect.device == "hub-01" or effect.creates is not None
                )


DOCUMENTS = [
    b'{"@type":"child-device","@id":"A","@parent":"device/main//","name":"n"}',
    b'{"temp":21.5,"three":{"x":1,"y":-2e3},"time":"2026-02-03T04:05:06Z"}',
    b'{"text":"hot","severity":"critical","time":1770000000}',
    b'{"status":"failed","reason":"r","types":["a"],"currentSoftwareList":[]}',
    b'{"status":"up","pid":7,"time":"2026-02-03T04:05:06+01:00"}',
    b'{"id":"7","externalSource":{"externalId":"hub-01"},"c8y_Restart":{}}',
    json.dumps(
        {
            "id": "8",
            "externalSource": {"externalId": "A"},
            "c8y_LogfileRequest": {
                "logFile": "l",
                "dateFrom": "2026-02-03T04:05:06+0100",
                "dateTo": "2026-02-03T04:05:06Z",
                "maximumLines": 9,
            },
        }
    ).encode(),
]
TOPICS = [
    *("te/device/main//", "te/device/a///m/x", "te/device/a/service/s/status/health"),
    *("te/device/a///a/x", "te/device/main///cmd/restart/c8y-mapper-7", "te/device/a///twin/k"),
    *("c8y/devicecontrol/notifications", "c8y-internal/alarms/te/device/a///a/x", "te/x/y/z/w/e/v"),
]
TOPIC_PIECES = ["/", "//", "+", "#", "te", "\0", "\U0010ffff", "x" * 600, "/cmd/", "/m/"]
DATES = [b"0001-01-01T00:00:00Z", b"9999-12-31T23:59:60-23:59", b"1e308", b"-1e308", b"99999999999"]


@fuzzer
@given(
    st.lists(
        st.tuples(hostile_text(TOPICS, TOPIC_PIECES), hostile(DOCUMENTS, [*JSON_PIECES, *DATES])),
        min_size=1,
        max_size=6,
    )
)
def test_damaged_messages_are_answered_within_bounds(steps):
    """Each alone costs little; what is kept of them can be loaded again, and is used."""
    bench = MapperBench(auto_register=True)
    for topic, payload in steps:
        bench.send(topic, payload)
    bench.restart()
    mapper = MapperBench(auto_register=True)
    for topic, payload in steps:
        bounded(lambda t=topic, p=payload: mapper.send(t, p))
    bench.send("te/device/main///m/", b'{"t":1}')
    assert any(b'"t"' in effect.payload for effect in bench.effects if isinstance(effect, Output))

"""`edgehub entity replay`: messages in, what the mapper would send out."""

import json
import os

import pytest

from edgehub.cli.main import main
from tests.support.entities import INVENTORY, MEASUREMENTS, TIME, UP

pytestmark = pytest.mark.integration

CREATED = "101,A,A,thin-edge.io-child,false"
REGISTRATION = {"topic": "te/device/a//", "payload": {"@type": "child-device", "@id": "A"}}


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Replay lines from a file in an empty directory; gives exit code, answers and errors."""
    monkeypatch.chdir(tmp_path)
    for variable in [name for name in os.environ if name.startswith("EDGEHUB_")]:
        monkeypatch.delenv(variable)

    def run_command(*lines):
        file = tmp_path / "lines.jsonl"
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        file.write_text("\n\n".join(texts))
        with pytest.raises(SystemExit) as ended:
            main(["entity", "replay", str(file)])
        captured = capsys.readouterr()
        answers = [json.loads(line) for line in captured.out.splitlines()]
        return ended.value.code, answers, captured.err

    return run_command


def shown(run, *messages, **config):
    """Replay one input and give topic and payload of what came out."""
    code, (answer,), _ = run({"id": 1, "config": config, "input": messages})
    assert code == 0, answer
    return [(message["topic"], message["payload"]) for message in answer["output"]]


def test_each_line_gets_an_answer(run):
    """With its id; payloads are JSON where the mapper made an object, else text."""
    data = {"topic": "te/device/a///twin/room", "payload": "7", "at_ms": 5}
    code, answers, _ = run(
        {"id": "x", "config": {"device_id": "gw"}, "input": [REGISTRATION, data]},
        {"id": 2, "input": []},
    )
    assert code == 0
    assert answers == [
        {
            "id": "x",
            "output": [
                {"topic": UP, "payload": CREATED, "retain": False},
                {"topic": f"{INVENTORY}/A", "payload": {"room": 7}, "retain": False},
            ],
        },
        {"id": 2, "output": []},
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("7", "must be a JSON object"),
        ({"input": {}}, "`input`: Expected `array`"),
        ({}, "`input`: Expected `array`"),
        ({"input": [], "config": []}, "`config` must be an object"),
        ({"input": [7]}, "Expected `object`, got `int` - at `$[0]`"),
        ({"input": [{}]}, "missing required field `topic` - at `$[0]`"),
        ({"input": [{"topic": "t", "at_ms": True}]}, "got `bool` - at `$[0].at_ms`"),
        ({"input": [{"topic": "$ctl/pause"}]}, "`$ctl/pause` is no control"),
        ({"input": [], "config": {"observe": [7]}}, "list of topic filters"),
        ({"input": [], "config": {"observe": ["a#"]}}, "`#` must be"),
        ({"input": [], "config": {"startup": "now"}}, "drop or compare"),
        ({"input": [], "config": {"auto_register": 1}}, "`config.auto_register` must be true or"),
        ({"input": [], "config": {"telemetry_cache_scope": "all"}}, "'entity' or 'global'"),
        ({"input": [], "config": {"auto_registr": True}}, "did you mean `auto_register`?"),
        ({"input": [], "config": {"zzz": 1}}, "`config` has no member `zzz`: there are alarm_"),
        ({"input": [], "config": {"availability": {"enabled": 1}}}, "did you mean `enable`?"),
        ({"input": [], "config": {"availability": 7}}, "must be an object, or off"),
        ({"input": [], "config": {"capabilities": {"restrt": False}}}, "mean `restart`?"),
        ({"input": [], "config": {"capabilities": 1}}, "`config.capabilities` must be an object"),
        ({"input": [], "config": {"software_management": {"apis": 1}}}, "did you mean `api`?"),
        ({"input": [{"topic": "t", "retian": True}]}, "unknown field `retian` - at `$[0]`"),
        ({"input": [{"topic": "t", "at_ms": -1}]}, ">= 0 - at `$[0].at_ms`"),
        ({"input": [{"topic": "t", "at_ms": 10**12}]}, "<= 31622400000"),
        ({"input": [{"topic": "t", "payload": "\ud800"}]}, "`input[0].payload` cannot be sent"),
        ({"input": [{"topic": "\ud800"}]}, "`input[0]` cannot be sent"),
        ({"input": [], "config": {"availability": {"interval_s": -5}}}, "at least 0, got -5"),
        (
            {"input": [], "config": {"pending_ttl_s": 0}},
            "pending_ttl_s` must be at least 1",
        ),
        (
            {"input": [], "config": {"telemetry_cache_size": -1}},
            "_size` must be at least 0",
        ),
        (
            {"input": [], "config": {"alarm_sync_ms": -1}},
            "`config.alarm_sync_ms` must be at",
        ),
        (
            {"input": [], "config": {"max_payload_size": -1}},
            "max_payload_size` must be at least 256",
        ),
        ({"input": [], "config": {"topic_root": ""}}, "`config.topic_root` is empty"),
        (
            {"input": [], "config": {"c8y_prefix": "a/b"}},
            "c8y_prefix` 'a/b' must be one level",
        ),
        ({"input": [], "config": {"device_topic_id": "a/b/c/d/e"}}, "is no topic id"),
    ],
)
def test_unusable_line_is_reported_and_the_others_are_run(run, line, reason):
    """Exit code 1, every line has its answer."""
    code, answers, _ = run(line, {"id": 2, "input": []}, {"id": 3})
    assert code == 1
    assert (answers[2]["id"], answers[2]["line"]) == (3, 5)
    assert reason in answers[0]["error"]
    assert answers[0]["line"] == 1
    assert answers[1] == {"id": 2, "output": []}


def test_observed_topics_can_be_chosen(run):
    """Absent, those of the cloud; errors, the journal and commands can be watched."""
    alarm = {"topic": "te/device/main///a/hot", "payload": '{"time": 0}'}
    bad = {"topic": "te/device/main///m/", "payload": "x"}
    assert len(shown(run, alarm, bad)) == 1
    everything = shown(run, alarm, bad, observe=["#"])
    assert [topic for topic, _ in everything] == [
        UP,
        "c8y-internal/alarms/te/device/main///a/hot",
        "te/errors",
    ]
    assert everything[1][1] == '{"time": 0}'


def test_start_can_be_shown(run):
    """What the main device can do, the request for operations, and the interval."""
    availability = {"enable": True, "interval_s": 3600}
    lines = shown(run, startup="compare", availability=availability)
    assert lines == [(UP, "114"), (UP, "500"), (UP, "117,60")]
    assert shown(run, availability=availability) == []


def test_restart_keeps_what_the_tables_hold(run):
    """The broker delivers what is retained again, and nothing is sent twice."""
    retained = {**REGISTRATION, "retain": True}
    twin = {"topic": "te/device/a///twin/k", "payload": "1", "retain": True}
    held = {"topic": "te/device/b///twin/k", "payload": "2"}
    restart = {"topic": "$ctl/restart", "payload": {}}
    late = {"topic": "te/device/b//", "payload": {"@type": "child-device", "@id": "B"}}
    lines = shown(run, retained, twin, held, restart, restart, late)
    assert lines == [
        (UP, CREATED),
        (f"{INVENTORY}/A", {"k": 1}),
        (UP, "101,B,B,thin-edge.io-child,false"),
        (f"{INVENTORY}/B", {"k": 2}),
    ]


def test_clean_start_begins_with_what_is_retained(run):
    """Also with the hub's own automatic registrations; what was cleared does not come back."""
    messages = [
        {"topic": "te/device/a///m/", "payload": {"time": TIME, "v": 1}},
        {"topic": "te/device/b//", "payload": {"@type": "child-device"}, "retain": True},
        {"topic": "te/device/b//", "payload": "", "retain": True},
        {"topic": "$ctl/restart"},
    ]
    lines = shown(run, *messages, device_id="gw", auto_register=True, clean_start=True)
    created = (UP, "101,gw:device:a,a,thin-edge.io-child,false")
    assert [line for line in lines if line == created] == [created] * 2
    assert len(lines) == 4


def test_queue_of_the_broker_waits_while_the_daemon_is_down(run):
    """What is queued and retained as well comes once; a start of what runs is nothing."""
    messages = [
        {**REGISTRATION, "retain": True},
        {"topic": "$ctl/start"},
        {"topic": "$ctl/stop", "at_ms": 100},
        {"topic": "te/device/a///m/", "payload": {"time": TIME, "v": 1}},
        {"topic": "te/device/a///a/hot", "payload": '{"time":0}', "retain": True},
        {"topic": "$ctl/start", "at_ms": 200},
    ]
    lines = shown(run, *messages)
    assert [topic for topic, _ in lines] == [UP, MEASUREMENTS, "c8y/s/us/A"]


def test_clock_goes_on_as_written(run):
    """Timers fire at their time, while the daemon runs."""
    health = {
        "topic": "te/device/main/service/tedge-agent/status/health",
        "payload": {"status": "up"},
        "at_ms": 1000,
    }
    wait = {"topic": "$ctl/wait", "at_ms": 5_400_000}
    beat = (f"{INVENTORY}/hub", {})
    availability = {"enable": True, "interval_s": 3600}
    lines = shown(run, health, wait, device_id="hub", availability=availability)
    assert lines == [beat] * 3
    off = [{"topic": "$ctl/stop", "at_ms": 2000}, wait]
    assert shown(run, health, *off, device_id="hub", availability=availability) == []


def test_configuration_reaches_the_mapper(run):
    """Names are those of the case files."""
    operation = {
        "id": "7",
        "externalSource": {"externalId": "gw"},
        "c8y_DownloadConfigFile": {"type": "t", "url": "https://t1.example.com/1"},
    }
    disabled = {"topic": "plant/device/main///cmd/restart", "payload": {}}
    messages = [{"topic": "cumu/devicecontrol/notifications", "payload": operation}, disabled]
    ((topic, command),) = shown(
        run,
        *messages,
        device_id="gw",
        c8y_prefix="cumu",
        topic_root="plant",
        observe=["#"],
        c8y_url="https://acme.example.com/",
        proxy_url="http://gw:8001",
        capabilities={"restart": False},
        topics="default",
    )
    assert topic == "plant/device/main///cmd/config_update/cumu-mapper-7"
    assert command["remoteUrl"] == "http://gw:8001/1"


def test_held_messages_end_after_their_time(run):
    """With `pending_ttl_s`, the default is a day."""
    held = {"topic": "te/device/a///twin/k", "payload": "1"}
    wait = {"topic": "$ctl/wait", "at_ms": 10_000}
    lines = shown(run, held, wait, REGISTRATION, pending_ttl_s=10, observe=["c8y/#", "te/errors"])
    assert [topic for topic, _ in lines] == ["te/errors", UP]

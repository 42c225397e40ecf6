"""Capabilities, operations from the cloud, and the status of commands."""

import json

import pytest

from edgehub.entities.commands import ACTIVE_MS, COMMANDS_MAX, FINISHED_MS
from edgehub.entities.effects import LocalPublish
from tests.support.entities import ERRORS, INVENTORY, UP, MapperBench, cloud, error_of

MAIN = "te/device/main//"
NOTIFICATIONS = "c8y/devicecontrol/notifications"
FILES = "http://127.0.0.1:8000/te/v1/files"
HOUR_MS = 3600 * 1000


def notify(bench, fragment, content, *, number="7", external_id="hub-01", **members):
    """Let the cloud ask for an operation."""
    operation = {
        "id": number,
        "status": "PENDING",
        "externalSource": {"externalId": external_id, "type": "c8y_Serial"},
        fragment: content,
        **members,
    }
    return bench.send(NOTIFICATIONS, operation)


def command_of(fragment, content, **members):
    """Return operation name and command that an operation for the main device becomes."""
    bench = MapperBench()
    ((topic, command),) = notify(bench, fragment, content, **members)
    (effect,) = [effect for effect in bench.effects if hasattr(effect, "retain")]
    assert effect.retain
    assert command.pop("status") == "init"
    _, operation, command_id = topic.rsplit("/", 2)
    assert topic == f"{MAIN}/cmd/{operation}/c8y-mapper-7"
    assert command_id == "c8y-mapper-7"
    return operation, command


@pytest.mark.parametrize(
    ("operation", "payload", "lines"),
    [
        ("restart", "{}", ["114,c8y_Restart"]),
        ("firmware_update", "{}", ["114,c8y_Firmware"]),
        ("device_profile", "{}", ["114,c8y_DeviceProfile"]),
        ("log_upload", {"types": ["b", "a"]}, ["114,c8y_LogfileRequest", "118,a,b"]),
        ("config_snapshot", {"types": ["b", "a"]}, ["114,c8y_UploadConfigFile", "119,a,b"]),
        ("config_update", {"types": []}, ["114,c8y_DownloadConfigFile", "119,"]),
        ("restart", "whatever", ["114,c8y_Restart"]),
        ("software_list", {"types": ["apt"]}, []),
        ("own_operation", "{}", []),
    ],
)
def test_declared_operation_is_announced(operation, payload, lines):
    """With the types that some of them have, sorted; others say nothing to the cloud."""
    sent = MapperBench().send(f"{MAIN}/cmd/{operation}", payload)
    assert sent == [(UP, line) for line in lines]


def test_declaration_lists_everything():
    """Sorted, complete, on the topic of the entity, and only when the list grew."""
    bench = MapperBench()
    bench.child("a")
    topic = "te/device/a///cmd"
    assert bench.send(f"{topic}/restart", "{}") == [("c8y/s/us/A", "114,c8y_Restart")]
    assert bench.send(f"{topic}/device_profile", "{}") == [
        ("c8y/s/us/A", "114,c8y_DeviceProfile,c8y_Restart")
    ]
    assert bench.send(f"{topic}/restart", "{}") == []
    assert bench.send(f"{topic}/log_upload", {"types": ["a"]})[1:] == [("c8y/s/us/A", "118,a")]
    assert bench.send(f"{topic}/log_upload", {"types": ["b"]}) == [("c8y/s/us/A", "118,b")]


def test_declarations_outlive_a_restart():
    """What a broker delivers again is not sent again; the start tells those of the main device."""
    bench = MapperBench()
    bench.send(f"{MAIN}/cmd/restart", "{}")
    assert bench.restart() == [(UP, "114,c8y_Restart"), (UP, "500")]
    assert bench.send(f"{MAIN}/cmd/restart", "{}") == []


def test_cleared_declaration_stays():
    """As in the original: the cloud keeps the operation."""
    bench = MapperBench()
    bench.send(f"{MAIN}/cmd/restart", "{}")
    assert bench.send(f"{MAIN}/cmd/restart", "") == []
    assert bench.restart()[0] == (UP, "114,c8y_Restart")


@pytest.mark.parametrize(
    ("operation", "payload"),
    [
        ("config_snapshot", "{"),
        ("config_snapshot", "{}"),
        ("log_upload", {"types": "a"}),
        ("log_upload", {"types": [1]}),
        ("log_upload", "[]"),
    ],
)
def test_wrong_declaration_is_refused(operation, payload):
    """And declares nothing."""
    bench = MapperBench()
    error_of(bench.send(f"{MAIN}/cmd/{operation}", payload))
    assert bench.restart()[0] == (UP, "114")


def test_service_can_declare():
    """On its own topic."""
    bench = MapperBench()
    bench.send("te/device/main/service/s", {"@type": "service", "@id": "S"})
    assert bench.send("te/device/main/service/s/cmd/restart", "{}") == [
        ("c8y/s/us/S", "114,c8y_Restart")
    ]


def test_disabled_operation_is_neither_declared_nor_taken():
    """Neither down nor up."""
    bench = MapperBench(disabled_operations=frozenset({"restart"}))
    assert bench.send(f"{MAIN}/cmd/restart", "{}") == []
    assert notify(bench, "c8y_Restart", {}) == []
    assert bench.send(f"{MAIN}/cmd/restart/c8y-mapper-7", {"status": "executing"}) == []


def test_software_update_asks_for_the_list():
    """When it is declared, and after each update."""
    bench = MapperBench()
    request = {"status": "init"}
    line, (topic, asked) = bench.send(f"{MAIN}/cmd/software_update", "{}")
    assert line == (UP, "114,c8y_SoftwareUpdate")
    assert topic.startswith(f"{MAIN}/cmd/software_list/c8y-mapper-")
    assert asked == request
    lines = bench.send(f"{MAIN}/cmd/software_update/c8y-mapper-7", {"status": "successful"})
    assert lines[0] == (UP, "506,7")
    assert lines[1][1] == request
    assert lines[2] == (f"{MAIN}/cmd/software_update/c8y-mapper-7", "")


def test_software_types_are_sent_where_wanted():
    """As a fragment."""
    bench = MapperBench(software_types=True)
    assert bench.send(f"{MAIN}/cmd/software_list", {"types": ["apt", "docker"]}) == [
        (f"{INVENTORY}/hub-01", {"c8y_SupportedSoftwareTypes": ["apt", "docker"]})
    ]


def test_sync_signal_sends_all_declarations_again():
    """Of the main device and of whoever has some."""
    bench = MapperBench()
    bench.child("a")
    bench.child("b")
    bench.send("te/device/b///cmd/restart", "{}")
    assert bench.send("te/device/main/service/other/signal/sync", "{}") == []
    assert bench.send("te/device/main/service/tedge-mapper-c8y/signal/other", "{}") == []
    assert bench.send("te/device/main/service/tedge-mapper-c8y/signal/sync", "{}") == [
        (UP, "114"),
        ("c8y/s/us/B", "114,c8y_Restart"),
    ]


def test_restart():
    """A command without further members."""
    assert command_of("c8y_Restart", {}) == ("restart", {})


def test_log_upload():
    """Times become RFC 3339, an empty search is left out."""
    request = {
        "searchText": "",
        "logFile": "a/b",
        "dateFrom": "2023-11-28T16:33:50+0100",
        "dateTo": "2023-11-29T16:33:50.500Z",
        "maximumLines": 1000,
    }
    command = {
        "tedgeUrl": f"{FILES}/hub-01/log_upload/a:b-c8y-mapper-7",
        "type": "a/b",
        "dateFrom": "2023-11-28T16:33:50+01:00",
        "dateTo": "2023-11-29T16:33:50.5Z",
        "lines": 1000,
    }
    assert command_of("c8y_LogfileRequest", request) == ("log_upload", command)
    searched = command_of("c8y_LogfileRequest", {**request, "searchText": "ERROR"})
    assert searched[1] == {**command, "searchText": "ERROR"}


@pytest.mark.parametrize(("members", "type_"), [({"type": "a/b"}, "a/b"), ({}, "default")])
def test_config_snapshot(members, type_):
    """The URL holds no further slashes."""
    url = f"{FILES}/hub-01/config_snapshot/{type_.replace('/', ':')}-c8y-mapper-7"
    assert command_of("c8y_UploadConfigFile", members) == (
        "config_snapshot",
        {"tedgeUrl": url, "type": type_},
    )


def test_config_and_firmware_update():
    """Foreign URLs are passed as they are."""
    url = "https://files.example.net/x.bin"
    assert command_of("c8y_DownloadConfigFile", {"type": "t", "url": url}) == (
        "config_update",
        {"remoteUrl": url, "serverUrl": url, "type": "t"},
    )
    firmware = {"name": "f", "version": "1.0"}
    assert command_of("c8y_Firmware", {**firmware, "url": url}) == (
        "firmware_update",
        {"tedgeUrl": url, "remoteUrl": url, **firmware},
    )


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("https://acme.example.com/inventory/binaries/1", "/inventory/binaries/1"),
        ("http://t1.example.com:443/a?b=c", "/a?b=c"),
        ("https://acme.example.com.evil.net/1", None),
        ("https://example.com/1", None),
        ("ftp://acme.example.com/1", None),
        ("https://[/1", None),
        ("no url", None),
    ],
)
def test_url_of_the_tenant_goes_through_the_proxy(url, local):
    """Under its name and its id; the server's own URL stays beside it."""
    proxy = "http://127.0.0.1:8001/c8y"
    bench = MapperBench(tenant_host="acme.example.com", proxy_url=f"{proxy}/")
    ((_, command),) = notify(bench, "c8y_DownloadConfigFile", {"type": "t", "url": url})
    assert command["remoteUrl"] == (url if local is None else proxy + local)
    assert command["serverUrl"] == url


def test_base_of_file_urls_may_hold_the_path_already():
    """It is not doubled."""
    bench = MapperBench(file_transfer_url="http://gw:8000/te/v1/files/")
    ((_, command),) = notify(bench, "c8y_UploadConfigFile", {"type": "t"})
    assert command["tedgeUrl"] == (
        "http://gw:8000/te/v1/files/hub-01/config_snapshot/t-c8y-mapper-7"
    )


@pytest.mark.parametrize(
    ("module", "type_", "version"),
    [
        ({"version": "1.0::debian"}, "debian", "1.0"),
        ({"version": "1::2::debian"}, "debian", "1::2"),
        ({"version": "1.0"}, "default", "1.0"),
        ({"version": "::debian"}, "debian", None),
        ({"version": "1.0::"}, "default", "1.0"),
        ({"version": "::"}, "default", None),
        ({"version": " "}, "default", None),
        ({}, "default", None),
        ({"softwareType": "apt", "version": "1.0::x"}, "apt", "1.0::x"),
        ({"softwareType": " ", "version": "1.0::x"}, "x", "1.0"),
    ],
)
def test_version_and_type_of_software(module, type_, version):
    """The type is a member of its own, or the end of the version."""
    request = [{"name": "n", "action": "install", **module}]
    _, command = command_of("c8y_SoftwareUpdate", request)
    expected = {"name": "n", "action": "install"} | (
        {} if version is None else {"version": version}
    )
    assert command == {"updateList": [{"type": type_, "modules": [expected]}]}


def test_software_update_is_grouped_by_type():
    """In order of appearance; what is removed needs no URL."""
    url = "https://files.example.net/x.deb"
    request = [
        {"name": "a", "action": "install", "softwareType": "apt", "version": "1", "url": url},
        {"name": "b", "action": "install", "softwareType": "docker", "version": "", "url": " "},
        {"name": "c", "action": "delete", "softwareType": "apt", "version": "2", "url": url},
    ]
    _, command = command_of("c8y_SoftwareUpdate", request)
    assert command == {
        "updateList": [
            {
                "type": "apt",
                "modules": [
                    {"name": "a", "version": "1", "url": url, "action": "install"},
                    {"name": "c", "version": "2", "action": "remove"},
                ],
            },
            {"type": "docker", "modules": [{"name": "b", "action": "install"}]},
        ]
    }


def test_device_profile():
    """Firmware, configuration, software, whatever their order in the profile."""
    url = "https://files.example.net/x"
    profile = {
        "software": [{"name": "s", "action": "install", "softwareType": "apt", "version": "1"}],
        "configuration": [{"name": "c", "type": "t", "url": url}],
        "firmware": {"name": "f", "version": "1.0", "url": url},
    }
    operation, command = command_of("c8y_DeviceProfile", profile, profileName="p")
    assert operation == "device_profile"
    assert command["name"] == "p"
    assert [part["operation"] for part in command["operations"]] == [
        "firmware_update",
        "config_update",
        "software_update",
    ]
    assert all(part["@skip"] is False for part in command["operations"])
    firmware, configuration, software = (part["payload"] for part in command["operations"])
    assert firmware == {"name": "f", "version": "1.0", "remoteUrl": url}
    assert configuration == {"name": "c", "type": "t", "remoteUrl": url, "serverUrl": url}
    assert software["updateList"][0]["type"] == "apt"
    assert command_of("c8y_DeviceProfile", {}, profileName="p")[1]["operations"] == []


@pytest.mark.parametrize(
    ("fragment", "content"),
    [
        ("c8y_SoftwareUpdate", [{"name": "a", "action": "remove", "version": "1"}]),
        ("c8y_SoftwareUpdate", [{"action": "install"}]),
        ("c8y_SoftwareUpdate", {}),
        ("c8y_LogfileRequest", {}),
        (
            "c8y_LogfileRequest",
            {"logFile": "a", "dateFrom": "2023-11-28T16:33:50Z", "dateTo": "2023-11-28T16:33:50Z"},
        ),
        ("c8y_LogfileRequest", []),
        ("c8y_DownloadConfigFile", {"type": "t"}),
        ("c8y_Firmware", {"name": "f", "version": 1, "url": "u"}),
        ("c8y_DeviceProfile", {"firmware": {}}),
    ],
)
def test_operation_that_cannot_be_read_fails_at_the_cloud(fragment, content):
    """It is executing, then failed with the reason, and not carried out."""
    bench = MapperBench()
    bench.child("a")
    lines = notify(bench, fragment, content, external_id="A")
    assert lines[0] == ("c8y/s/us/A", "504,7")
    assert lines[1][1].startswith("505,7,")
    assert len(lines) == 2
    assert notify(bench, fragment, content, external_id="A") == []


def test_wrong_profile_configuration_fails():
    """It must be a list."""
    bench = MapperBench()
    lines = notify(bench, "c8y_DeviceProfile", {"configuration": 7}, profileName="p")
    assert lines[1][1].startswith("505,7,")


def test_operation_for_an_unknown_device_is_ignored():
    """Unknown devices and unknown operations."""
    bench = MapperBench()
    assert notify(bench, "c8y_Restart", {}, external_id="nobody") == []
    assert notify(bench, "c8y_Command", {"text": "ls"}) == []
    assert bench.mapper.statistics().ignored_total == 2


def test_one_bad_operation_does_not_stop_the_others():
    """One a line; a number as id is one, too."""
    bench = MapperBench()
    source = {"externalId": "hub-01"}
    texts = [
        json.dumps({"id": 1, "externalSource": source, "c8y_Restart": {}}),
        "not json",
        "[]",
        json.dumps({"externalSource": source, "c8y_Restart": {}}),
        json.dumps({"id": "a/b", "externalSource": source, "c8y_Restart": {}}),
        json.dumps({"id": "2", "c8y_Restart": {}}),
        "",
        json.dumps({"id": "3", "externalSource": source, "c8y_Restart": {}}),
    ]
    lines = bench.send(NOTIFICATIONS, "\n".join(texts))
    assert [topic for topic, _ in lines] == [
        f"{MAIN}/cmd/restart/c8y-mapper-1",
        *[ERRORS] * 5,
        f"{MAIN}/cmd/restart/c8y-mapper-3",
    ]
    pretty = {"id": "4", "externalSource": source, "c8y_Restart": {}}
    assert len(bench.send(NOTIFICATIONS, json.dumps(pretty, indent=2))) == 1


def test_operation_is_carried_out_once():
    """While it is active for twelve hours, and for an hour after its end; also over restarts."""
    bench = MapperBench()
    assert len(notify(bench, "c8y_Restart", {})) == 1
    bench.restart()
    assert notify(bench, "c8y_Restart", {}) == []
    bench.send(f"{MAIN}/cmd/restart/c8y-mapper-7", {"status": "successful"})
    bench.go_on(FINISHED_MS - 1)
    bench.restart()
    assert notify(bench, "c8y_Restart", {}) == []
    bench.go_on(1)
    assert len(notify(bench, "c8y_Restart", {})) == 1
    bench.go_on(ACTIVE_MS - 1)
    assert notify(bench, "c8y_Restart", {}) == []
    bench.go_on(1)
    assert len(notify(bench, "c8y_Restart", {})) == 1


def test_status_of_a_command_that_ended_long_ago_is_reported_as_that_of_a_new_one():
    """Within the hour a late one is cleared; after it the id may be used again."""
    bench = MapperBench()
    topic = f"{MAIN}/cmd/restart/c8y-mapper-7"
    notify(bench, "c8y_Restart", {})
    bench.send(topic, {"status": "successful"})
    bench.go_on(FINISHED_MS - 1)
    assert bench.send(topic, {"status": "executing"}) == [(topic, "")]
    bench.go_on(1)
    assert bench.send(topic, {"status": "executing"}) == [(UP, "504,7")]


def test_old_commands_are_forgotten():
    """On disk, too; the number is bounded besides, and a known one costs no other its place."""
    bench = MapperBench()
    notify(bench, "c8y_Restart", {})
    bench.go_on(ACTIVE_MS + HOUR_MS)
    (rows,) = bench.connection.execute("SELECT count(*) FROM mapper_state").fetchone()
    assert rows == 0
    for number in range(COMMANDS_MAX + 5):
        bench.mapper.handle(
            f"{MAIN}/cmd/restart/c8y-mapper-{number}", b'{"status":"init"}', bench.now
        )
    bench.send(f"{MAIN}/cmd/restart/c8y-mapper-9999", {"status": "executing"})
    assert notify(bench, "c8y_Restart", {}, number="5") == []
    assert len(notify(bench, "c8y_Restart", {}, number="0")) == 1
    assert notify(bench, "c8y_Restart", {}, number="9999") == []


@pytest.mark.parametrize(
    ("options", "number", "lines"),
    [
        ({}, "7", ["504,7", "506,7"]),
        ({"use_operation_id": False}, "7", ["501,c8y_Restart", "503,c8y_Restart"]),
        ({}, "abc", ["501,c8y_Restart", "503,c8y_Restart"]),
        ({}, "", ["501,c8y_Restart", "503,c8y_Restart"]),
    ],
)
def test_status_is_reported_by_id_or_name(options, number, lines):
    """By id where it is a number and wanted."""
    bench = MapperBench(**options)
    topic = f"{MAIN}/cmd/restart/c8y-mapper-{number}"
    for status in ("init", "scheduled", "odd"):
        assert bench.send(topic, {"status": status}) == []
    assert bench.send(topic, {"status": "executing"}) == [(UP, lines[0])]
    assert bench.send(topic, {"status": "successful"}) == [(UP, lines[1]), (topic, "")]


@pytest.mark.parametrize(
    ("operation", "members", "reason"),
    [
        ("config_update", {"reason": "no space"}, "no space"),
        ("config_update", {}, "Unknown reason"),
        ("config_update", {"reason": ""}, ""),
        ("config_update", {"reason": 'a, "b"'}, '"a, ""b"""'),
        ("config_update", {"reason": "a\nb\x00"}, '"a\nb"'),
        ("config_update", {"reason": "x" * 600}, "x" * 500),
        ("restart", {"reason": "no"}, "Restart Failed: no"),
        ("restart", {}, "Restart Failed: Unknown reason"),
    ],
)
def test_failure_has_its_reason(operation, members, reason):
    """At most 500 bytes, quoted on demand."""
    topic = f"{MAIN}/cmd/{operation}/c8y-mapper-7"
    lines = MapperBench().send(topic, {"status": "failed", **members})
    assert lines == [(UP, f"505,7,{reason}"), (topic, "")]


def test_status_is_reported_once():
    """Repeats are silent, also over a restart; what comes after the end is only cleared."""
    bench = MapperBench()
    topic = f"{MAIN}/cmd/restart/c8y-mapper-7"
    executing = {"status": "executing"}
    assert len(bench.send(topic, executing)) == 1
    bench.restart()
    assert bench.send(topic, executing) == []
    assert len(bench.send(topic, {"status": "failed"})) == 2
    assert bench.send(topic, "") == []
    bench.restart()
    for late in (executing, {"status": "successful"}, "{"):
        assert bench.send(topic, late) == [(topic, "")]
        assert all(isinstance(effect, LocalPublish) and effect.retain for effect in bench.effects)
    assert bench.send(topic, "") == []


def test_command_that_is_cleared_before_its_end_may_come_again():
    """Whoever carries it out took it back."""
    bench = MapperBench()
    topic = f"{MAIN}/cmd/restart/c8y-mapper-7"
    bench.send(topic, {"status": "executing"})
    assert bench.send(topic, "") == []
    assert bench.send(topic, "") == []
    assert len(bench.send(topic, {"status": "executing"})) == 1


@pytest.mark.parametrize(
    "command",
    ["restart/other-1", "restart/sub:c8y-mapper-1", "restart/c8y-mapper", "own/c8y-mapper-1"],
)
def test_commands_of_others_are_left_alone(command):
    """Neither reported nor cleared."""
    assert MapperBench().send(f"{MAIN}/cmd/{command}", {"status": "successful"}) == []


@pytest.mark.parametrize("payload", ["{", "[]", {"status": 5}])
def test_command_that_cannot_be_read_is_reported(payload):
    """As any message."""
    error_of(MapperBench().send(f"{MAIN}/cmd/restart/c8y-mapper-7", payload))


def test_finished_configuration_is_recorded_first():
    """With the URL of the cloud; a command that lacks it has failed."""
    topic = f"{MAIN}/cmd/config_update/c8y-mapper-7"
    finished = {"status": "successful", "type": "t", "serverUrl": "https://a.example/s"}
    assert MapperBench().send(topic, finished)[:2] == [
        (UP, "120,t,https://a.example/s,"),
        (UP, "506,7"),
    ]
    lines = MapperBench().send(topic, {"status": "successful"})
    assert lines[0][1].startswith("505,7,")
    assert lines[1] == (topic, "")


def test_finished_firmware_is_known_at_once():
    """As a twin value for all, and as the cloud's fragment; once."""
    bench = MapperBench()
    topic = f"{MAIN}/cmd/firmware_update/c8y-mapper-7"
    command = {"name": "f", "version": "1", "remoteUrl": "u"}
    firmware = {"name": "f", "version": "1", "url": "u"}
    assert bench.send(topic, {"status": "successful", **command}) == [
        (UP, "506,7"),
        (f"{MAIN}/twin/firmware", firmware),
        (f"{INVENTORY}/hub-01", {"c8y_Firmware": firmware}),
        (topic, ""),
    ]
    assert bench.send(f"{MAIN}/twin/firmware", firmware) == []
    assert bench.send(topic.replace("-7", "-8"), {"status": "successful"})[0] == (UP, "506,8")


def test_device_profile_is_reported_in_its_parts():
    """Begun, configurations, firmware, done; skipped parts say nothing."""
    bench = MapperBench()
    topic = f"{MAIN}/cmd/device_profile/c8y-mapper-7"
    assert bench.send(topic, {"status": "executing"}) == [(UP, "504,7"), (UP, "121,false")]
    configuration = {"name": "c", "type": "t", "serverUrl": "u"}
    parts = [
        {"operation": "firmware_update", "payload": {"name": "f", "version": "1"}},
        {"operation": "config_update", "payload": configuration},
        {"operation": "config_update", "@skip": True, "payload": configuration},
        {"operation": "software_update", "payload": {}},
        "odd",
    ]
    lines = cloud(bench.send(topic, {"status": "successful", "operations": parts}))
    assert lines == [
        (UP, "120,t,u,c"),
        (UP, "121,true"),
        (UP, "506,7"),
        (f"{INVENTORY}/hub-01", {"c8y_Firmware": {"name": "f", "version": "1"}}),
    ]


def software_list(*groups):
    """Return a finished software list."""
    return {"status": "successful", "currentSoftwareList": list(groups)}


def test_software_list_is_sent_in_lines():
    """Name, version, type and URL of each module; none at all is a line, too."""
    topic = f"{MAIN}/cmd/software_list/c8y-mapper-1"
    groups = (
        {"type": "debian", "modules": [{"name": "a"}, {"name": "b", "version": "1.0"}]},
        {"type": "apama", "modules": [{"name": "m", "url": "https://x.example/m"}]},
    )
    assert MapperBench().send(topic, software_list(*groups)) == [
        (UP, "140,a,,debian,,b,1.0,debian,,m,,apama,https://x.example/m"),
        (topic, ""),
    ]
    assert MapperBench().send(topic, software_list())[0] == (UP, "140,,,,")
    assert MapperBench().send(topic, {"status": "successful"})[0] == (UP, "140,,,,")


@pytest.mark.parametrize(("url", "sizes"), [("", [100, 100, 5]), ("u" * 400, [39] * 5 + [10])])
def test_long_software_list_is_sent_in_pieces(url, sizes):
    """A hundred modules a line, fewer where the cloud would not take so much."""
    modules = [{"name": f"n{number}", "url": url} for number in range(205)]
    topic = f"{MAIN}/cmd/software_list/c8y-mapper-1"
    lines = cloud(MapperBench().send(topic, software_list({"type": "apt", "modules": modules})))
    assert [line.split(",", 1)[0] for _, line in lines] == ["140"] + ["141"] * (len(sizes) - 1)
    assert [line.count(",") // 4 for _, line in lines] == sizes
    assert all(len(line) <= 16_184 for _, line in lines)


def test_software_list_may_be_left_out():
    """The command is cleared all the same."""
    topic = f"{MAIN}/cmd/software_list/c8y-mapper-1"
    bench = MapperBench(software_lists=False)
    assert bench.send(topic, software_list()) == [(topic, "")]
    failed = bench.send(f"{topic}2", {"status": "failed", "reason": "x"})
    assert failed == [(f"{topic}2", "")]


@pytest.mark.parametrize(
    "groups", [7, [7], [{"modules": 7}], [{"modules": [7]}], [{"modules": [{"name": 7}]}]]
)
def test_wrong_software_list_is_reported(groups):
    """And cleared, so that it does not come back."""
    topic = f"{MAIN}/cmd/software_list/c8y-mapper-1"
    lines = MapperBench().send(topic, {"status": "successful", "currentSoftwareList": groups})
    assert [line[0] for line in lines] == [ERRORS, topic]


def test_prefix_of_the_cloud_names_the_commands():
    """Two clouds do not take each other's commands."""
    bench = MapperBench(topic_prefix="cumu-b")
    operation = {"id": "7", "externalSource": {"externalId": "hub-01"}, "c8y_Restart": {}}
    assert bench.send(NOTIFICATIONS, operation) == []
    ((topic, _),) = bench.send("cumu-b/devicecontrol/notifications", operation)
    assert topic == f"{MAIN}/cmd/restart/cumu-b-mapper-7"
    assert bench.send(topic, {"status": "executing"}) == [("cumu-b/s/us", "504,7")]


def test_an_operation_of_the_users_own_goes_both_ways():
    """Declared under its fragment, begun with its members, and reported with its result."""
    bench = MapperBench(custom_operations={"valve_test": "acme_ValveTest"})
    bench.child("p")
    assert bench.send("te/device/p///cmd/valve_test", {}) == [(f"{UP}/P", "114,acme_ValveTest")]
    lines = notify(
        bench, "acme_ValveTest", {"valve": 7, "status": "x"}, number="1", external_id="P"
    )
    topic = "te/device/p///cmd/valve_test/c8y-mapper-1"
    assert lines == [(topic, {"status": "init", "valve": 7})]
    assert bench.send(topic, {"status": "executing"}) == [(f"{UP}/P", "504,1")]
    done = bench.send(topic, {"status": "successful", "result": 'opens, "well"\x01'})
    assert done == [(f"{UP}/P", '506,1,"opens, ""well"""'), (topic, "")]


def test_the_result_of_an_operation_is_cut_where_the_line_would_be_too_long():
    """With a mark, and so that what quoting adds has room."""
    bench = MapperBench(custom_operations={"dump": "acme_Dump"})
    bench.child("p")
    notify(bench, "acme_Dump", {}, number="1", external_id="P")
    topic = "te/device/p///cmd/dump/c8y-mapper-1"
    ((_, line), _) = bench.send(topic, {"status": "successful", "result": '"\u00e4' * 6000})
    assert line.startswith('506,1,"""\u00e4')
    assert line.endswith('..."')
    assert 9_000 < len(line.encode()) < 16_184


def test_a_command_that_was_not_seen_is_begun_again():
    """It was noted and the hub was killed before it was published; the others stay as they are."""
    bench = MapperBench()
    notify(bench, "c8y_Restart", {}, number="1")
    notify(bench, "c8y_Restart", {}, number="2")
    notify(bench, "c8y_Restart", {}, number="3")
    first, second, third = (f"te/device/main///cmd/restart/c8y-mapper-{n}" for n in "123")
    bench.send(second, {"status": "executing"})
    bench.restart()
    bench.carry_out(bench.mapper.forget_unpublished({third}))
    bench.restart()
    assert notify(bench, "c8y_Restart", {}, number="1") == [(first, {"status": "init"})]
    assert notify(bench, "c8y_Restart", {}, number="2") == []
    assert notify(bench, "c8y_Restart", {}, number="3") == []

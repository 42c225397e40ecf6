"""`edgehub route`: lines in, lines out; manifests checked; messages explained."""

import json
import os

import pytest

from edgehub.cli.main import main
from tests.support.routes import a_manifest


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Run a command line in an empty directory; gives exit code, output and error output."""
    monkeypatch.chdir(tmp_path)
    for variable in [name for name in os.environ if name.startswith("EDGEHUB_")]:
        monkeypatch.delenv(variable)

    def run_command(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return run_command


def answers(output: str) -> list[dict]:
    """Read the answers, one JSON object a line."""
    return [json.loads(line) for line in output.splitlines()]


def test_conditions_and_routes_are_tried_line_by_line(run, tmp_path):
    """A match, no match, and a compile error are answers; the exit code is 0."""
    lines = [
        {"id": 1, "condition": "site = 'n'", "message": {"properties": {"site": "n"}}},
        {"id": "two", "condition": "site = 'n'", "message": {"properties": {"site": None}}},
        {"id": 3, "route": "FROM /* WHERE level > 5 INTO $upstream", "message": {}},
        {
            "id": 4,
            "route": "FROM /messages/modules/cam/* INTO Endpoint('lab')",
            "message": {"device": "d", "module": "cam", "output": "o"},
        },
        {
            "id": 5,
            "condition": "$body.t = 'Zürich'",
            "message": {
                "body": {"t": "Zürich"},
                "content_type": "application/json",
                "content_encoding": "utf-16",
            },
        },
        {"id": 6, "route": "FROM /mqtt/a/# INTO $upstream", "message": {"source": "/mqtt/a"}},
        {"id": 7, "condition": "a+b = 'x'"},
    ]
    file = tmp_path / "lines.jsonl"
    file.write_text("\n\n".join(json.dumps(line) for line in lines))
    code, output, _ = run("route", "test", str(file))
    found = answers(output)
    assert code == 0
    assert [answer["id"] for answer in found] == [1, "two", 3, 4, 5, 6, 7]
    assert [answer["match"] for answer in found] == [True, False, None, True, True, True, None]
    assert [answer["ok"] for answer in found] == [True, True, False, True, True, True, True]
    assert found[2]["error"] | {"message": "", "hint": ""} == {
        "kind": "condition",
        "line": 1,
        "column": 21,
        "message": "",
        "hint": "",
    }
    assert found[3] | {"reason": ""} == {
        "id": 4,
        "ok": True,
        "match": True,
        "error": None,
        "errors": [],
        "warnings": [],
        "source": "/messages/modules/cam/",
        "condition": "true",
        "sink": "endpoint:lab",
        "outcome": "routed",
        "reason": "",
    }
    assert found[6]["warnings"]


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "[]",
        "[" * 100_000,
        '{"id": 1}',
        '{"id": 1, "condition": 5}',
        '{"id": 1, "condition": "true", "route": "FROM /* INTO $upstream"}',
        '{"id": 1, "condition": "true", "message": 5}',
        '{"id": 1, "condition": "true", "message": {"properties": {"level": 5}}}',
        '{"id": 1, "condition": "true", "message": {"properties": []}}',
        '{"id": 1, "condition": "true", "message": {"device": 5}}',
        '{"id": 1, "condition": "true", "message": {"propertiess": {}}}',
    ],
)
def test_a_bad_line_is_answered_and_the_others_go_on(run, tmp_path, line):
    """The answer says what is wrong; the exit code is 1."""
    file = tmp_path / "lines.jsonl"
    file.write_text(line + '\n{"id": 2, "condition": "true", "message": {}}\n')
    code, output, _ = run("route", "test", str(file))
    bad, good = answers(output)
    assert code == 1
    assert (bad["ok"], bad["match"], bad["error"]["kind"]) == (False, None, "line")
    assert bad["error"]["message"]
    assert (good["id"], good["match"]) == (2, True)


def test_undecodable_lines_are_answered(run, tmp_path):
    """Bytes that are no UTF-8 spoil only their line."""
    file = tmp_path / "lines.jsonl"
    file.write_bytes(b'\xff\xfe\n{"id": 2, "condition": "true"}\n')
    code, output, _ = run("route", "test", str(file))
    assert code == 1
    assert [answer["ok"] for answer in answers(output)] == [False, True]


def test_check_takes_the_file_as_an_argument_or_from_the_settings(run, tmp_path):
    """Both ways to name it are the same; absent it is that of the settings, or the built-in one."""
    file = tmp_path / "m.json"
    file.write_text(json.dumps(a_manifest({"a": "FROM /* INTO $upstream"})))
    text = f"{file}: 1 route, no faults\n"
    assert run("route", "check", str(file)) == (0, text, "")
    assert run("route", "check", "--manifest", str(file)) == (0, text, "")
    assert run("route", "check", str(file), "--manifest", str(file))[0] == 2
    assert "1 route, no faults" in run("route", "check")[1]
    (tmp_path / "edgehub.toml").write_text('manifest = "m.json"\n')
    assert "m.json: 1 route, no faults" in run("route", "check")[1]
    file.write_text("{")
    assert run("route", "check")[0] == 78


def test_check_and_validate_warn_of_a_manifest_without_a_catch_all(run, tmp_path):
    """Messages that match no route are lost, and that is said before it happens."""
    file = tmp_path / "m.json"
    file.write_text(json.dumps(a_manifest({"a": "FROM /* WHERE a = 'b' INTO $upstream"})))
    (tmp_path / "edgehub.toml").write_text('manifest = "m.json"\n')
    text = (
        "warning: routes: no route takes all messages: messages that match no route are"
        ' acknowledged and dropped (to keep them add `"rest": "FROM /messages/* INTO $upstream"`)'
    )
    for command in (("route", "check"), ("config", "validate")):
        code, _, errors = run(*command)
        assert (code, errors) == (0, f"m.json: {text}\n")
        (warning,) = json.loads(run(*command, "--json")[1])["warnings"]
        assert "no route takes all messages" in str(warning)


def test_check_accepts_a_good_manifest_with_its_warnings(run, tmp_path):
    """The number of routes on standard output, warnings on the other one."""
    file = tmp_path / "m.json"
    file.write_text(
        json.dumps(
            a_manifest({"a": "FROM /* INTO Endpoint('lab')", "b": "FROM /foo INTO $upstream"})
        )
    )
    code, output, errors = run("route", "check", "--manifest", str(file))
    assert code == 0
    assert "2 routes" in output
    assert "routes.b" in errors
    code, output, _ = run("route", "check", "--manifest", str(file), "--json")
    document = json.loads(output)
    assert code == 0
    assert (document["ok"], document["routes"], len(document["warnings"])) == (True, 2, 1)
    assert len(document["fingerprint"]) == 64


def test_check_reports_every_fault_of_a_bad_manifest(run, tmp_path):
    """Exit code 78, one line per fault, or all as JSON."""
    file = tmp_path / "m.json"
    file.write_text(json.dumps(a_manifest({"a": "FROM", "b": {"route": 5, "priority": 10}})))
    code, _, errors = run("route", "check", "--manifest", str(file))
    assert code == 78
    assert [path in errors for path in ("routes.a:", "routes.b.route", "routes.b.priority")] == [
        True
    ] * 3
    code, output, _ = run("route", "check", "--manifest", str(file), "--json")
    assert code == 78
    assert len(json.loads(output)["faults"]) == 3


def test_endpoints_are_compared_with_the_settings(run, tmp_path):
    """With a settings file, a named endpoint must be in it."""
    file = tmp_path / "m.json"
    file.write_text(json.dumps(a_manifest({"a": "FROM /* INTO Endpoint('labb')"})))
    config = tmp_path / "hub.toml"
    config.write_text("")
    code, _, errors = run("--config", str(config), "route", "check", "--manifest", str(file))
    assert code == 78
    assert '"labb"' in errors


def test_check_warns_of_bare_words_and_of_sources_that_nothing_feeds(run, tmp_path):
    """The route compiles, and what it does not do is said with its place."""
    file = tmp_path / "m.json"
    routes = {
        "alarm": "FROM /messages/* WHERE kind = alarm INTO $upstream",
        "topics": "FROM /mqtt/site/# INTO $upstream",
        "rest": "FROM /messages/* INTO $upstream",
    }
    file.write_text(json.dumps(a_manifest(routes)))
    config = tmp_path / "hub.toml"
    config.write_text("")
    code, output, errors = run("--config", str(config), "route", "check", "--manifest", str(file))
    assert (code, output) == (0, f"{file}: 3 routes, no faults\n")
    bare, unfed = errors.splitlines()
    assert "routes.alarm: column 31 of its text: `alarm` is the name of a property" in bare
    assert "routes.topics: nothing can publish on `site/#`" in unfed
    _, output, errors = run("route", "check", "--manifest", str(file), "--json")
    (warning,) = json.loads(output)["warnings"]
    assert (warning["route"], warning["column"]) == ("alarm", 31)


def test_an_endpoint_that_is_not_there_names_the_section(run, tmp_path):
    """The fault says what to add, and which endpoints there are."""
    file = tmp_path / "m.json"
    file.write_text(json.dumps(a_manifest({"a": "FROM /* INTO Endpoint('archive')"})))
    config = tmp_path / "hub.toml"
    config.write_text("")
    asked = ("--config", str(config), "route", "check", "--manifest", str(file))
    assert run(*asked)[2].endswith("(add [endpoints.archive])\n")
    config.write_text('[endpoints.lab]\ntype = "file"\npath = "out.jsonl"\n')
    assert run(*asked)[2].endswith("(add [endpoints.archive]; known are: lab)\n")


def test_explain_says_that_no_route_takes_a_message(run, tmp_path):
    """Routes are `routed` or `not routed`, with the reason; without one the message is dropped."""
    file = tmp_path / "m.json"
    routes = {
        "false": "FROM /* WHERE kind = 'alarm' INTO $upstream",
        "undefined": "FROM /* WHERE missing = 'x' INTO $upstream",
        "elsewhere": "FROM /mqtt/# INTO $upstream",
    }
    message = tmp_path / "message.json"
    message.write_text(json.dumps({"properties": {"kind": "other"}}))
    for written in (routes, {}):
        file.write_text(json.dumps(a_manifest(written)))
        code, output, _ = run(
            "route", "explain", "--manifest", str(file), "--message", str(message)
        )
        assert code == 0
        *rows, last = output.splitlines()[1:]
        assert all("  not routed  " in row for row in rows)
        assert len(rows) == len(written)
        assert last == "No route takes this message: it is acknowledged and dropped."


def test_explain_says_where_a_message_goes(run, tmp_path):
    """As a table for people, as JSON for programs; without a message an empty one is taken."""
    file = tmp_path / "m.json"
    routes = {
        "alarm": {"route": "FROM /* WHERE kind = 'alarm' INTO $upstream", "priority": 0},
        "rest": "FROM /messages/* INTO $upstream",
        "kept": {"route": "FROM /* WHERE $body.a[0] = 1 INTO $upstream"},
    }
    file.write_text(
        json.dumps(a_manifest(routes, storeAndForwardConfiguration={"timeToLiveSecs": -1}))
    )
    message = tmp_path / "message.json"
    message.write_text(json.dumps({"properties": {"kind": "alarm"}}))
    asked = ("route", "explain", "--manifest", str(file), "--message", str(message))
    code, output, _ = run(*asked)
    assert code == 0
    assert ["  not routed  " in line for line in output.splitlines()] == [
        False,
        False,
        True,
        True,
    ]
    assert "No route takes" not in output
    _, output, _ = run(*asked, "--json")
    verdicts = json.loads(output)["routes"]
    assert [verdict["outcome"] for verdict in verdicts] == ["routed", "beaten", "undefined"]
    assert verdicts[0] | {"reason": ""} == {
        "route": "alarm",
        "endpoint": "upstream",
        "priority": 0,
        "ttl_s": None,
        "outcome": "routed",
        "reason": "",
        "winner": None,
        "line": None,
        "column": None,
    }
    _, output, _ = run("route", "explain", "--manifest", str(file), "--json")
    assert json.loads(output)["routes"][1]["outcome"] == "routed"


@pytest.mark.parametrize(
    ("manifest", "message", "code"),
    [(b"\xff", b"{}", 78), (None, b"nonsense", 1), (None, b"[]", 1)],
)
def test_explain_refuses_what_it_cannot_read(run, tmp_path, manifest, message, code):
    """A manifest that is no text, a message that is no JSON object."""
    file = tmp_path / "m.json"
    file.write_bytes(json.dumps(a_manifest({})).encode() if manifest is None else manifest)
    form = tmp_path / "message.json"
    form.write_bytes(message)
    exit_code, _, errors = run("route", "explain", "--manifest", str(file), "--message", str(form))
    assert exit_code == code
    assert errors.startswith("edgehub: ")


def test_explain_without_a_hub_asks_the_manifest_of_the_settings(run, tmp_path):
    """Else the built-in one; which it was goes to standard error."""
    code, output, errors = run("route", "explain", "--json")
    document = json.loads(output)
    assert (code, errors) == (0, "")
    assert (document["of"], document["manifest"]) == ("settings", "built-in manifest")
    assert [verdict["route"] for verdict in document["routes"]] == ["upstream"]
    (tmp_path / "m.json").write_text(json.dumps(a_manifest({"mine": "FROM /* INTO $upstream"})))
    (tmp_path / "edgehub.toml").write_text('manifest = "m.json"\n')
    code, output, errors = run("route", "explain")
    assert code == 0
    assert "mine" in output
    assert errors == "no hub runs; by: m.json\n"


def test_one_is_not_many(run, tmp_path):
    """Counts read as a person would say them."""
    file = tmp_path / "m.json"
    file.write_text(json.dumps(a_manifest({"a": "FROM /* INTO $upstream"})))
    _, output, _ = run("route", "check", "--manifest", str(file))
    assert output == f"{file}: 1 route, no faults\n"

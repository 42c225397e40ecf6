"""`edgehub config` on files alone: validate, show, schema, example."""

from __future__ import annotations

import json
import os
import tomllib

import pytest

from edgehub.cli.main import main
from edgehub.settings import Settings
from edgehub.settings.values import Section


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


def test_the_defaults_are_without_fault(run):
    """C-07: no file, no faults, no warnings."""
    code, output, errors = run("config", "validate")
    assert (code, errors) == (0, "")
    assert "no faults; 1 route from built-in manifest" in output


def test_faults_of_settings_are_all_named(run, tmp_path):
    """C-08, L-05: path, reason and near miss of each, with the exit code of a wrong file."""
    file = tmp_path / "other.toml"
    file.write_text(
        "[mqtt]\nprot = 1\n[endpoints.lab]\ntype = 'file'\npath = 'x'\ntimeToLiveSecs = 5\n",
        "utf-8",
    )
    code, output, errors = run("config", "validate", str(file))
    assert (code, output) == (78, "")
    assert "mqtt.prot: unknown key (did you mean 'port'?)" in errors
    assert "endpoints.lab.timeToLiveSecs: unknown key" in errors
    code, output, _ = run("config", "validate", str(file), "--json")
    document = json.loads(output)
    assert (code, document["ok"], len(document["faults"])) == (78, False, 2)


def test_faults_of_files_that_settings_name_are_found(run, tmp_path):
    """What `edgehub run` would refuse is refused here, with route, line and column."""
    (tmp_path / "m.json").write_text(
        json.dumps(
            {
                "schemaVersion": "1.1",
                "routes": {"r": "FROM /messages/* WHERE x > INTO $upstream"},
                "storeAndForwardConfiguration": {"timeToLiveSecs": 1},
            }
        ),
        "utf-8",
    )
    (tmp_path / "edgehub.toml").write_text(
        'manifest = "m.json"\n[upstream]\ntype = "mqtt"\nhost = "h"\npassword_file = "no"\n',
        "utf-8",
    )
    code, output, _ = run("config", "validate", "--json")
    faults = json.loads(output)["faults"]
    assert code == 78
    assert {fault["route"] for fault in faults} == {"r", None}
    assert {fault["key"] for fault in faults} >= {"upstream.password_file"}


def test_faults_of_settings_hide_no_faults_of_files(run, tmp_path):
    """One run finds them all, and nothing that follows from them."""
    (tmp_path / "m.json").write_text(
        json.dumps(
            {
                "schemaVersion": "1.1",
                "routes": {
                    "r": {"route": "FROM /messages/* INTO $upstream", "priority": 10},
                    "lab": 'FROM /messages/* INTO Endpoint("lab")',
                    "far": 'FROM /messages/* INTO Endpoint("far")',
                },
                "storeAndForwardConfiguration": {"timeToLiveSecs": 1},
            }
        ),
        "utf-8",
    )
    (tmp_path / "ids").write_text("nonsense\n", "utf-8")
    (tmp_path / "edgehub.toml").write_text(
        """
        manifest = "m.json"
        drain_timeout = 5
        [mqtt]
        port = 99999
        identities_file = "ids"
        local_topics = ["a/#/b"]
        [upstream]
        type = "mqtt"
        hots = "a"
        [endpoints.lab]
        type = "http"
        [endpoints.far]
        type = "file"
        path = "x"
        keep_fils = 1
        [endpoints.Lob]
        type = "file"
        path = "x"
        [tenants."acme/press"]
        quota = "many"
        """,
        "utf-8",
    )
    code, _, errors = run("config", "validate")
    assert code == 78
    places = [line.removeprefix("edgehub: ").split(": ")[1] for line in errors.splitlines()]
    assert sorted(places) == sorted(
        [
            "drain_timeout",
            "mqtt.port",
            "mqtt.local_topics.0",
            "upstream.hots",
            "upstream.host",
            "endpoints.lab.url",
            "endpoints.far.keep_fils",
            "endpoints.Lob",
            "tenants.acme/press.quota",
            "routes.r.priority",
            "not JSON",
        ]
    )


def test_a_fault_of_the_environment_is_reported_alone(run, tmp_path, monkeypatch):
    """What a variable says cannot be taken out of it; nothing is made up beside it."""
    (tmp_path / "edgehub.toml").write_text('manifest = "absent.json"\n', "utf-8")
    monkeypatch.setenv("EDGEHUB_MQTT__PORT", "many")
    code, _, errors = run("config", "validate")
    assert (code, len(errors.splitlines())) == (78, 1)
    assert "EDGEHUB_MQTT__PORT: must be a whole number" in errors


def test_show_gives_values_and_origins(run, tmp_path, monkeypatch):
    """C-07, L-06: all values, where each comes from, and the store path that follows."""
    (tmp_path / "edgehub.toml").write_text("[mqtt]\nport = 1884\n", "utf-8")
    monkeypatch.setenv("EDGEHUB_LOG__LEVEL", "debug")
    code, output, errors = run("config", "show", "--json")
    document = json.loads(output)
    assert (code, errors, document["running"]) == (0, "", False)
    assert document["settings"]["mqtt.port"] == {
        "value": 1884,
        "origin": "file",
        "place": "edgehub.toml",
    }
    assert document["settings"]["log.level"]["place"] == "EDGEHUB_LOG__LEVEL"
    assert document["derived"]["database"] == "edgehub-data/queue.db"
    assert document["derived"]["global_ttl_s"] == 7200
    code, output, _ = run("config", "show")
    assert code == 0
    assert "environment EDGEHUB_LOG__LEVEL" in output


def test_show_says_that_the_name_is_made_at_the_first_start(run, tmp_path):
    """No default is made up for it; afterwards the one that was made is shown."""
    (line,) = [line for line in run("config", "show")[1].splitlines() if "hub_id" in line]
    assert line.split(maxsplit=2) == ["hub_id", "-", "made at the first start"]
    (tmp_path / "edgehub-data").mkdir()
    (tmp_path / "edgehub-data" / "hub_id").write_text("gate-12ab\n", "ascii")
    (line,) = [line for line in run("config", "show")[1].splitlines() if "hub_id" in line]
    assert line.split(maxsplit=2)[:2] == ["hub_id", "gate-12ab"]
    assert json.loads(run("config", "show", "--json")[1])["derived"]["hub_id"] == "gate-12ab"
    (tmp_path / "edgehub.toml").write_text('hub_id = "own"\n', "utf-8")
    (line,) = [line for line in run("config", "show")[1].splitlines() if "hub_id" in line]
    assert line.split() == ["hub_id", "own", "file", "edgehub.toml"]


def test_a_wrong_certificate_is_found_before_the_start(run, tmp_path):
    """Of every listener that has one, not of the first alone."""
    for name in ("c.pem", "k.pem"):
        (tmp_path / name).write_text("junk", "utf-8")
    section = 'port = 0\ncertificate_file = "c.pem"\nkey_file = "k.pem"\n'
    text = "".join(f"[{name}]\n{section}" for name in ("mqtt", "http", "web"))
    (tmp_path / "edgehub.toml").write_text(text, "utf-8")
    code, _, errors = run("config", "validate")
    assert code == 78
    for name in ("mqtt", "http", "web"):
        assert f"{name}.certificate_file: c.pem holds no certificate in PEM" in errors


def test_show_works_with_a_faulty_manifest(run, tmp_path):
    """The settings are shown, the fault goes to stderr."""
    (tmp_path / "edgehub.toml").write_text('manifest = "absent.json"\n', "utf-8")
    code, output, errors = run("config", "show", "--json")
    assert code == 0
    assert "absent.json" in errors
    assert json.loads(output)["derived"]["routes"] is None


def test_a_bare_word_in_a_route_is_warned_of(run, tmp_path):
    """`kind = alarm` is no fault, but it never takes an alarm."""
    manifest = {
        "schemaVersion": "1.1",
        "routes": {"alarm": "FROM /messages/* WHERE kind = alarm INTO $upstream"},
        "storeAndForwardConfiguration": {"timeToLiveSecs": 7200},
    }
    (tmp_path / "m.json").write_text(json.dumps(manifest), "utf-8")
    file = tmp_path / "hub.toml"
    file.write_text(f"manifest = '{tmp_path / 'm.json'}'\n", "utf-8")
    code, output, errors = run("config", "validate", str(file))
    assert (code, "no faults" in output) == (0, True)
    assert (
        "warning: routes.alarm: column 31 of its text: `alarm` is the name of a property" in errors
    )
    warnings = json.loads(run("config", "validate", str(file), "--json")[1])["warnings"]
    assert any("for a text write 'alarm'" in warning for warning in warnings)


def test_schema_and_example_are_what_they_say(run):
    """One is JSON, the other TOML; neither needs a file."""
    assert json.loads(run("config", "schema")[1])["$schema"].endswith("2020-12/schema")
    assert tomllib.loads(run("config", "example")[1]) == {
        name: {}
        for name, field in Settings.model_fields.items()
        if isinstance(field.get_default(call_default_factory=True), Section)
    }


def test_commands_that_ask_the_daemon_say_that_none_is_there(run, tmp_path):
    """Exit code 4, as with every command that needs one."""
    (tmp_path / "m.json").write_text("{}", "utf-8")
    for arguments in (
        ("config", "reload"),
        ("config", "show", "--running"),
        ("manifest", "show"),
        ("manifest", "diff", "m.json"),
    ):
        code, _, errors = run(*arguments)
        assert code == 4, arguments
        assert "is it running" in errors


def test_the_folder_that_data_dir_counts_from_is_named_where_it_is_another(
    run, tmp_path, monkeypatch
):
    """With a file of another folder that does not set it; not where the advice would not help."""
    hint = "data_dir is not set and so counts from the working folder: run the command in the hub's"
    file = tmp_path / "edgehub.toml"
    file.write_text("", "utf-8")
    assert hint not in run("--config", "edgehub.toml", "status")[2]
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    code, _, errors = run("--config", "../edgehub.toml", "status")
    assert (code, hint in errors) == (4, True)
    assert "no edgehub.toml" not in errors
    file.write_text("data_dir = 'data'\n", "utf-8")
    assert hint not in run("--config", "../edgehub.toml", "status")[2]


@pytest.mark.parametrize("text", ["[mqtt\n", "[mqtt]\nprot = 1\n"])
def test_a_reload_of_wrong_settings_says_that_nothing_has_changed(run, tmp_path, text):
    """Also where the fault is found before the hub is asked."""
    (tmp_path / "edgehub.toml").write_text(text, "utf-8")
    code, output, errors = run("config", "reload")
    assert (code, output) == (78, "")
    assert errors.startswith("edgehub: edgehub.toml: ")
    assert errors.endswith("edgehub: refused; what was in force stays in force\n")


def test_without_a_hub_a_fault_of_the_settings_is_the_error(run, tmp_path):
    """Exit code 78 with all faults and no warning, whether a command asks a hub or not."""
    (tmp_path / "edgehub.toml").write_text("[upstream]\ntypo = 1\n[mqtt]\nprot = 1\n", "utf-8")
    for arguments in (
        ("status",),
        ("queue", "list"),
        ("route", "explain"),
        ("config", "show", "--running"),
        ("config", "show"),
        ("config", "reload"),
        ("config", "validate"),
    ):
        code, output, errors = run(*arguments)
        assert (code, output) == (78, ""), arguments
        assert "edgehub: edgehub.toml: mqtt.prot: unknown key" in errors
        assert "warning" not in errors


@pytest.mark.parametrize(
    ("windows", "ttl_s", "own_ttl", "warned"),
    [
        ('["0 */6 * * *"]', 7200, {}, True),
        ('["0 */6 * * *"]', 21_600, {}, False),
        ('["0 */6 * * *"]', -1, {}, False),
        ('["0 */6 * * *"]', 7200, {"timeToLiveSecs": 86_400}, False),
        ("[]", 7200, {}, False),
    ],
)
def test_rows_that_can_expire_between_windows_are_warned_of(
    run, tmp_path, windows, ttl_s, own_ttl, warned
):
    """A warning, no fault: the hub would start."""
    manifest = {
        "schemaVersion": "1.1",
        "routes": {"all": {"route": "FROM /messages/* INTO $upstream", **own_ttl}},
        "storeAndForwardConfiguration": {"timeToLiveSecs": ttl_s},
    }
    (tmp_path / "m.json").write_text(json.dumps(manifest), "utf-8")
    file = tmp_path / "windows.toml"
    file.write_text(
        f"manifest = '{tmp_path / 'm.json'}'\n[upstream]\ntype = 'file'\npath = 'x'\n"
        f"open_at = {windows}\n",
        "utf-8",
    )
    code, output, errors = run("config", "validate", str(file))
    assert (code, "no faults" in output) == (0, True)
    assert ("warning: upstream.open_at: closed for up to 21000 s" in errors) is warned
    code, output, _ = run("config", "validate", str(file), "--json")
    assert (code, len(json.loads(output)["warnings"])) == (0, int(warned))

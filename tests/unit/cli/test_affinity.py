"""`edgehub affinity simulate`: scenarios in, outcomes out, and clear words for wrong ones."""

import io
import json
import os
import sys

import pytest

from edgehub.cli.main import main

SCENARIO = {
    "id": "roams",
    "title": "g2 hears it first",
    "gateways": ["g1", "g2"],
    "initial": {
        "coordinator": {"f_cnt": 1, "gateway": "g1"},
        "gateways": {
            "g1": {"ownership": "owner", "connection": "open", "f_cnt_up": 1},
            "g2": {"ownership": "loser"},
        },
    },
    "events": [
        {"t_ms": 0, "type": "uplink", "gateway": "g2", "f_cnt": 2},
        {"t_ms": 120, "type": "uplink", "gateway": "g1", "f_cnt": 2},
    ],
}


@pytest.fixture
def run(capsys, monkeypatch):
    """Run the command on a standard input; gives exit code, output and error output."""
    for variable in [name for name in os.environ if name.startswith("EDGEHUB_")]:
        monkeypatch.delenv(variable)

    def run_command(document: object, *arguments: str) -> tuple[int, str, str]:
        text = document if isinstance(document, str) else json.dumps(document)
        stdin = io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8")
        monkeypatch.setattr(sys, "stdin", stdin)
        with pytest.raises(SystemExit) as ended:
            main(["affinity", "simulate", "-", *arguments])
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return run_command


def test_a_scenario_gives_one_line_of_json(run):
    """The line holds frames, connections, notices and the final state; nothing else is printed."""
    code, out, err = run(SCENARIO, "--json")
    outcome = json.loads(out)
    assert (code, err) == (0, "")
    assert outcome["id"] == "roams"
    assert [frame["elected_at_ms"] for frame in outcome["uplinks"]] == [400, 120]
    assert outcome["connection_log"] == []
    final = {"ownership": "loser", "connection": "closed", "cached": True}
    assert outcome["final"]["gateways"]["g2"] == final


@pytest.mark.parametrize(
    "document",
    [
        [SCENARIO, SCENARIO],
        {"format": "edgehub-affinity/1", "scenarios": [SCENARIO, SCENARIO]},
        f"{json.dumps(SCENARIO)}\n\n{json.dumps(SCENARIO)}\n",
    ],
    ids=["list", "document", "lines"],
)
def test_several_scenarios_give_a_line_each(run, document):
    """A list, a document with `scenarios`, and JSON Lines are all taken."""
    code, out, _ = run(document, "--json")
    assert code == 0
    assert [json.loads(line)["id"] for line in out.splitlines()] == ["roams", "roams"]


def test_another_delay_can_be_tried(run):
    """Without a delay, g2 takes the device and its owner is told; each delay has its outcome."""
    code, out, _ = run(SCENARIO, "--json", "--delay-ms", "0", "--delay-ms", "150")
    none, some = (json.loads(line) for line in out.splitlines())
    assert code == 0
    assert (none["delay_ms"], some["delay_ms"]) == (0, 150)
    assert none["notifications"] == [
        {"t_ms": 0, "to": "g1", "delivered": True, "delivered_at_ms": 0}
    ]
    assert some["notifications"] == []


def test_people_read_a_course_of_events(run):
    """Without --json each event stands with its time, and the state at the end."""
    code, out, _ = run(SCENARIO, "--delay-ms", "0")
    assert code == 0
    assert "roams: g2 hears it first (delay 0 ms)" in out
    assert "0 ms  g2: frame 2 processed, elected at 0 ms" in out
    assert "120 ms  g1: frame 2 dropped (duplicate), refused at 120 ms" in out
    assert "0 ms  notice to g1" in out
    assert "at the end   g2: owner, connection open" in out


def test_one_wrong_scenario_does_not_stop_the_others(run):
    """It is told with its place, and the exit code is 1."""
    wrong = {"id": "wrong", "gateways": ["g1"], "events": [{"t_ms": 0, "type": "uplink"}]}
    code, out, err = run([wrong, SCENARIO], "--json")
    first, second = (json.loads(line) for line in out.splitlines())
    assert code == 1
    assert first == {"id": "wrong", "error": "`events[0]` needs `f_cnt`"}
    assert second["id"] == "roams"
    assert "wrong: `events[0]` needs `f_cnt`" in err


def test_members_that_are_not_known_are_named(run):
    """They change nothing and are told on standard error."""
    code, _, err = run({**SCENARIO, "weather": "rain"}, "--json")
    assert code == 0
    assert "ignored: the scenario: weather" in err


@pytest.mark.parametrize("text", ["nope", "", "3", "{}", '{"scenarios": 3}', "[]", "[" * 100_000])
def test_what_is_no_scenario_is_refused_in_one_line(run, text):
    """The error has no traceback, and the exit code is 1."""
    code, out, err = run(text, "--json")
    assert code == 1
    assert err.startswith("edgehub: ")
    assert len(err.splitlines()) == 1
    assert "Traceback" not in out + err

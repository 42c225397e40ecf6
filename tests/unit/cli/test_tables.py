"""Tables: whole on a pipe, nothing taken for markup."""

import json

import pytest

from edgehub.cli.manifest import _print_difference
from edgehub.cli.output import print_json_line, print_line, printable
from edgehub.cli.queue import body, properties, sender
from edgehub.cli.status import _endpoint_text
from edgehub.cli.tables import print_table
from edgehub.cli.why import _print
from edgehub.telemetry.plural import counted


def test_a_pipe_gets_whole_cells_however_narrow_it_claims_to_be(capsys, monkeypatch):
    """Nothing is cut or folded where no terminal reads, so that grep finds every name."""
    monkeypatch.setenv("COLUMNS", "20")
    name = "modules/" + "m" * 128 + "/inputs/[red]i[/red]:smile:_Pri0"
    print_table(("queue", "waiting"), [(name, "1234567")], right=("waiting",))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[1].split() == [name, "1234567"]


def test_a_terminal_folds_names_and_keeps_figures(capsys, monkeypatch):
    """On a narrow terminal a name goes over several lines; all its characters are there."""
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("FORCE_COLOR", "1")
    print_table(("queue", "waiting"), [("a" * 40, "1234567")], right=("waiting",))
    out = capsys.readouterr().out
    assert out.count("a") >= 40
    assert "1234567" in out


def test_a_table_without_rows_is_a_sentence(capsys):
    """Headings over nothing look as if something had failed."""
    print_table(("queue", "waiting"), [], empty="no queues yet")
    assert capsys.readouterr().out == "no queues yet\n"


def test_one_of_a_kind_is_no_plural(capsys):
    """What people read counts as they do."""
    copy = {
        "queue": "upstream",
        "state": "waiting",
        "offset": 1,
        "device": "d",
        "module": None,
        "orphaned": False,
        "suspected": None,
        "narrow_rows": 1,
        "endpoint_state": None,
        "routes": ["r"],
        "ttl_s": None,
        "ttl_from": "route",
        "age_s": 1.0,
        "waited": None,
        "attempts": 1,
        "overtaken_by": {"rows": 1, "complete": True, "queues": {}},
        "before": {"rows": 1, "bytes": 1, "better": [{"rows": 1, "queue": "q", "bytes": 2}]},
        "leaves": None,
    }
    _print(
        {
            "message": "m",
            "asked": "m",
            "state": "waiting",
            "complete": True,
            "copies": [copy],
            "copies_total": 2,
            "dead_letters": [],
            "journal": None,
        }
    )
    _print_difference(
        {
            "in_force": {"file": "a", "routes": 1},
            "new": {"file": "b", "routes": 2},
            "same": False,
            "routes": {"added": [], "removed": [], "changed": []},
            "class_changes": [],
            "snapshots": [{"queue": "q", "rows": 1, "routes": ["r"]}],
            "queues": [],
            "disk": {
                "measured_s": 60.0,
                "fits": None,
                "unmeasured_routes": [],
                "exceeds": [{"cap": "hub rows", "queue": None, "need": 3, "limit": 2}],
            },
            "warnings": [],
        }
    )
    out = capsys.readouterr().out
    for text in (
        "and 1 more message with that id",
        "refused 1 time\n",
        "overtaken by 1 message\n",
        "before it in its queue: 1 message (1 byte)",
        "goes first: 1 message (2 bytes) of q",
        "in force: a, 1 route\n",
        "new:      b, 2 routes\n",
        "q: 1 row keeps the priority",
        "space: cannot be judged yet, no message has come by these routes",
        "DOES NOT FIT: hub rows: needs 3 of 2\n",
    ):
        assert text in out


def test_one_is_not_many():
    """A number and what it counts."""
    assert [counted(number, "segment") for number in (0, 1, 2)] == [
        "0 segments",
        "1 segment",
        "2 segments",
    ]


@pytest.mark.parametrize(
    ("state", "seconds", "text"),
    [
        ("down", 7.4, "up: down, refused, next try in 7 s"),
        ("closed", 3599, "up: closed, refused, next window in 60 min"),
        ("closed", 21_600, "up: closed, refused, next window in 6.0 h"),
        ("closed", 39_523_539, "up: closed, refused, next window in 457.4 days"),
    ],
)
def test_a_wait_for_the_link_is_shown_in_words_that_fit(state, seconds, text):
    """A closed endpoint waits for its window, which may be far away."""
    endpoint = {
        "id": "up",
        "state": state,
        "reason": "refused",
        "mqtt_version": None,
        "backoff_remaining_s": seconds,
        "rate_bytes_s_max": None,
        "drain_eta_seconds": None,
    }
    assert _endpoint_text(endpoint) == text


def test_the_version_of_mqtt_in_use_is_shown():
    """It depends on what the peer takes."""
    endpoint = {
        "id": "up",
        "state": "up",
        "reason": "",
        "mqtt_version": "3.1.1",
        "backoff_remaining_s": None,
        "rate_bytes_s_max": None,
        "drain_eta_seconds": None,
    }
    assert _endpoint_text(endpoint) == "up: up, MQTT 3.1.1"


HOSTILE = "a\x1b[31mred\x07\u202etxt\r\x9b2J"


def test_nothing_that_a_device_wrote_steers_the_terminal(capsys):
    """Names, values and reasons come from devices and peers; control characters are escaped."""
    assert printable("snö ✓ 温度") == "snö ✓ 温度"
    assert printable(HOSTILE) == r"a\x1b[31mred\x07\u202etxt\r\x9b2J"
    print_table(("name",), [(HOSTILE + "\nsecond line",)])
    row = {"device": HOSTILE, "module": None, "properties": {"p": HOSTILE}, "body": HOSTILE}
    for text in (sender(row), properties(row), body(row)):
        print_line(text)
    out = capsys.readouterr().out
    assert [each for each in out if not each.isprintable() and each != "\n"] == []
    assert out.splitlines()[1].rstrip().endswith(r"2J\nsecond line")
    assert len(out.splitlines()) == 5


def test_a_line_of_json_is_the_same_document_and_steers_no_terminal(capsys):
    """Letters stay as they are; what is no letter has an escape of JSON."""
    print_json_line({HOSTILE: ["snö 温度", HOSTILE + "\n\x7f\U000e0001"]})
    line = capsys.readouterr().out.removesuffix("\n")
    assert line.isprintable()
    assert "snö 温度" in line
    assert json.loads(line) == {HOSTILE: ["snö 温度", HOSTILE + "\n\x7f\U000e0001"]}

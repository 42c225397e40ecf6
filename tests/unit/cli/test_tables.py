"""Tables: whole on a pipe, nothing taken for markup."""

from edgehub.cli.tables import new_table, print_table


def test_a_pipe_gets_whole_cells_however_narrow_it_claims_to_be(capsys, monkeypatch):
    """Nothing is cut or folded where no terminal reads, so that grep finds every name."""
    monkeypatch.setenv("COLUMNS", "20")
    name = "modules/" + "m" * 128 + "/inputs/[red]i[/red]:smile:_Pri0"
    table = new_table("queue", "waiting", right=("waiting",))
    table.add_row(name, "1234567")
    print_table(table)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[1].split() == [name, "1234567"]


def test_a_terminal_folds_names_and_keeps_figures(capsys, monkeypatch):
    """On a narrow terminal a name goes over several lines; all its characters are there."""
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("FORCE_COLOR", "1")
    table = new_table("queue", "waiting", right=("waiting",))
    table.add_row("a" * 40, "1234567")
    print_table(table)
    out = capsys.readouterr().out
    assert out.count("a") >= 40
    assert "1234567" in out

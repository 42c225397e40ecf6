"""The check of words in `make check` finds what it is there for."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).parents[2] / ".ci" / "check-words"
WORDS = dict(runpy.run_path(str(CHECK))["GONE"])


def check(folder: Path, file: str, text: str) -> tuple[int, str]:
    """Check a folder with one file; returns the exit code and what was said."""
    page = folder / file
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text, "utf-8")
    command = [sys.executable, str(CHECK), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


@pytest.mark.parametrize("file", ["README.md", str(Path("docs", "a.md")), "tests/a.py"])
def test_a_word_is_named_with_its_place_and_another_one(tmp_path: Path, file: str) -> None:
    """In prose and in names, one or many."""
    lines = [f"'{word}'; {word.title()}s; its_{word}_at\n" for word in WORDS]
    expected = [
        f"{file}:{number}: {found!r}: write {instead}"
        for number, (word, instead) in enumerate(WORDS.items(), 1)
        for found in (word, f"{word.title()}s", word)
    ]
    code, told = check(tmp_path, file, "".join(lines))
    assert (code, told.splitlines()) == (1, expected)


def test_a_word_may_be_one_of_tests_and_not_of_the_product(tmp_path: Path) -> None:
    """More is asked of the package than of prose about it."""
    assert check(tmp_path, "tests/a.py", "# It is told.\n") == (0, "")
    code, told = check(tmp_path, "edgehub/a.py", "# It is told.\n")
    assert (code, told) == (1, "edgehub/a.py:1: 'told': write reported, notified\n")


@pytest.mark.parametrize("opening", ["Say", "See", "Have", "Take note"])
def test_a_docstring_begins_with_a_usual_verb(tmp_path: Path, opening: str) -> None:
    """Those of modules, classes and functions."""
    text = f'\nclass A:\n    """{opening} what it is."""\n'
    code, told = check(tmp_path, "edgehub/a.py", text)
    assert code == 1
    assert told.startswith(f"edgehub/a.py:3: docstring begins with {opening}: Return, Check, ")


def test_other_words_pass(tmp_path: Path) -> None:
    """Decision records may tell of the past, and tests may begin as they like."""
    word = next(iter(WORDS))
    assert check(tmp_path, str(Path("docs", "adr", "a.md")), f"A {word}.\n") == (0, "")
    assert check(tmp_path, "tests/a.py", '"""See what it is."""\n') == (0, "")
    assert check(tmp_path, "edgehub/a.py", f'"""Return {word}ried things."""\n') == (0, "")

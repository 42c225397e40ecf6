"""Consent to what cannot be undone: a question on a terminal, `--yes` elsewhere.

Owns the options that such commands share. Invariant: nothing is destroyed unasked, and nothing
waits for an answer where nobody sits.
"""

from __future__ import annotations

import sys

import click

dry_run_option = click.option("--dry-run", is_flag=True, help="Say what would be done; do nothing.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask; needed off a terminal.")


def ask(question: str, *, yes: bool, look_first: str = "--dry-run") -> None:
    """Go on if the person agrees.

    Args:
        question: What is to be agreed to.
        yes: The person has agreed beforehand.
        look_first: What shows what would be done, without doing it.

    Raises:
        click.UsageError: Nobody can be asked, and `--yes` was not given.
        click.Abort: The person does not agree.
    """
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        msg = f"{question} Nobody can be asked here: give --yes, or {look_first} to look first"
        raise click.UsageError(msg)
    click.confirm(question, abort=True, err=True)

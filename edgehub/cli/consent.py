"""Consent to what cannot be undone: a question on a terminal, `--yes` elsewhere.

Owns the options that such commands share. Invariant: nothing is destroyed without
consent, and nothing waits for an answer off a terminal.
"""

from __future__ import annotations

import sys

import click

dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Print what would be done, and do nothing."
)
yes_option = click.option(
    "--yes", is_flag=True, help="Do not ask for confirmation; required without a terminal."
)


def ask(question: str, *, yes: bool, look_first: str = "--dry-run") -> None:
    """Ask for consent.

    Args:
        question: What is to be agreed to.
        yes: Consent was given on the command line.
        look_first: What shows what would be done, without doing it.

    Raises:
        click.UsageError: There is no terminal, and `--yes` was not given.
        click.Abort: Consent was refused.
    """
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError(
            f"{question} There is no terminal to ask on: give --yes, or {look_first} to look first"
        )
    click.confirm(question, abort=True, err=True)

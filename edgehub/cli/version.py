"""`edgehub version`."""

from __future__ import annotations

import click

import edgehub


@click.command()
def version() -> None:
    """Print the version."""
    click.echo(f"edgehub {edgehub.__version__}")

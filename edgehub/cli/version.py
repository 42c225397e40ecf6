"""`edgehub version`."""

from __future__ import annotations

import click

import edgehub
from edgehub.cli.output import print_line


@click.command()
def version() -> None:
    """Print the version."""
    print_line(f"edgehub {edgehub.__version__}")

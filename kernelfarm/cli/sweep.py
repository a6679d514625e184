"""`kernelfarm sweep`: frees what nobody will find any more."""

from __future__ import annotations

import typer

from kernelfarm.cli._cache import Endpoint, Token, connected

_EPILOG = """
[bold]Examples[/bold]

  kernelfarm sweep --endpoint farm.example:50051
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(epilog=_EPILOG)(sweep)


def sweep(endpoint: Endpoint = None, token: Token = "") -> None:
    """Frees stale entries, entries with holes, and blobs that no entry names."""
    with connected(endpoint, token) as farm:
        told = farm.sweep()
    typer.echo(
        f"looked at {told.entries} entries; freed {told.dead_variants} dead variants,"
        f" {told.holes} with holes, {told.orphan_blobs} blobs"
    )

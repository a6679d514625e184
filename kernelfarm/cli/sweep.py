"""`kernelfarm sweep`: deletes stale entries and unreferenced blobs of a farm's cache."""

from __future__ import annotations

import typer

from kernelfarm.cli._cache import Endpoint, Token, connect

_EPILOG = """
[bold]Examples[/bold]

  kernelfarm sweep --endpoint farm.example:50051
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(epilog=_EPILOG)(sweep)


def sweep(endpoint: Endpoint = None, token: Token = "") -> None:
    """Deletes stale entries, entries with missing blobs, and blobs that no entry names."""
    with connect(endpoint, token) as farm:
        response = farm.sweep()
    typer.echo(
        f"checked {response.entries} entries; deleted {response.dead_variants} stale variants,"
        f" {response.incomplete_variants} with missing blobs, {response.orphan_blobs} blobs"
    )

"""`kernelfarm usage`: what the fleet's cache holds, and its counters."""

from __future__ import annotations

from typing import Annotated

import typer

from kernelfarm.cli._cache import Endpoint, Token, connected

_EPILOG = """
[bold]Examples[/bold]

  kernelfarm usage --endpoint farm.example:50051

  kernelfarm usage --tenant acme
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(epilog=_EPILOG)(usage)


def usage(
    endpoint: Endpoint = None,
    tenant: Annotated[
        str, typer.Option(help="Whose: a tenant's, or `shared`; others' are for administrators.")
    ] = "",
    token: Token = "",
) -> None:
    """Prints what the farm's cache holds, as the last sweep counted it, and its counters."""
    with connected(endpoint, token) as farm:
        told = farm.usage(tenant)
    if told.tenant:
        typer.echo(f"tenant {told.tenant}, now:")
        for holds, limit, what in (
            (told.held_bytes, told.max_bytes, "bytes"),
            (told.held_entries, told.max_entries, "entries"),
            (told.compiles_in_flight, told.max_compiles, "compilations in flight"),
        ):
            typer.echo(f"  {holds} of {limit or 'unlimited'} {what}")
    when = told.counted_time.ToJsonString() if told.HasField("counted_time") else "never"
    typer.echo(f"counted {when}: {told.blobs} blobs, {told.blob_bytes} bytes")
    for space, name in zip(told.spaces, ("programs", "kernels", "traces"), strict=True):
        held = f"{space.entries} entries, {space.variants} variants, {space.bytes} bytes"
        typer.echo(f"{name}: {held}")
        for counter, value in sorted(space.counters.items()):
            typer.echo(f"  {counter} {value}")

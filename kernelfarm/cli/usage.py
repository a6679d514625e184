"""`kernelfarm usage`: prints the usage and the counters of a farm's cache."""

from __future__ import annotations

from typing import Annotated

import typer

from kernelfarm.cli._cache import Endpoint, Token, connect

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
        str,
        typer.Option(
            help="A tenant's name, or `shared`; other tenants require the role administrator."
        ),
    ] = "",
    token: Token = "",
) -> None:
    """Prints the usage of the farm's cache, as counted by the last sweep, and its counters."""
    with connect(endpoint, token) as farm:
        response = farm.usage(tenant)
    if response.tenant:
        typer.echo(f"tenant {response.tenant}, now:")
        for holds, limit, what in (
            (response.held_bytes, response.max_bytes, "bytes"),
            (response.held_entries, response.max_entries, "entries"),
            (response.compiles_in_flight, response.max_compiles, "compilations in flight"),
        ):
            typer.echo(f"  {holds} of {limit or 'unlimited'} {what}")
    when = response.counted_time.ToJsonString() if response.HasField("counted_time") else "never"
    typer.echo(f"counted {when}: {response.blobs} blobs, {response.blob_bytes} bytes")
    if not response.tenant:
        typer.echo(f"invalidations {response.invalidations}")
    for space, name in zip(response.spaces, ("programs", "kernels", "traces"), strict=True):
        held = f"{space.entries} entries, {space.variants} variants, {space.bytes} bytes"
        typer.echo(f"{name}: {held}")
        for counter, value in sorted(space.counters.items()):
            typer.echo(f"  {counter} {value}")

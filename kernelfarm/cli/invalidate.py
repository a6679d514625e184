"""`kernelfarm invalidate`: makes all entries with a tag stale."""

from __future__ import annotations

from typing import Annotated

import typer

from kernelfarm.cli._cache import Endpoint, Token, connect

_EPILOG = """
[bold]Examples[/bold]

  kernelfarm invalidate op:aten.gelu.default --dry-run

  kernelfarm invalidate toolchain:cuda@1f2e3d4c model:llama@3
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(epilog=_EPILOG)(invalidate)


def invalidate(
    tags: Annotated[list[str], typer.Argument(help="Tags as KIND:NAME; see docs/adr/0010.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count the entries without a change.")
    ] = False,
    reason: Annotated[str, typer.Option(help="The reason, for the farm's log.")] = "",
    endpoint: Endpoint = None,
    token: Token = "",
) -> None:
    """Makes all programs, kernels and traces with one of the tags stale, in constant time."""
    with connect(endpoint, token) as farm:
        response = farm.invalidate(tags, dry_run=dry_run, reason=reason)
    if dry_run:
        hit = f"{response.programs} programs, {response.kernels} kernels, {response.traces} traces"
        typer.echo(f"would be stale: {hit}")
    else:
        typer.echo(f"epoch {response.epoch} started; {response.gateways} gateways applied it")

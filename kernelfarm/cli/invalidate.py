"""`kernelfarm invalidate`: makes everything stale that depends on a tag."""

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
    tags: Annotated[list[str], typer.Argument(help="Tags, KIND:NAME; see docs/adr/0010.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count, change nothing.")] = False,
    reason: Annotated[str, typer.Option(help="Why; for the farm's log.")] = "",
    endpoint: Endpoint = None,
    token: Token = "",
) -> None:
    """Makes stale, in constant time, each program, kernel and trace that depends on a tag."""
    with connect(endpoint, token) as farm:
        response = farm.invalidate(tags, dry_run=dry_run, reason=reason)
    if dry_run:
        hit = f"{response.programs} programs, {response.kernels} kernels, {response.traces} traces"
        typer.echo(f"would be stale: {hit}")
    else:
        typer.echo(f"epoch {response.epoch} began; {response.gateways} gateways applied it")

"""`kernelfarm explain-miss`: why a program is not found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelfarm.cli._cache import Endpoint, connected
from kernelfarm.errors import CallerError

if TYPE_CHECKING:
    from kernelfarm.v1.cache_service_pb2 import ExplainMissResponse

_KEY_HEX_CHARS = 64
_EPILOG = """
[bold]Examples[/bold]

  kernelfarm explain-miss model.pt2 --target cuda:sm_90a

  kernelfarm explain-miss 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(name="explain-miss", epilog=_EPILOG)(explain_miss)


def explain_miss(
    source: Annotated[str, typer.Argument(help="A .pt2 file, or a program's key (64 hex).")],
    target: Annotated[str, typer.Option(help="Target of the .pt2 file.")] = "cpu:x86-64-v3",
    model: Annotated[
        str, typer.Option(help="The model's ID@REVISION, as the client names it.")
    ] = "",
    endpoint: Endpoint = None,
) -> None:
    """Tells what differs between a program that is not found and the nearest one that is there."""
    is_key = len(source) == _KEY_HEX_CHARS and set(source.lower()) <= set("0123456789abcdef")
    path = Path(source)
    if not is_key and not path.exists():
        raise CallerError(f"{source!r} is no file and no key of {_KEY_HEX_CHARS} hex digits")
    with connected(endpoint) as farm:
        if is_key:
            told = farm.explain_key(bytes.fromhex(source))
        else:
            from kernelfarm.client.export_reader import read_pt2  # noqa: PLC0415 (loads torch)

            told = farm.explain_graph(read_pt2(path).captured.graph, target, model=model)
    _print_explanation(told)


def _print_explanation(told: ExplainMissResponse) -> None:
    from kernelfarm.v1.cache_service_pb2 import MissReason  # noqa: PLC0415 (keeps --help quick)

    reason = MissReason.Name(told.reason).removeprefix("MISS_REASON_").lower()
    if reason == "none":
        typer.echo(f"program {told.key.hex()} is found")
        return
    typer.echo(f"program {told.key.hex()} is not found: {reason}")
    if told.nearest_key and told.nearest_key != told.key:
        typer.echo(f"nearest: {told.nearest_key.hex()}")
    for difference in told.differences:
        typer.echo(f"  {difference.part}: asked {difference.asked}; there {difference.nearest}")
    if not told.differences:
        typer.echo("  no entry is near it")

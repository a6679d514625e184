"""`kernelfarm self-test`: compiles a small graph at a farm, without torch."""

from __future__ import annotations

from typing import Annotated

import typer

_EPILOG = """
[bold]Examples[/bold]

  kernelfarm self-test --endpoint farm.example:50051

  kernelfarm self-test --vendor cpu --vendor cuda
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("self-test", epilog=_EPILOG)(self_test)


def self_test(
    endpoint: Annotated[
        str | None, typer.Option(help="The farm's HOST:PORT. Default: KERNELFARM_ENDPOINT.")
    ] = None,
    vendor: Annotated[
        list[str] | None,
        typer.Option(help="A vendor to compile for; repeatable. Default: all that have workers."),
    ] = None,
    timeout: Annotated[
        float, typer.Option(help="Seconds to wait for the farm for each vendor.", min=0.1)
    ] = 120.0,
) -> None:
    """Compiles a new small graph for each vendor, and checks signatures and binaries."""
    from kernelfarm.client.diagnostics.self_test import self_test as run  # noqa: PLC0415 (grpc)
    from kernelfarm.client.farm.client import FarmClient  # noqa: PLC0415
    from kernelfarm.client.settings import client_settings  # noqa: PLC0415

    stated = {"endpoint": endpoint} if endpoint else {}
    with FarmClient(client_settings(**stated, timeout_s=timeout)) as client:
        for result in run(client, vendor or ()):
            what = "stub, " if result.is_stub else ""
            typer.echo(
                f"{result.target}: {result.outcome}, {result.compiled} kernels compiled,"
                f" {what}{result.elapsed_s:.2f} s"
            )

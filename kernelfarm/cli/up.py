"""`kernelfarm up`: a whole farm on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from kernelfarm.errors import UnavailableError

_EPILOG = """
[bold]Examples[/bold]

  kernelfarm up

  kernelfarm up --listen 127.0.0.1:0 --vendors cpu --data-dir /tmp/farm

  KERNELFARM_CACHE_URL=redis://cache:6379/0 kernelfarm up --listen 0.0.0.0:50051
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(epilog=_EPILOG)(up)


def up(  # noqa: PLR0913, PLR0917 -- one parameter for each option
    listen: Annotated[
        str | None,
        typer.Option(help="HOST:PORT of the public service; port 0 takes any free one."),
    ] = None,
    vendors: Annotated[
        str, typer.Option(help="Vendors to run workers for, separated by commas. Default: all.")
    ] = "",
    workers: Annotated[
        int, typer.Option(min=0, help="Worker processes of the CPU queue; 0: one for each core.")
    ] = 0,
    frontends: Annotated[
        int, typer.Option(min=1, help="Processes of the public service, all on one port.")
    ] = 1,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where logs and the status file farm.json go.")
    ] = None,
    tenants: Annotated[
        Path | None,
        typer.Option(help="Who may call: a file made by `kernelfarm tenants`. Default: everybody."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Copy the children's logs to stderr, prefixed.")
    ] = False,
) -> None:
    """Starts a whole farm on this machine and serves until SIGTERM or Ctrl-C.

    Two Redis or Valkey servers, frontend, optimizer, code generation and its workers. Prints
    `READY <endpoint>` on stdout when every service serves; children that die are started again.
    Servers named by KERNELFARM_BROKER_URL and KERNELFARM_CACHE_URL are used instead of own ones.
    """
    try:
        from kernelfarm.supervisor.run import FarmOptions, run_farm  # noqa: PLC0415 -- grpc, redis
    except ModuleNotFoundError as error:
        raise UnavailableError(
            f"a farm needs {error.name}, which is not installed: pip install 'kernelfarm[farm]'"
        ) from error

    os.umask(0o077)  # logs, sockets and what children make are for this user alone
    run_farm(
        FarmOptions(
            listen=listen,
            vendors=tuple(v.strip() for v in vendors.split(",") if v.strip()),
            cpu_workers=workers,
            frontends=frontends,
            data_dir=data_dir,
            follow=follow,
            tenants_file=tenants,
        )
    )

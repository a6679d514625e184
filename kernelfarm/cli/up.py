"""`kernelfarm up`: runs a whole farm on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelfarm.errors import UnavailableError

if TYPE_CHECKING:
    from kernelfarm.supervisor.run import FarmOptions

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
        typer.Option(help="HOST:PORT of the public service; port 0 selects a free port."),
    ] = None,
    vendors: Annotated[
        str, typer.Option(help="Vendors to run workers for, separated by commas. Default: all.")
    ] = "",
    workers: Annotated[
        int, typer.Option(min=0, help="Worker processes of the CPU queue; 0 means one per core.")
    ] = 0,
    frontends: Annotated[
        int,
        typer.Option(
            min=0,
            help="Processes of the public service, all on one port; 0 means"
            " KERNELFARM_FRONTEND_PROCESSES, or one.",
        ),
    ] = 0,
    data_dir: Annotated[
        Path | None, typer.Option(help="The folder for logs and the status file farm.json.")
    ] = None,
    tenants: Annotated[
        Path | None,
        typer.Option(help="The tenants file (`kernelfarm tenants`). Default: anyone may call."),
    ] = None,
    metrics: Annotated[
        bool,
        typer.Option(
            "--metrics",
            help="Serve the metrics of each process on loopback; farm.json names the addresses.",
        ),
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Copy the services' logs to stderr, with a prefix.")
    ] = False,
) -> None:
    """Starts a whole farm on this machine and serves until SIGTERM or Ctrl-C.

    It starts two Redis or Valkey servers, frontends, the optimizer, the code generators' edge and
    the workers. It prints `READY <endpoint>` on stdout when every service serves, and restarts
    processes that die. If KERNELFARM_BROKER_URL and KERNELFARM_CACHE_URL are set, it uses these
    servers instead of its own.
    """
    make_options, run_farm = _supervisor()
    os.umask(0o077)  # logs, sockets and files of child processes are for this user only
    run_farm(
        make_options(
            listen=listen,
            vendors=tuple(v.strip() for v in vendors.split(",") if v.strip()),
            cpu_workers=workers,
            frontends=frontends,
            data_dir=data_dir,
            follow=follow,
            tenants_file=tenants,
            has_metrics=metrics,
        )
    )


def _supervisor() -> tuple[type[FarmOptions], Callable[[FarmOptions], None]]:
    """What runs a farm, which needs packages that a client does not.

    Raises:
        UnavailableError: a package is not installed.
    """
    try:
        from kernelfarm.supervisor.run import FarmOptions, run_farm  # noqa: PLC0415 -- grpc, redis
    except ModuleNotFoundError as error:
        raise UnavailableError(
            f"a farm needs {error.name}, which is not installed: pip install 'kernelfarm[farm]'"
        ) from error
    return FarmOptions, run_farm

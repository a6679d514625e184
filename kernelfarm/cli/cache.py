"""`kernelfarm cache`: the programs that clients keep on this machine's disk."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from kernelfarm.client.settings import ClientSettings

_EXIT_SPOILT = 1
_EPILOG = """
[bold]Examples[/bold]

  kernelfarm cache info

  kernelfarm cache verify

  KERNELFARM_DISK_CACHE_DIR=/var/cache/kernelfarm kernelfarm cache clear
"""


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    commands = typer.Typer(
        help="Looks after the programs that clients keep on this machine's disk.",
        epilog=_EPILOG,
        no_args_is_help=True,
    )
    for command in (info, verify, clear):
        commands.command()(command)
    app.add_typer(commands, name="cache")


def info() -> None:
    """Tells where they lie, and how much."""
    from kernelfarm.client.diagnostics.disk import usage  # noqa: PLC0415 (keeps --help quick)

    settings = _settings()
    told = usage(settings.disk_cache_dir.expanduser())
    limit = _mib(settings.disk_cache_bytes) if settings.disk_cache_bytes else "0, turned off"
    typer.echo(f"folder    {settings.disk_cache_dir}")
    typer.echo(f"limit     {limit}")
    typer.echo(f"holds     {_mib(told.size_bytes)}")
    typer.echo(f"programs  {told.entries}")
    typer.echo(f"blobs     {told.blobs}")
    typer.echo(f"farms     {told.farms}")
    if told.oldest_s is not None:
        typer.echo(f"oldest    used {(time.time() - told.oldest_s) / 3600:.1f} h ago")


def verify() -> None:
    """Reads all of it and removes what is spoilt; exit code 1 if anything was."""
    from kernelfarm.client.diagnostics.disk import usage  # noqa: PLC0415 (keeps --help quick)
    from kernelfarm.client.diagnostics.disk import verify as verified  # noqa: PLC0415
    from kernelfarm.signing.key_files import read_keyring  # noqa: PLC0415

    settings = _settings()
    root, pinned = settings.disk_cache_dir.expanduser(), settings.trusted_keys_file
    faults = verified(root, None if pinned is None else read_keyring(pinned))
    for fault in faults:
        typer.echo(f"{fault.reason}  {fault.path}: {fault.message}")
    left = usage(root)
    typer.echo(f"{len(faults)} spoilt; {left.entries} programs and {left.blobs} blobs are left")
    if faults:
        raise typer.Exit(_EXIT_SPOILT)


def clear() -> None:
    """Removes all of it; running programs go on, and are fetched again by the next process."""
    from kernelfarm.client.diagnostics.disk import clear as cleared  # noqa: PLC0415 (keeps --help quick)

    folder = _settings().disk_cache_dir.expanduser()
    typer.echo(f"removed {_mib(cleared(folder))} from {folder}")


def _settings() -> ClientSettings:
    from kernelfarm.client.settings import client_settings  # noqa: PLC0415 (keeps --help quick)

    return client_settings()


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.1f} MiB"

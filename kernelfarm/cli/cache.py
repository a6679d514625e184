"""`kernelfarm cache`: the disk tier of this machine's clients."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from kernelfarm.client.settings import ClientSettings

_EXIT_CORRUPT = 1
_EPILOG = """
[bold]Examples[/bold]

  kernelfarm cache info

  kernelfarm cache verify

  KERNELFARM_DISK_CACHE_DIR=/var/cache/kernelfarm kernelfarm cache clear
"""


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    commands = typer.Typer(
        help="Manages the programs cached on this machine's disk.",
        epilog=_EPILOG,
        no_args_is_help=True,
    )
    for command in (info, verify, clear):
        commands.command()(command)
    app.add_typer(commands, name="cache")


def info() -> None:
    """Shows the folder and its size."""
    from kernelfarm.client.diagnostics.disk import usage  # noqa: PLC0415 (keeps --help quick)

    settings = _settings()
    contents = usage(settings.disk_cache_dir.expanduser())
    limit = _mib(settings.disk_cache_bytes) if settings.disk_cache_bytes else "0 (off)"
    typer.echo(f"folder    {settings.disk_cache_dir}")
    typer.echo(f"limit     {limit}")
    typer.echo(f"size      {_mib(contents.size_bytes)}")
    typer.echo(f"programs  {contents.entries}")
    typer.echo(f"blobs     {contents.blobs}")
    typer.echo(f"farms     {contents.farms}")
    if contents.oldest_s is not None:
        typer.echo(f"oldest    last used {(time.time() - contents.oldest_s) / 3600:.1f} h ago")


def verify() -> None:
    """Verifies every file and removes corrupt ones; exit code 1 if there were any."""
    from kernelfarm.client.diagnostics.disk import usage  # noqa: PLC0415 (keeps --help quick)
    from kernelfarm.client.diagnostics.disk import verify as verified  # noqa: PLC0415
    from kernelfarm.signing.key_files import read_keyring  # noqa: PLC0415

    settings = _settings()
    root, pinned = settings.disk_cache_dir.expanduser(), settings.trusted_keys_file
    faults = verified(root, None if pinned is None else read_keyring(pinned))
    for fault in faults:
        typer.echo(f"{fault.reason}  {fault.path}: {fault.message}")
    left = usage(root)
    typer.echo(f"{len(faults)} corrupt; {left.entries} programs and {left.blobs} blobs remain")
    if faults:
        raise typer.Exit(_EXIT_CORRUPT)


def clear() -> None:
    """Removes all files; running processes keep their programs, later ones fetch them again."""
    from kernelfarm.client.diagnostics.disk import clear as cleared  # noqa: PLC0415 (keeps --help quick)

    folder = _settings().disk_cache_dir.expanduser()
    typer.echo(f"removed {_mib(cleared(folder))} from {folder}")


def _settings() -> ClientSettings:
    from kernelfarm.client.settings import client_settings  # noqa: PLC0415 (keeps --help quick)

    return client_settings()


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.1f} MiB"

"""`kernelfarm keys`: makes the keys with which a farm signs and which its clients pin."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_EPILOG = """
[bold]Examples[/bold]

  kernelfarm keys /etc/kernelfarm/keys

Give `programs.key` to frontends, `kernels.key` to workers, and `public.json` to all services and
clients. Give `traces.key` only to clients that may publish traces for others, such as jobs that
warm the cache. To rotate keys: add the new public keys to each `public.json`, then replace the
private keys, then remove the old public keys.
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(epilog=_EPILOG)(keys)


def keys(
    folder: Annotated[
        Path, typer.Argument(help="The folder of the keys; created if it does not exist.")
    ],
) -> None:
    """Makes a farm's keys if the folder has none, and lists the public keys."""
    from kernelfarm.signing.key_files import make_keys  # noqa: PLC0415 -- loads cryptography

    for key in make_keys(folder).keys:
        typer.echo(f"{key.key_id}  {key.space.name.lower()}")

"""`kernelfarm up`: a whole farm on this machine."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(up)


def up() -> None:
    """Starts a whole farm on this machine and serves until SIGTERM or Ctrl-C."""
    raise NotImplementedError

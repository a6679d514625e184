"""`kernelfarm verify-coverage`: checks a farm against a coverage certificate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelfarm.cli.warm import EXIT_INCOMPLETE

_EPILOG = """
[bold]Exit codes[/bold]

  0 the farm has everything; 3 something is missing; 1 error, such as an untrusted signature

[bold]Examples[/bold]

  kernelfarm verify-coverage coverage.json --endpoint farm.example:50051
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(name="verify-coverage", epilog=_EPILOG)(verify_coverage)


def verify_coverage(
    certificate: Annotated[Path, typer.Argument(help="A certificate of `kernelfarm warm`.")],
    allow_unsigned: Annotated[
        bool, typer.Option("--allow-unsigned", help="Accept a certificate without a signature.")
    ] = False,
    parallel: Annotated[int, typer.Option(help="Look-ups at once.", min=1, max=64)] = 8,
    attempts: Annotated[
        int, typer.Option(help="How often a call is made while the farm is away.", min=1, max=1000)
    ] = 4,
    endpoint: Annotated[
        str | None, typer.Option(help="The farm's HOST:PORT. Default: KERNELFARM_ENDPOINT.")
    ] = None,
) -> None:
    """Looks every program and trace of a certificate up, and lists what is missing. Needs no torch.

    The certificate must be signed by a trusted key for traces (KERNELFARM_TRUSTED_KEYS_FILE).
    """
    from kernelfarm.client.farm.client import FarmClient  # noqa: PLC0415 (keeps --help quick)
    from kernelfarm.client.warming.certificate import DOMAIN, read_certificate  # noqa: PLC0415
    from kernelfarm.client.warming.connection import batch_settings  # noqa: PLC0415
    from kernelfarm.client.warming.coverage import check_coverage  # noqa: PLC0415
    from kernelfarm.client.warming.retry import Retry  # noqa: PLC0415

    signed = read_certificate(certificate)
    settings, _ = batch_settings(endpoint, timeout_s=60.0)
    stated = signed.certificate
    with FarmClient(settings) as client:
        if signed.signature or not allow_unsigned:
            client.verifier.check_statement(signed.statement(), DOMAIN, stated.canonical_bytes())
        missing = 0
        for checked in check_coverage(stated, client, Retry(attempts), parallel):
            if checked.missing:
                missing += 1
                typer.echo(f"MISSING  {checked.entry.title}  {checked.missing}")
            for note in checked.notes:
                typer.echo(f"note     {checked.entry.title}  {note}")
    typer.echo(f"{len(stated.entries) - missing} of {len(stated.entries)} present")
    if missing:
        raise typer.Exit(EXIT_INCOMPLETE)

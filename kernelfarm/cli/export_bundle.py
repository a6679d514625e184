"""`kernelfarm export-bundle`: writes what a certificate names as an OCI image layout."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from kernelfarm.cli.warm import EXIT_INCOMPLETE

_EPILOG = """
[bold]Exit codes[/bold]

  0 the bundle has everything; 3 choices of the fleet were left out; 1 error

[bold]Examples[/bold]

  kernelfarm export-bundle bundle.tar --certificate coverage.json --endpoint farm.example:50051

  kernelfarm export-bundle bundle --certificate coverage.json --model bert@1 --target cuda:sm_90a
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(name="export-bundle", epilog=_EPILOG)(export_bundle)


def export_bundle(
    bundle: Annotated[Path, typer.Argument(help="The new folder, or a file named *.tar.")],
    certificate: Annotated[Path, typer.Option(help="A certificate of `kernelfarm warm`.")],
    *,
    model: Annotated[
        list[str] | None,
        typer.Option(help="Only the models of this tag (ID@REVISION) or name; repeatable."),
    ] = None,
    target: Annotated[
        list[str] | None, typer.Option(help="Only programs for this target; repeatable.")
    ] = None,
    attempts: Annotated[
        int, typer.Option(help="How often a call is made while the farm is away.", min=1, max=1000)
    ] = 8,
    endpoint: Annotated[
        str | None, typer.Option(help="The farm's HOST:PORT. Default: KERNELFARM_ENDPOINT.")
    ] = None,
) -> None:
    """Writes signed programs, and what belongs to them, into a bundle. Needs no torch.

    These are blobs, traces, packages, and the fleet's choices with the programs that they name.

    `kernelfarm import-bundle` brings it to a farm, or to a disk, that this farm cannot reach.
    """
    from kernelfarm.client.bundle.export import export_programs  # noqa: PLC0415 (keeps --help quick)
    from kernelfarm.client.bundle.layout import writing_bundle  # noqa: PLC0415
    from kernelfarm.client.farm.client import FarmClient  # noqa: PLC0415
    from kernelfarm.client.warming.certificate import read_certificate  # noqa: PLC0415
    from kernelfarm.client.warming.connection import batch_settings  # noqa: PLC0415
    from kernelfarm.client.warming.retry import Retry  # noqa: PLC0415

    entries = [
        entry
        for entry in read_certificate(certificate).certificate.entries
        if (not model or entry.tag in model or entry.model in model)
        and (not target or entry.target in target)
    ]
    settings, _ = batch_settings(endpoint, timeout_s=300.0)
    with FarmClient(settings) as client, writing_bundle(bundle) as writer:
        done = export_programs(
            entries,
            client,
            writer,
            Retry(attempts),
            lambda entry: typer.echo(entry.title, err=True),
        )
    until = datetime.fromtimestamp(done.valid_until_s, UTC).isoformat()
    typer.echo(
        f"{done.programs} programs, {done.traces} traces, {done.packages} packages,"
        f" {done.tuning} tuning records, {done.blobs} blobs: {bundle}"
    )
    typer.echo(f"clients may use it without a farm until {until} (KERNELFARM_OFFLINE_VALIDITY_S)")
    for reason in done.left_out:
        typer.echo(f"left out: {reason}")
    if done.left_out:
        raise typer.Exit(EXIT_INCOMPLETE)

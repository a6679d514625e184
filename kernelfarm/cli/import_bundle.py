"""`kernelfarm import-bundle`: brings a bundle to a farm, or to the disk of clients."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelfarm.cli._cache import Token
from kernelfarm.cli.warm import EXIT_INCOMPLETE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kernelfarm.client.bundle.layout import Bundle, StoredProgram

_EPILOG = """
[bold]Exit codes[/bold]

  0 every program was imported; 3 some were refused; 1 error

[bold]Examples[/bold]

  kernelfarm import-bundle bundle.tar --endpoint farm.example:50051 --token TOKEN

  KERNELFARM_TRUSTED_KEYS_FILE=public.json kernelfarm import-bundle bundle.tar --disk
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(name="import-bundle", epilog=_EPILOG)(import_bundle)


def import_bundle(  # noqa: PLR0913 (each is an option of the command)
    bundle: Annotated[Path, typer.Argument(help="What `kernelfarm export-bundle` wrote.")],
    *,
    disk: Annotated[
        bool,
        typer.Option("--disk", help="Import into the disk tier of this machine's clients instead."),
    ] = False,
    target: Annotated[
        list[str] | None, typer.Option(help="Only programs for this target; repeatable.")
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option(help="Only tuning records of this device (see `doctor`); repeatable."),
    ] = None,
    accept_invalidated: Annotated[
        bool,
        typer.Option(
            "--accept-invalidated",
            help="Also import what depends on something that the farm invalidated.",
        ),
    ] = False,
    packages: Annotated[
        bool,
        typer.Option(
            "--packages",
            help="Also sign packages for this farm's clients, who run the code of them.",
        ),
    ] = False,
    attempts: Annotated[
        int, typer.Option(help="How often a call is made while the farm is away.", min=1, max=1000)
    ] = 8,
    token: Token = "",
    endpoint: Annotated[
        str | None, typer.Option(help="The farm's HOST:PORT. Default: KERNELFARM_ENDPOINT.")
    ] = None,
) -> None:
    """Imports signed programs, and what belongs to them; the role is administrator.

    The farm accepts programs and tuning records that a key it trusts for imports signed
    (KERNELFARM_IMPORT_KEYS_FILE), and signs programs again. Traces, and with
    --packages packages, are verified by KERNELFARM_TRUSTED_KEYS_FILE and signed again with
    KERNELFARM_TRACE_KEY_FILE. With --disk nothing is signed again.
    """
    from kernelfarm.client.bundle.layout import open_bundle  # noqa: PLC0415 (keeps --help quick)

    devices = frozenset(device or ())
    with open_bundle(bundle) as opened:
        if disk:
            refused = _to_disk(_chosen(opened, target), endpoint, devices)
        else:
            call = _FarmCall(token, endpoint, attempts, accept_invalidated, packages, devices)
            refused = _to_farm(_chosen(opened, target), call)
    for reason in refused:
        typer.echo(f"refused: {reason}")
    if refused:
        raise typer.Exit(EXIT_INCOMPLETE)


def _chosen(bundle: Bundle, targets: list[str] | None) -> Iterable[StoredProgram]:
    return (found for found in bundle.programs() if not targets or found.target in targets)


def _to_disk(
    programs: Iterable[StoredProgram], endpoint: str | None, devices: frozenset[str]
) -> list[str]:
    from kernelfarm.client.bundle.to_disk import DiskImporter, DiskReport  # noqa: PLC0415
    from kernelfarm.client.settings import client_settings  # noqa: PLC0415

    settings = client_settings(**({} if endpoint is None else {"endpoint": endpoint}))
    importer, report = DiskImporter(settings, devices), DiskReport()
    for stored in programs:
        importer.add(stored, report)
    importer.finish()
    typer.echo(
        f"{report.programs} programs, {report.traces} traces, {report.packages} packages and"
        f" {report.tuning} tuning records: {settings.disk_cache_dir}"
    )
    for reason in report.left_out:
        typer.echo(f"left out: {reason}")
    if report.valid_until_s is not None:
        until = datetime.fromtimestamp(report.valid_until_s, UTC).isoformat()
        typer.echo(f"clients of {settings.endpoint} may use all of them without it until {until}")
    return report.refused


@dataclass(frozen=True, slots=True)
class _FarmCall:
    """How a farm is called, and what is imported into it."""

    token: str
    endpoint: str | None
    attempts: int
    accepts_invalidated: bool
    signs_packages: bool
    devices: frozenset[str]


def _to_farm(programs: Iterable[StoredProgram], call: _FarmCall) -> list[str]:
    from kernelfarm.cli._cache import connect  # noqa: PLC0415
    from kernelfarm.client.bundle.to_farm import FarmImporter, ImportReport  # noqa: PLC0415
    from kernelfarm.client.farm.client import FarmClient  # noqa: PLC0415
    from kernelfarm.client.warming.connection import batch_settings  # noqa: PLC0415
    from kernelfarm.client.warming.retry import Retry  # noqa: PLC0415
    from kernelfarm.signing import Keyring, Space  # noqa: PLC0415
    from kernelfarm.signing.key_files import read_keyring, read_signer  # noqa: PLC0415

    settings, _ = batch_settings(call.endpoint, timeout_s=300.0, token=call.token)
    trusted, key = settings.trusted_keys_file, settings.trace_key_file
    report = ImportReport()
    with connect(call.endpoint, call.token) as admin, FarmClient(settings) as client:
        importer = FarmImporter(
            admin,
            client,
            client.capabilities().max_request_bytes,
            None if key is None else read_signer(key, Space.TRACES),
            Keyring(()) if trusted is None else read_keyring(trusted),
            Retry(call.attempts),
            call.accepts_invalidated,
            call.signs_packages,
            call.devices,
        )
        for stored in programs:
            importer.add(stored, report)
    typer.echo(
        f"{report.stored} programs imported, {report.present} were there, {report.traces} traces,"
        f" {report.packages} packages, {report.tuning} tuning records with {report.reports} new"
        " reports"
    )
    for reason in report.skipped:
        typer.echo(f"skipped: {reason}")
    return report.refused

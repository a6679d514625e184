"""`kernelfarm warm`: compiles the models of a manifest at a farm before any user waits."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kernelfarm.client.settings import ClientSettings
    from kernelfarm.client.warming.certificate import Certificate, ProgramCoverage
    from kernelfarm.client.warming.manifest import WarmingManifest
    from kernelfarm.signing import Signer

EXIT_INCOMPLETE = 3
_EPILOG = """
[bold]Exit codes[/bold]

  0 the farm has everything; 3 something is missing, the certificate says why; 1 error

[bold]Examples[/bold]

  kernelfarm warm warming.yaml --endpoint farm.example:50051

  KERNELFARM_TRACE_KEY_FILE=traces.key kernelfarm warm warming.yaml --certificate coverage.json
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(epilog=_EPILOG)(warm)


def warm(  # noqa: PLR0913 (each is an option of the command)
    manifest: Annotated[Path, typer.Argument(help="The manifest, YAML; see docs/warming.md.")],
    *,
    certificate: Annotated[
        Path | None,
        typer.Option(help="Where to write the coverage certificate. Default: beside the manifest."),
    ] = None,
    captures: Annotated[
        Path | None,
        typer.Option(help="Folder for captured graphs, so that a job that ended continues."),
    ] = None,
    packages: Annotated[
        bool,
        typer.Option("--packages", help="Also publish packages, with which clients trace nothing."),
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Capture every model again.")] = False,
    parallel: Annotated[
        int, typer.Option(help="Graphs for which the job waits at once.", min=1, max=64)
    ] = 4,
    attempts: Annotated[
        int, typer.Option(help="How often a call is made while the farm is away.", min=1, max=1000)
    ] = 8,
    timeout: Annotated[
        float, typer.Option(help="Seconds to wait for the programs of one graph.", min=1)
    ] = 600.0,
    endpoint: Annotated[
        str | None, typer.Option(help="The farm's HOST:PORT. Default: KERNELFARM_ENDPOINT.")
    ] = None,
) -> None:
    """Compiles every model of a manifest for all targets, and certifies what the farm has.

    Models are captured on this machine, whose torch they need; Python entries are found in the
    current folder. With KERNELFARM_TRACE_KEY_FILE the job publishes traces and signs the
    certificate.
    """
    from kernelfarm.client.warming.cases import cases_of  # noqa: PLC0415 (keeps --help quick)
    from kernelfarm.client.warming.connection import batch_settings  # noqa: PLC0415
    from kernelfarm.client.warming.manifest import read_manifest  # noqa: PLC0415

    stated = read_manifest(manifest)
    cases = cases_of(stated)
    settings, version = batch_settings(endpoint, timeout)
    signer = _signer(settings)
    folder = captures or manifest.with_suffix(".captures")
    run = _Run(
        stated, manifest.parent, folder, parallel, attempts, is_fresh=fresh, makes_packages=packages
    )
    entries = run.entries(settings, signer, len(cases))
    made = _certificate(manifest, settings, version, entries)
    _publish(made, signer, certificate or manifest.with_suffix(".certificate.json"))
    if not made.is_complete:
        raise typer.Exit(EXIT_INCOMPLETE)


def _certificate(
    manifest: Path, settings: ClientSettings, version: str, entries: list[ProgramCoverage]
) -> Certificate:
    from kernelfarm.client.warming.certificate import FarmFacts, certificate_of  # noqa: PLC0415

    facts = FarmFacts(endpoint=settings.endpoint, namespace=settings.namespace, version=version)
    digest = hashlib.sha256(manifest.read_bytes()).hexdigest()
    return certificate_of(facts, digest, entries, datetime.now(UTC))


def _publish(certificate: Certificate, signer: Signer | None, path: Path) -> None:
    """Writes a certificate to a file, and its lines to stdout."""
    from kernelfarm.client.warming.certificate import (  # noqa: PLC0415
        certificate_lines,
        signed_certificate,
        write_certificate,
    )

    write_certificate(path, signed_certificate(certificate, signer))
    for line in certificate_lines(certificate):
        typer.echo(line)
    typer.echo(f"certificate: {path}" + ("" if signer else " (not signed: no key for traces)"))


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of a job."""

    manifest: WarmingManifest
    models: Path
    captures: Path
    parallel: int
    attempts: int
    is_fresh: bool
    makes_packages: bool

    def entries(
        self, settings: ClientSettings, signer: Signer | None, cases: int
    ) -> list[ProgramCoverage]:
        """What the farm has after the run."""
        # Importing torch takes about a second: mistakes in the manifest are reported before.
        from kernelfarm.cli._warming_progress import shown_progress  # noqa: PLC0415
        from kernelfarm.client.farm.access import FarmAccess  # noqa: PLC0415
        from kernelfarm.client.warming.captures import CaptureFolder  # noqa: PLC0415
        from kernelfarm.client.warming.job import WarmingJob  # noqa: PLC0415
        from kernelfarm.client.warming.requests import GraphWarmer  # noqa: PLC0415
        from kernelfarm.client.warming.retry import Retry  # noqa: PLC0415

        sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
        access = FarmAccess(settings)
        try:
            with shown_progress(cases) as progress:
                return WarmingJob(
                    self.manifest,
                    self.models,
                    access,
                    GraphWarmer(access.client, signer, Retry(self.attempts)),
                    CaptureFolder.open(self.captures),
                    progress,
                    self.parallel,
                    takes_saved=not self.is_fresh,
                    makes_packages=self.makes_packages,
                ).run()
        finally:
            access.client.close()


def _signer(settings: ClientSettings) -> Signer | None:
    from kernelfarm.signing import Space  # noqa: PLC0415
    from kernelfarm.signing.key_files import read_signer  # noqa: PLC0415

    path = settings.trace_key_file
    return None if path is None else read_signer(path, Space.TRACES)

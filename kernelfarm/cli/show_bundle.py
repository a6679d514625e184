"""`kernelfarm show-bundle`: lists what a bundle has."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernelfarm.client.bundle.layout import StoredProgram

_EPILOG = """
[bold]Examples[/bold]

  kernelfarm show-bundle bundle.tar --target cuda:sm_90a
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(name="show-bundle", epilog=_EPILOG)(show_bundle)


def show_bundle(
    bundle: Annotated[Path, typer.Argument(help="What `kernelfarm export-bundle` wrote.")],
    *,
    target: Annotated[
        list[str] | None, typer.Option(help="Only programs for this target; repeatable.")
    ] = None,
) -> None:
    """Lists programs, traces, packages, and tuning records with their devices and winners.

    It checks the digests of files, and no signatures: these are checked by imports and clients.
    """
    from kernelfarm.client.bundle.layout import open_bundle  # noqa: PLC0415 (keeps --help quick)

    with open_bundle(bundle) as opened:
        shown = 0
        for stored in opened.programs():
            if target and stored.target not in target:
                continue
            shown += 1
            for line in _lines(stored):
                typer.echo(line)
        typer.echo(f"{shown} of {len(opened)} programs; signatures are not checked here")


def _lines(stored: StoredProgram) -> Iterator[str]:
    from kernelfarm.client.bundle.contents import (  # noqa: PLC0415 (keeps --help quick)
        program_of,
        shared_contents,
        tuning_of,
    )
    from kernelfarm.client.bundle.layout import MODEL_NOTE  # noqa: PLC0415
    from kernelfarm.errors import KernelfarmError  # noqa: PLC0415

    try:
        program = program_of(stored).manifest
        yield (
            f"program {program.key.hex()[:16]} {stored.target}"
            f"  {stored.annotations.get(MODEL_NOTE, '')}"
        )
        for shared in shared_contents(stored):
            yield f"  {shared.name}"
    except KernelfarmError as error:
        yield f"program of {stored.target}: {error.reason}: {error}"
    for content in stored.tuning():
        try:
            found = tuning_of(content)
        except KernelfarmError as error:
            yield f"  tuning record: {error.reason}: {error}"
            continue
        state = found.record.state
        settled = "settled" if state.is_settled else "may change"
        yield (
            f"  {found.title}: candidate {state.winner} of {found.record.subject.candidates},"
            f" {state.reports} reports, {settled}"
        )

"""`kernelfarm compile`: compiles an exported model for any targets and writes files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelfarm.ir.product_choice import ProductChoice

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID
    from rich.table import Table

    from kernelfarm.client.farm.client import StageProgress
    from kernelfarm.client.farm.compiled_program import CompiledArtifact, CompiledProgram

_EPILOG = """
[bold]Examples[/bold]

  kernelfarm compile model.pt2 --target cuda:sm_90a --target rocm:gfx942 --out build

  kernelfarm compile model.pt2 --out build --endpoint farm.example:50051
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("compile", epilog=_EPILOG)(compile_file)


def compile_file(  # noqa: PLR0913, PLR0917  # each parameter is an option of the command
    file: Annotated[Path, typer.Argument(help="A model saved by torch.export.save (.pt2).")],
    out: Annotated[Path, typer.Option(help="Directory for kernels, stages and manifest.json.")],
    target: Annotated[
        list[str] | None,
        typer.Option(help="A target to compile for; repeatable. Default: this machine's CPU."),
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option(help="The farm's HOST:PORT. Default: KERNELFARM_ENDPOINT.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds to wait for the farm.", min=0.1)
    ] = None,
    fallback_random: Annotated[
        bool, typer.Option(help="Let the framework draw random numbers instead of kernels.")
    ] = False,
    products: Annotated[
        ProductChoice, typer.Option(help="Who computes products of matrices.")
    ] = ProductChoice.AUTO,
) -> None:
    """Compiles an exported model through the farm and writes every kernel and stage."""
    # Importing torch takes about a second, so import it only when the command runs.
    from rich.console import Console  # noqa: PLC0415

    from kernelfarm.client.capture.exported import read_pt2  # noqa: PLC0415
    from kernelfarm.client.compile_model import compile_exported, connect  # noqa: PLC0415
    from kernelfarm.client.farm.compile_options import CompileOptions  # noqa: PLC0415

    console = Console()
    exported = read_pt2(file)
    with _progress(console) as progress:
        compiled = compile_exported(
            exported,
            targets=target,
            client=connect(endpoint, timeout),
            options=CompileOptions(fallback_random=fallback_random, products=products),
            on_progress=_Bars(progress).show,
        )
    manifest = compiled.save(out)
    for program in compiled.programs.values():
        console.print(_table(program))
        for reason in sorted({a.stub_reason for a in _artifacts(program) if a.is_stub}):
            console.print(f"stub: {reason}", style="yellow", markup=False)
    console.print(f"written: {manifest}", markup=False, soft_wrap=True)


class _Bars:
    """One progress bar for each target: compiled kernels of all; the stage is its text."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def show(self, event: StageProgress) -> None:
        """Updates the bar of the event's target."""
        name = event.target or "graph"
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=None, stage="")
        has_kernels = event.stage == "codegen" and event.total > 0
        self._progress.update(
            self._tasks[name],
            stage=event.stage,
            total=event.total if has_kernels else None,
            completed=event.done if has_kernels else None,
        )
        if event.stage in ("publish", "import", "decompose") or event.detail == "hit":
            self._progress.update(self._tasks[name], total=1, completed=1)


def _progress(console: object) -> Progress:
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[stage]}"),
        TimeElapsedColumn(),
        console=console if isinstance(console, Console) else None,
    )


def _table(program: CompiledProgram) -> Table:
    from rich.table import Table  # noqa: PLC0415

    title = f"{program.target}: {program.outcome}, {program.codegen_jobs} kernels compiled"
    table = Table(title=title, title_justify="left")
    table.add_column("kernel", overflow="fold")
    for name in ("binary", "bytes", "ms", "variants", "toolchain"):
        table.add_column(name, justify="right" if name in ("bytes", "ms", "variants") else "left")
    for name, variants in zip(program.plan.kernel_names, program.kernels, strict=True):
        general = variants[-1]
        table.add_row(
            name,
            general.binary.name + (" (stub)" if general.is_stub else ""),
            str(sum(variant.binary.size_bytes for variant in variants)),
            f"{sum(variant.cost_ms for variant in variants):.0f}",
            str(len(variants)),
            general.toolchain[:24],
        )
    return table


def _artifacts(program: CompiledProgram) -> list[CompiledArtifact]:
    return [artifact for variants in program.kernels for artifact in variants]

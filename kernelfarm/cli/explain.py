"""`kernelfarm explain`: prints the stages of a compiled program, or writes them as a page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelfarm.errors import CallerError

if TYPE_CHECKING:
    from kernelfarm.client.diagnostics.stages import ExplainedStage
    from kernelfarm.pages.program_view import ProgramView

_KEY_HEX_CHARS = 64
_EPILOG = """
[bold]Examples[/bold]

  kernelfarm explain model.pt2

  kernelfarm explain model.pt2 --target cuda:sm_90a --stage ptx

  kernelfarm explain build --kernel fused_silu_1f2e3d4c

  kernelfarm explain model.pt2 --html model.html

  kernelfarm explain 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(epilog=_EPILOG)(explain)


def explain(
    source: Annotated[
        str,
        typer.Argument(
            help="A .pt2 file, a directory made by `kernelfarm compile`, or a program key (64 hex)."
        ),
    ],
    stage: Annotated[
        list[str] | None,
        typer.Option(help="Print only these stages (`loops`, `triton`, `asm`, ...)."),
    ] = None,
    kernel: Annotated[
        list[str] | None,
        typer.Option(help="Print only these kernels; a prefix of the name is enough."),
    ] = None,
    target: Annotated[list[str] | None, typer.Option(help="Print only these targets.")] = None,
    endpoint: Annotated[
        str | None, typer.Option(help="The farm's HOST:PORT. Default: KERNELFARM_ENDPOINT.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write one HTML page with every stage to this file.")
    ] = None,
) -> None:
    """Prints the stages of a program (aten, prims, loops, plan, report) and of its kernels."""
    if html is not None:
        if stage or kernel:
            raise CallerError(
                "--html writes every kernel and stage: leave out --kernel and --stage"
            )
        _write_page(html, source, target, endpoint)
        return
    shown = 0
    seen: set[str] = set()
    for found in _stages(source, target, endpoint):
        seen.add(f"{found.kernel or 'program'}/{found.stage}")
        if _matches(found, stage, kernel, target):
            typer.secho(f"=== {found.title()}", bold=True)
            typer.echo(found.text().rstrip("\n") + "\n")
            shown += 1
    if not shown:
        raise CallerError(f"no stage matches; expected some of {', '.join(sorted(seen))}")


def _stages(
    source: str, targets: list[str] | None, endpoint: str | None
) -> Iterator[ExplainedStage]:
    from kernelfarm.client.diagnostics import stages as explained  # noqa: PLC0415 (loads torch)

    path = Path(source)
    if path.is_dir():
        return explained.of_directory(path)
    if path.suffix == ".pt2" or path.exists():
        return explained.of_pt2(path, targets, endpoint)
    return explained.of_key(_key(source), endpoint)


def _write_page(html: Path, source: str, targets: list[str] | None, endpoint: str | None) -> None:
    from kernelfarm.pages.program_page import program_page  # noqa: PLC0415 (loads jinja2)

    text = program_page(Path(source).name, _views(source, targets, endpoint))
    try:
        html.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CallerError(f"cannot write {html}: {error.strerror}") from error
    typer.echo(f"written: {html} ({len(text.encode('utf-8'))} bytes)")


def _views(source: str, targets: list[str] | None, endpoint: str | None) -> list[ProgramView]:
    from kernelfarm.client.diagnostics import program_pages  # noqa: PLC0415 (loads torch)

    path = Path(source)
    if path.is_dir():
        return program_pages.views_of_directory(path, targets)
    if path.suffix == ".pt2" or path.exists():
        return program_pages.views_of_pt2(path, targets, endpoint)
    return [program_pages.view_of_key(_key(source), endpoint)]


def _key(source: str) -> bytes:
    if len(source) == _KEY_HEX_CHARS and set(source.lower()) <= set("0123456789abcdef"):
        return bytes.fromhex(source)
    raise CallerError(f"{source!r} is not a file, a directory or a key of 64 hex digits")


def _matches(
    found: ExplainedStage,
    stages: list[str] | None,
    kernels: list[str] | None,
    targets: list[str] | None,
) -> bool:
    if targets and found.target not in targets:
        return False
    if stages and found.stage not in stages:
        return False
    return not kernels or any(found.kernel.startswith(k) for k in kernels if found.kernel)

"""`kernelfarm compile-tilelang`: compiles a tile program of TileLang for any targets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_EPILOG = """
[bold]Examples[/bold]

  python -c "import kernels; print(kernels.matmul(1024, 1024, 1024).script())" > matmul.txt
  kernelfarm compile-tilelang matmul.txt --target cuda:sm_90a --target rocm:gfx942 --out build
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("compile-tilelang", epilog=_EPILOG)(compile_tilelang_file)


def compile_tilelang_file(
    program: Annotated[
        Path,
        typer.Argument(
            help="A file with the text of a T.prim_func, as its script() gives it; it is not"
            " executed.",
            exists=True,
            dir_okay=False,
        ),
    ],
    target: Annotated[list[str], typer.Option(help="A target to compile for; repeatable.")],
    out: Annotated[Path, typer.Option(help="Directory for binaries, stages and manifest.json.")],
    endpoint: Annotated[
        str | None, typer.Option(help="The farm's HOST:PORT. Default: KERNELFARM_ENDPOINT.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds to wait for the farm.", min=0.1)
    ] = None,
) -> None:
    """Compiles a tile program through the farm and writes binaries and stages."""
    from rich.console import Console  # noqa: PLC0415

    from kernelfarm.cli.compile_triton import variants_table  # noqa: PLC0415
    from kernelfarm.client.compile_tilelang import compile_tilelang  # noqa: PLC0415
    from kernelfarm.errors import TileProgramError  # noqa: PLC0415

    try:
        text = program.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise TileProgramError(f"{program} is no text: {error}") from error
    compiled = compile_tilelang(text, target, endpoint=endpoint, timeout_s=timeout)
    manifest = compiled.save(out)
    console = Console()
    for name in compiled.programs:
        console.print(variants_table(compiled, name))
    console.print(f"written: {manifest}", markup=False, soft_wrap=True)

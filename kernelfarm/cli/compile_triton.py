"""`kernelfarm compile-triton`: compiles a Triton kernel of a Python file for any targets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from kernelfarm.client.compile_triton import CompiledTriton

_EPILOG = """
[bold]Examples[/bold]

  kernelfarm compile-triton kernels.py:add --signature "*fp32, *fp32, *fp32, i32, 1024" --target cuda:sm_90a --out build

  kernelfarm compile-triton kernels.py:matmul --signature "..." --num-warps 8 --num-stages 3 --target rocm:gfx942 --out build
"""  # noqa: E501 (a command is one line)


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("compile-triton", epilog=_EPILOG)(compile_triton_file)


def compile_triton_file(  # noqa: PLR0913, PLR0917 (one parameter for each option)
    kernel: Annotated[
        str, typer.Argument(help="FILE.py:FUNCTION; the file is imported on this machine.")
    ],
    signature: Annotated[
        str,
        typer.Option(
            help="For each parameter in order a type (*fp16, i32, i32:16) or a constant's value; or"
            " NAME=VALUE behind these."
        ),
    ],
    target: Annotated[list[str], typer.Option(help="A target to compile for; repeatable.")],
    out: Annotated[Path, typer.Option(help="Directory for binaries, stages and manifest.json.")],
    num_warps: Annotated[int | None, typer.Option(help="Warps of a program.", min=1)] = None,
    num_stages: Annotated[int | None, typer.Option(help="Stages of loops.", min=0)] = None,
    endpoint: Annotated[
        str | None, typer.Option(help="The farm's HOST:PORT. Default: KERNELFARM_ENDPOINT.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds to wait for the farm.", min=0.1)
    ] = None,
) -> None:
    """Compiles a Triton kernel in all its configurations and writes binaries and stages."""
    from rich.console import Console  # noqa: PLC0415

    from kernelfarm.client.compile_model import connect  # noqa: PLC0415
    from kernelfarm.client.compile_triton import (  # noqa: PLC0415
        compile_user_kernels,
        configured_kernels,
    )
    from kernelfarm.client.triton.kernel_source import kernel_source  # noqa: PLC0415
    from kernelfarm.client.triton.signatures import stated_signature  # noqa: PLC0415

    function = _function(kernel)
    types, constants = stated_signature(kernel_source(function), signature)
    stated = {"num_warps": num_warps, "num_stages": num_stages}
    options = {name: value for name, value in stated.items() if value is not None}
    kernels = configured_kernels(function, types, constants, options)
    compiled = compile_user_kernels(kernels, target, connect(endpoint, timeout))
    manifest = compiled.save(out)
    console = Console()
    for name in compiled.programs:
        console.print(variants_table(compiled, name))
    console.print(f"written: {manifest}", markup=False, soft_wrap=True)


def _function(text: str) -> Any:
    """The function that an argument names; its file is the user's own, so it is imported.

    Raises:
        CallerError: there is no such file or function.
    """
    import importlib.util  # noqa: PLC0415

    from kernelfarm.errors import CallerError  # noqa: PLC0415

    path, _, name = text.rpartition(":")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path) if path else None
    if spec is None or spec.loader is None or not Path(path).is_file():
        raise CallerError(f"{text!r} names no Python file; expected FILE.py:FUNCTION")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        raise CallerError(f"{path} has no function {name!r}; expected FILE.py:FUNCTION")
    return getattr(module, name)


def variants_table(compiled: CompiledTriton, target: str) -> Table:
    """A target's variants as a table."""
    from rich.table import Table  # noqa: PLC0415

    from kernelfarm.ir.artifact import guard_text  # noqa: PLC0415

    program = compiled.programs[target]
    found = compiled.configurations(target)
    left_out = len(compiled.kernels) - len(found)
    title = f"{target}: {program.outcome}, {program.codegen_jobs} kernels compiled"
    title += f"; {left_out} configurations do not fit" if left_out else ""
    table = Table(title=title, title_justify="left")
    for name in ("kernel", "if", "binary", "bytes", "registers", "shared bytes", "ms"):
        table.add_column(name, overflow="fold")
    for configuration in found:
        for variant in configuration.variants:
            table.add_row(
                configuration.kernel.name,
                guard_text(variant.guard),
                variant.binary.name,
                str(variant.binary.size_bytes),
                str(variant.launch.registers),
                str(variant.launch.shared_bytes),
                f"{variant.cost_ms:.0f}",
            )
    return table

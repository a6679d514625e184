"""`kernelfarm.compile_tilelang(program, ...)`: compiles a tile program of TileLang."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernelfarm.client.compile_model import connect
from kernelfarm.client.compile_triton import CompiledTriton, compile_user_kernels
from kernelfarm.client.farm.client import FarmClient, OnProgress
from kernelfarm.client.farm.compiled_program import CompiledProgram
from kernelfarm.client.tilelang.launch_grid import grid_of
from kernelfarm.client.tilelang.program import TileProgram
from kernelfarm.client.tilelang.read_program import read_program
from kernelfarm.client.tilelang.user_kernel import tile_kernel, warps_of
from kernelfarm.errors import TileProgramError
from kernelfarm.ir.triton.user_kernel import UserKernel
from kernelfarm.targets import target_facts


class CompiledTileProgram(CompiledTriton):
    """A tile program compiled for several targets.

    A launch passes the tensors in the order of the program's parameters, then its sizes, and
    `grid(sizes)` blocks of threads.
    """

    def __init__(
        self,
        program: TileProgram,
        kernel: UserKernel,
        programs: Sequence[CompiledProgram],
        client: FarmClient,
    ) -> None:
        super().__init__((kernel,), programs, client)
        self.tile_program = program

    @property
    def source(self) -> str:
        """The kernel in Triton's language that the farm compiled."""
        return self.kernel.source

    def grid(self, sizes: Mapping[str, int] | None = None) -> tuple[int, int, int]:
        """The blocks of a launch along x, y and z, for the values of the program's sizes.

        Raises:
            TileProgramError: a size has no value.
        """
        return grid_of(self.tile_program, sizes or {})


def compile_tilelang(
    program: Any,
    targets: Sequence[str],
    *,
    endpoint: str | None = None,
    timeout_s: float | None = None,
    on_progress: OnProgress | None = None,
) -> CompiledTileProgram:
    """A tile program, compiled by the farm for each target.

    `program` is a `T.prim_func` of an installed TileLang, a kernel that `tilelang.jit` compiled, or
    the text that `prim_func.script()` gives. Nothing of it is executed, and the farm needs neither
    TileLang nor a GPU.

    Raises:
        TileProgramError: the program has a form that is not accepted, or a target takes none.
        KernelfarmError: the farm does not answer or refuses; the message says why.
    """
    return compile_tile_program(
        read_program(program), targets, connect(endpoint, timeout_s), on_progress
    )


def compile_tile_program(
    program: TileProgram,
    targets: Sequence[str],
    client: FarmClient,
    on_progress: OnProgress | None = None,
) -> CompiledTileProgram:
    """A tile program that was read, compiled by the farm for each target.

    Raises:
        TileProgramError: a statement is not accepted, or a target takes none.
        KernelfarmError: the farm does not answer or refuses; the message says why.
    """
    if not targets:
        raise TileProgramError("no target; expected some, such as cuda:sm_90a or rocm:gfx942")
    by_warps: dict[int | None, list[str]] = {}
    for target in targets:
        by_warps.setdefault(_warps(program, target), []).append(target)
    compiled = [
        compile_user_kernels((tile_kernel(program, warps),), names, client, on_progress)
        for warps, names in by_warps.items()
    ]
    programs = [p for each in compiled for p in each.programs.values()]
    return CompiledTileProgram(program, compiled[0].kernel, programs, client)


def _warps(program: TileProgram, target: str) -> int | None:
    """The warps of a block; None if the target's chip has none."""
    facts = target_facts(target)
    if facts.gpu is not None:
        return warps_of(program, facts.gpu.warp_size)
    if facts.llvm is not None:
        return 1  # a thread of a processor computes a whole block
    if facts.triton is not None:
        return None
    raise TileProgramError(
        f"tile programs are not compiled for {target}; expected a target such as cuda:..., rocm:..."
        ", ascend:... or cpu:..."
    )

"""A tile program as a function of PyTorch's tensors, which compiled models may call."""

from __future__ import annotations

import ast
import hashlib
import linecache
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import torch

from kernelfarm.client.custom_operators.tile_program import TILE_PROGRAM
from kernelfarm.client.pytorch import private
from kernelfarm.client.pytorch.dtypes import dtype_to_torch
from kernelfarm.client.tilelang.launch_grid import grid_of, number_of
from kernelfarm.client.tilelang.program import Tensor, TileProgram
from kernelfarm.client.tilelang.read_program import read_program
from kernelfarm.client.tilelang.user_kernel import warps_of
from kernelfarm.client.tilelang.write_triton import write_triton
from kernelfarm.client.tilelang.written import written_params
from kernelfarm.errors import TileProgramError

_HEADER = (
    "import triton\nimport triton.language as tl\n"
    "from triton.language.extra import libdevice\n\n\n@triton.jit\n"
)


def tilelang_function(program: Any, *, outputs: Sequence[int] | None = None) -> TileFunction:
    """A tile program as a function of tensors.

    `program` is what `compile_tilelang` takes. `outputs` are the positions of the parameters that
    the function allocates and returns; by default those that `tilelang.jit` was given. The others
    are its arguments. A model that calls the function may be compiled with the backend
    `kernelfarm`, which lets the farm compile the kernel; elsewhere the installed Triton does it. On
    a processor, for which Triton has no compiler, the function runs in such a model alone.

    Raises:
        TileProgramError: the program has a form that is not accepted.
    """
    return TileFunction(read_program(program), outputs)


class TileFunction:
    """Launches a tile program on the device of its tensors; see `tilelang_function`."""

    def __init__(self, program: TileProgram, outputs: Sequence[int] | None = None) -> None:
        count = len(program.params)
        stated = program.outputs if outputs is None else tuple(outputs)
        if any(not -count <= position < count for position in stated):
            raise TileProgramError(f"outputs {list(stated)} of a program of {count} parameters")
        if len(set(position % count for position in stated)) >= count:
            raise TileProgramError(
                f"all {count} parameters of {program.name} are outputs; expected an argument, whose"
                " device is that of the launch"
            )
        self._program = program
        self._outputs = tuple(position % count for position in stated)
        self._source = write_triton(program)
        self._written = written_params(program)
        self._kernel = _jit(program, self._source) if find_spec("triton") else None
        warp_size = 64 if torch.version.hip else 32
        self._warps = warps_of(program, warp_size)

    def __call__(self, *args: torch.Tensor) -> Any:
        """Runs it; returns the output, a tuple of several, or None if it writes arguments alone.

        Raises:
            TileProgramError: other arguments than the program's parameters.
        """
        program, outputs = self._program, self._outputs
        taken = len(program.params) - len(outputs)
        if len(args) != taken:
            raise TileProgramError(f"{program.name} takes {taken} tensors, not {len(args)}")
        given = iter(args)
        tensors = [
            None if position in outputs else next(given) for position in range(len(program.params))
        ]
        sizes = self._sizes(tensors)
        for position in outputs:
            param = program.params[position]
            shape = [int(number_of(side, sizes)) for side in param.shape]
            tensors[position] = torch.empty(
                shape, dtype=dtype_to_torch(param.dtype), device=args[0].device
            )
        values = [sizes[name] for name in program.sizes]
        grid = grid_of(program, sizes)
        if self._kernel is not None and _has_device(args[0]):
            self._kernel[grid](*tensors, *values, num_warps=self._warps)
        else:
            self._run_on_processor(tensors, values, grid)
        made = [tensors[position] for position in outputs]
        return made[0] if len(made) == 1 else tuple(made) if made else None

    def _run_on_processor(
        self, tensors: list[torch.Tensor | None], sizes: list[int], grid: tuple[int, ...]
    ) -> None:
        """Replaces the outputs among the tensors by results, and stores the others in place."""
        results = TILE_PROGRAM(tensors, sizes, grid, self._source, self._written)
        for position, result in zip(self._written, results, strict=True):
            given = tensors[position]
            if position in self._outputs or given is None:
                tensors[position] = result
            else:
                given.copy_(result)

    def _sizes(self, tensors: Sequence[torch.Tensor | None]) -> dict[str, int]:
        """The values of the sizes, from the shapes of the arguments, which are checked."""
        sizes: dict[str, int] = {}
        for param, tensor in zip(self._program.params, tensors, strict=True):
            if tensor is None:
                continue
            for side, extent in zip(param.shape, tensor.shape, strict=False):
                if isinstance(side, ast.Name):
                    sizes.setdefault(side.id, extent)
        for param, tensor in zip(self._program.params, tensors, strict=True):
            if tensor is not None:
                _check(param, tensor, sizes)
        return sizes


def _check(param: Tensor, tensor: torch.Tensor, sizes: dict[str, int]) -> None:
    shape = [number_of(side, sizes) for side in param.shape]
    strides = [number_of(stride, sizes) for stride in param.strides]
    dtype = dtype_to_torch(param.dtype)
    is_laid_out = all(
        extent == 1 or own == stated
        for extent, own, stated in zip(shape, tensor.stride(), strides, strict=False)
    )
    if list(tensor.shape) != shape or tensor.dtype != dtype or not is_laid_out:
        raise TileProgramError(
            f"parameter {param.name}: a tensor of {tensor.dtype}, shape {list(tensor.shape)} and"
            f" strides {list(tensor.stride())}; expected {dtype}, {shape} and {strides}"
        )


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator] # torch has no type
def _has_triton() -> bool:
    return bool(private._triton.has_triton())


def _has_device(tensor: torch.Tensor) -> bool:
    """True if Triton launches kernels on the device of a tensor."""
    return tensor.device.type != "cpu" or _has_triton()


def _jit(program: TileProgram, source: str) -> Any:
    """The kernel as an object of `triton.jit`; its text is our own, made from a syntax tree."""
    text = f"{_HEADER}{source}\n"
    file_name = f"<tile program {program.name} {hashlib.sha256(text.encode()).hexdigest()[:16]}>"
    linecache.cache[file_name] = (len(text), None, text.splitlines(keepends=True), file_name)
    namespace: dict[str, Any] = {"__name__": f"kernelfarm_tile_program_{program.name}"}
    exec(compile(text, file_name, "exec"), namespace)
    return namespace[program.name]

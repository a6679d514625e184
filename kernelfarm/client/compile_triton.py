"""`kernelfarm.compile_triton(fn, ...)`: compiles a user's Triton kernel alone, for any targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelfarm.client.compile_model import connect
from kernelfarm.client.farm.client import FarmClient, OnProgress
from kernelfarm.client.farm.compiled_program import CompiledArtifact, CompiledProgram
from kernelfarm.client.programs.saved_files import save_programs
from kernelfarm.client.triton.kernel_source import kernel_source
from kernelfarm.client.triton.signatures import user_kernel
from kernelfarm.dtypes import DType
from kernelfarm.errors import CallerError, UserKernelError
from kernelfarm.ir.algebra.expr import ONE, symbol
from kernelfarm.ir.graph_ir import Arg, Graph, Input, Node, Ref, SizeSymbol, TensorType
from kernelfarm.ir.triton.node import kernel_arg
from kernelfarm.ir.triton.user_kernel import USER_KERNEL_OP, Pointer, UserKernel

_FLOATS = (DType.F32, DType.F64)


class CompiledTriton:
    """A user's kernel compiled for several targets; `programs` maps each target to its program."""

    def __init__(
        self, kernel: UserKernel, programs: Sequence[CompiledProgram], client: FarmClient
    ) -> None:
        self.kernel = kernel
        self.programs: dict[str, CompiledProgram] = {p.target: p for p in programs}
        self._client = client

    def variants(self, target: str) -> tuple[CompiledArtifact, ...]:
        """The kernel's artifacts for a target: the one for aligned buffers, then the general one.

        Raises:
            CallerError: the kernel was not compiled for this target.
        """
        program = self.programs.get(target)
        if program is None:
            raise CallerError(
                f"not compiled for {target}; expected one of {', '.join(self.programs)}"
            )
        return tuple(program.kernels[0])

    def binary(self, target: str) -> bytes:
        """The general variant's cubin or hsaco.

        Raises:
            CallerError: the kernel was not compiled for this target.
        """
        digest = self.variants(target)[-1].binary.sha256
        return self._client.read_blobs([digest])[digest]

    def texts(self, target: str) -> dict[str, str]:
        """The general variant's text stages by name, source first.

        Raises:
            CallerError: the kernel was not compiled for this target.
        """
        stages = [stage for stage in self.variants(target)[-1].stages if stage.is_text]
        contents = self._client.read_blobs([stage.sha256 for stage in stages])
        return {stage.name: contents[stage.sha256].decode("utf-8") for stage in stages}

    def save(self, directory: Path | str) -> Path:
        """Writes every artifact and stage below the directory; returns the manifest's path."""
        return save_programs(self.programs.values(), self._client, Path(directory))


def compile_triton(  # noqa: PLR0913 (the public entry point: all but four have defaults)
    function: Any,
    signature: Mapping[str, str],
    constants: Mapping[str, Any],
    targets: Sequence[str],
    *,
    options: Mapping[str, int] | None = None,
    endpoint: str | None = None,
    timeout_s: float | None = None,
    on_progress: OnProgress | None = None,
) -> CompiledTriton:
    """A `@triton.jit` function, compiled by the farm for each target.

    `signature` maps parameters to types as Triton names them: `*fp16`, `i32`, or `i32:16` for a
    multiple of 16. `constants` maps the others to values. `options` are Triton's: `num_warps`,
    `num_stages`, `maxnreg`, `waves_per_eu`, `matrix_instr_nonkdim`, `kpack`. Nothing is executed on
    this machine, and the farm needs no GPU.

    Raises:
        UserKernelError: the kernel is outside of the language, or the signature does not fit.
        KernelfarmError: the farm does not answer or refuses; the message says why.
    """
    kernel = user_kernel(kernel_source(function), signature, constants, options or {})
    return compile_user_kernel(kernel, targets, connect(endpoint, timeout_s), on_progress)


def compile_user_kernel(
    kernel: UserKernel,
    targets: Sequence[str],
    client: FarmClient,
    on_progress: OnProgress | None = None,
) -> CompiledTriton:
    """A user's kernel, compiled by the farm for each target.

    Raises:
        UserKernelError: no target is named.
        KernelfarmError: the farm does not answer or refuses; the message says why.
    """
    if not targets:
        raise UserKernelError("no target; expected some, such as cuda:sm_90a or rocm:gfx942")
    programs = client.compile(graph_of(kernel), list(targets), on_progress=on_progress)
    return CompiledTriton(kernel, programs, client)


def graph_of(kernel: UserKernel) -> Graph:
    """The graph of a kernel alone: its only node has no grid, because the caller launches it."""
    inputs: list[Input] = []
    sizes: list[SizeSymbol] = []
    args: list[Arg] = []
    for param in kernel.launched:
        if not isinstance(param, Pointer) and param.dtype in _FLOATS:
            args.append(0.0)  # any: each launch passes its own
            continue
        name = f"s{len(sizes)}"
        sizes.append(SizeSymbol(name, 0, None))
        if isinstance(param, Pointer):
            args.append(Ref(len(inputs)))
            kind: TensorType | str = TensorType(param.dtype, (symbol(name),), (ONE,))
        else:
            args.append(symbol(name))
            kind = name
        inputs.append(Input(len(inputs), kind, param.name))
    attrs: tuple[tuple[str, Arg], ...] = (
        ("configurations", 1),
        ("grid", ()),
        ("kernel", kernel_arg(kernel)),
        ("writes", ()),
    )
    node = Node(USER_KERNEL_OP, tuple(args), attrs, (), ())
    return Graph("aten", tuple(sizes), tuple(inputs), (node,), (), ())

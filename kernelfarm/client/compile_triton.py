"""`kernelfarm.compile_triton(fn, ...)`: compiles a user's Triton kernel alone, for any targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelfarm.client.compile_model import connect
from kernelfarm.client.farm.client import FarmClient, OnProgress
from kernelfarm.client.farm.compiled_program import CompiledArtifact, CompiledProgram
from kernelfarm.client.programs.saved_files import save_programs
from kernelfarm.client.triton.configurations import configurations_of
from kernelfarm.client.triton.kernel_source import kernel_source
from kernelfarm.client.triton.signatures import user_kernel
from kernelfarm.dtypes import DType
from kernelfarm.errors import CallerError, UserKernelError
from kernelfarm.ir.algebra.expr import ONE, symbol
from kernelfarm.ir.graph_ir import Arg, Graph, Input, Node, Ref, SizeSymbol, TensorType
from kernelfarm.ir.program_ir import ExternCall
from kernelfarm.ir.triton.node import kernel_arg
from kernelfarm.ir.triton.user_kernel import (
    USER_KERNEL_OP,
    Configuration,
    FixedParam,
    Pointer,
    UserKernel,
)

_FLOATS = (DType.F32, DType.F64)


@dataclass(frozen=True, slots=True)
class CompiledConfiguration:
    """A kernel as one configuration compiles it, and its artifacts.

    The first one is for aligned buffers; the last one may always be launched.
    """

    kernel: UserKernel
    variants: tuple[CompiledArtifact, ...]


class CompiledTriton:
    """A user's kernel compiled for several targets; `programs` maps each target to its program.

    `kernels` has the kernel for each configuration in order.
    """

    def __init__(
        self, kernels: Sequence[UserKernel], programs: Sequence[CompiledProgram], client: FarmClient
    ) -> None:
        self.kernels = tuple(kernels)
        self.programs: dict[str, CompiledProgram] = {p.target: p for p in programs}
        self._client = client

    @property
    def kernel(self) -> UserKernel:
        """The kernel in its first configuration."""
        return self.kernels[0]

    def configurations(self, target: str) -> tuple[CompiledConfiguration, ...]:
        """The configurations that compile for a target, in order; at least one.

        Raises:
            CallerError: the kernel was not compiled for this target.
        """
        program = self.programs.get(target)
        if program is None:
            raise CallerError(
                f"not compiled for {target}; expected one of {', '.join(self.programs)}"
            )
        (step,) = (step for step in program.plan.steps if isinstance(step, ExternCall))
        return tuple(
            CompiledConfiguration(self.kernels[c.configuration], program.kernels[c.kernel])
            for c in step.choices
        )

    def variants(self, target: str) -> tuple[CompiledArtifact, ...]:
        """The first configuration's artifacts: the one for aligned buffers, then the general one.

        Raises:
            CallerError: the kernel was not compiled for this target.
        """
        return self.configurations(target)[0].variants

    def binary(self, target: str, configuration: int = 0) -> bytes:
        """The general variant's cubin or hsaco, of one of the target's `configurations`.

        Raises:
            CallerError: the kernel was not compiled for this target, or for fewer configurations.
        """
        digest = self._general(target, configuration).binary.sha256
        return self._client.read_blobs([digest])[digest]

    def texts(self, target: str, configuration: int = 0) -> dict[str, str]:
        """The general variant's text stages by name, source first, of one of the `configurations`.

        Raises:
            CallerError: the kernel was not compiled for this target, or for fewer configurations.
        """
        stages = [s for s in self._general(target, configuration).stages if s.is_text]
        contents = self._client.read_blobs([stage.sha256 for stage in stages])
        return {stage.name: contents[stage.sha256].decode("utf-8") for stage in stages}

    def _general(self, target: str, configuration: int) -> CompiledArtifact:
        found = self.configurations(target)
        if not 0 <= configuration < len(found):
            raise CallerError(
                f"configuration {configuration} of {len(found)} for {target}; expected one of them"
            )
        return found[configuration].variants[-1]

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
    """A `@triton.jit` function, compiled by the farm for each target; all its configurations, too.

    `signature` maps parameters to types as Triton names them: `*fp16`, `i32`, or `i32:16` for a
    multiple of 16. `constants` maps the others to values. `options` are Triton's: `num_warps`,
    `num_stages`, `maxnreg`, `waves_per_eu`, `matrix_instr_nonkdim`, `kpack`. What they state
    replaces what the configurations of `@triton.autotune` state. A configuration that a target
    cannot take is left out for it. Nothing is executed on this machine, and the farm needs no GPU.

    Raises:
        UserKernelError: the kernel is outside of the language, or the signature does not fit.
        KernelfarmError: the farm does not answer or refuses; the message says why.
    """
    kernels = configured_kernels(function, signature, constants, options or {})
    return compile_user_kernels(kernels, targets, connect(endpoint, timeout_s), on_progress)


def configured_kernels(
    function: Any,
    signature: Mapping[str, str],
    constants: Mapping[str, Any],
    options: Mapping[str, int],
) -> tuple[UserKernel, ...]:
    """The kernels of a function of `triton.jit`, one for each distinct configuration, in order.

    Raises:
        UserKernelError: see `compile_triton`.
    """
    source = kernel_source(function)
    kernels = [
        user_kernel(source, signature, {**own, **constants}, {**stated, **options})
        for own, stated in configurations_of(function, source)
    ]
    return tuple({kernel.name: kernel for kernel in kernels}.values())


def compile_user_kernels(
    kernels: Sequence[UserKernel],
    targets: Sequence[str],
    client: FarmClient,
    on_progress: OnProgress | None = None,
) -> CompiledTriton:
    """A user's kernel in one or more configurations, compiled by the farm for each target.

    The kernels differ in the values of constants and in options alone.

    Raises:
        UserKernelError: no target is named.
        KernelfarmError: the farm does not answer or refuses; the message says why.
    """
    if not targets:
        raise UserKernelError("no target; expected some, such as cuda:sm_90a or rocm:gfx942")
    programs = client.compile(graph_of(kernels), list(targets), on_progress=on_progress)
    return CompiledTriton(kernels, programs, client)


def graph_of(kernels: Sequence[UserKernel]) -> Graph:
    """The graph of a kernel alone: its only node has no grid, because the caller launches it."""
    kernel = kernels[0]
    further = [
        Configuration(
            tuple((p.name, p.value) for p in found.params if isinstance(p, FixedParam)),
            found.options,
        )
        for found in kernels[1:]
    ]
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
        ("grids", ()),
        ("kernel", kernel_arg(kernel, further)),
        ("key", ()),
        ("writes", ()),
    )
    node = Node(USER_KERNEL_OP, tuple(args), attrs, (), ())
    return Graph("aten", tuple(sizes), tuple(inputs), (node,), (), ())

"""The program: distinct kernels, and the plan that runs them.

Grammar:

    Program ::= target, kernels: [Kernel], user_kernels: [UserKernel], plan: Plan
    Plan    ::= symbols: [SymbolSource], buffers: [Buffer], arena, steps: [Step], outputs: [Output]
    Step    ::= Launch(kernel, buffers, sizes) | ExternCall(node, op, args, results, choices)
              | DrawSeeds(buffers)
    choices ::= [KernelChoice(kernel, configuration)]
    Output  ::= TensorView | Expr | None
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Union

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.triton.user_kernel import UserKernel

ARENA_ALIGNMENT_BYTES = 64
"""The alignment of the arena and of each temporary: a cache line, and the widest vector load."""


class BufferKind(enum.Enum):
    """The kind of a buffer; the value is the prefix of its name in the plan."""

    INPUT = "in"
    OUTPUT = "out"
    TEMPORARY = "tmp"
    EXTERN = "ext"
    CONSTANT = "const"


@dataclass(frozen=True, slots=True)
class SymbolSource:
    """A size symbol and the input that gives its value: an extent, or the integer if axis is -1."""

    symbol: str
    input: int
    axis: int


@dataclass(frozen=True, slots=True)
class Buffer:
    """Storage of a plan, by name.

    `position` is for inputs, outputs and constants, `offset_bytes` for temporaries. An input is
    only read, unless an output is a view of it; that output then updates the input. A temporary
    that `is_apart` may have memory of its own from its first to its last use, instead of its bytes
    of the arena, which are behind those of all other temporaries.
    """

    name: str
    kind: BufferKind
    dtype: DType
    size_elems: Expr
    position: int = 0
    offset_bytes: Expr | None = None
    is_apart: bool = False


@dataclass(frozen=True, slots=True)
class TensorView:
    """A strided view of a buffer.

    Units: sizes, strides and offset in elements.
    """

    buffer: str
    dtype: DType
    sizes: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    offset_elems: Expr


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch of a kernel: buffers in the order of its parameters, values of its size symbols."""

    kernel: int
    buffers: tuple[str, ...]
    sizes: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """A kernel that a client may launch for a node, and its number among the configurations."""

    kernel: int
    configuration: int


@dataclass(frozen=True, slots=True)
class ExternCall:
    """A step of the client's framework: captured node number `node`, on other tensors.

    `results` has one entry for each result of the node, None for an unused one. A convolution
    whose `args` lack the last one runs without its bias. If there are `choices`, the node is a
    user's kernel, and the client launches one of them.
    """

    node: int
    op: str
    args: tuple[TensorView, ...]
    results: tuple[TensorView | None, ...]
    is_contraction: bool
    choices: tuple[KernelChoice, ...] = ()


@dataclass(frozen=True, slots=True)
class DrawSeeds:
    """A step in which the client's framework draws 64 random bits for each buffer of one i64.

    They are drawn from the device's default generator, so that the framework's seed determines
    them. A program has at most one such step, which runs in every call.
    """

    buffers: tuple[str, ...]


Step = Union[Launch, ExternCall, DrawSeeds]
Output = Union[TensorView, Expr, None]


@dataclass(frozen=True, slots=True)
class Plan:
    """How to run a program; kernel indices refer to `kernel_names`."""

    target: str
    symbols: tuple[SymbolSource, ...]
    buffers: tuple[Buffer, ...]
    arena_bytes: Expr
    kernel_names: tuple[str, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Output, ...]
    kernel_keys: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Program:
    """Distinct kernels in the order of the plan's kernel names, users' kernels last; their plan."""

    kernels: tuple[Kernel, ...]
    plan: Plan
    user_kernels: tuple[UserKernel, ...] = ()

    @property
    def all_kernels(self) -> tuple[Kernel | UserKernel, ...]:
        """The kernels of both kinds, in the order of the plan's kernel names."""
        return (*self.kernels, *self.user_kernels)


def updated_inputs(plan: Plan) -> frozenset[str]:
    """The names of the input buffers that the program writes: an output is a view of each."""
    inputs = {b.name for b in plan.buffers if b.kind is BufferKind.INPUT}
    views = (output for output in plan.outputs if isinstance(output, TensorView))
    return frozenset(view.buffer for view in views if view.buffer in inputs)

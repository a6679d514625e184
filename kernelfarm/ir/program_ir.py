"""The loop program: distinct kernels and the plan that runs them.

Grammar:

    Program ::= target, kernels: [Kernel], plan: Plan
    Plan    ::= symbols: [SymbolSource], buffers: [Buffer], arena, steps: [Step], outputs: [Output]
    Step    ::= Launch(kernel, buffers, sizes) | ExternCall(node, op, args, results)
              | DrawSeeds(buffers)
    Output  ::= TensorView | Expr | None
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Union

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.loop_ir import Kernel

ARENA_ALIGNMENT_BYTES = 64
"""Alignment of the arena and of each temporary: a cache line, and the widest vector load."""


class BufferKind(enum.Enum):
    """What a buffer is; the value begins its name in the plan."""

    INPUT = "in"
    OUTPUT = "out"
    TEMPORARY = "tmp"
    EXTERN = "ext"
    CONSTANT = "const"


@dataclass(frozen=True, slots=True)
class SymbolSource:
    """A size symbol and the input that tells it; `axis` -1 means that the input is the integer."""

    symbol: str
    input: int
    axis: int


@dataclass(frozen=True, slots=True)
class Buffer:
    """Storage; `position` for inputs, outputs and constants, `offset_bytes` for temporaries.

    An input is only read, unless an output lies in it: then it is what that output updates.
    """

    name: str
    kind: BufferKind
    dtype: DType
    size_elems: Expr
    position: int = 0
    offset_bytes: Expr | None = None


@dataclass(frozen=True, slots=True)
class TensorView:
    """A strided view of a buffer, all in elements."""

    buffer: str
    dtype: DType
    sizes: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    offset_elems: Expr


@dataclass(frozen=True, slots=True)
class Launch:
    """Launch a kernel: buffers in the order of its parameters, values of its size symbols."""

    kernel: int
    buffers: tuple[str, ...]
    sizes: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class ExternCall:
    """Let the client's framework run captured node number `node` on other tensors.

    `results` has one entry for each result of the node; None means that nobody reads it.
    """

    node: int
    op: str
    args: tuple[TensorView, ...]
    results: tuple[TensorView | None, ...]
    is_contraction: bool


@dataclass(frozen=True, slots=True)
class DrawSeeds:
    """Let the client's framework draw 64 random bits for each buffer, all of one i64 element.

    They come from the default generator of the device, so that the framework's own seeding governs
    them; a program has at most one such step, which every run does anew.
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
    """Distinct kernels, in the order of the plan's kernel names, and their plan."""

    kernels: tuple[Kernel, ...]
    plan: Plan


def updated_inputs(plan: Plan) -> frozenset[str]:
    """Names of the input buffers that the program writes: an output lies in each of them."""
    inputs = {b.name for b in plan.buffers if b.kind is BufferKind.INPUT}
    views = (output for output in plan.outputs if isinstance(output, TensorView))
    return frozenset(view.buffer for view in views if view.buffer in inputs)

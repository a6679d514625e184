"""The loop kernel: a nest over outer and reduction axes with a straight-line SSA body.

Grammar:

    Kernel    ::= name, params: [Param], sizes: [SizeSymbol], outer: [Axis], reduction: [Axis],
                  body: [Statement], comments, hints: [KernelHint]
    Statement ::= Load(param, index, mask?, other?)   -> value   reads param[index]
                | Literal(dtype, value)               -> value
                | IndexValue(dtype, expr)             -> value   an index expression as a value
                | Compute(op, operands, dtype)        -> value   a scalar Prims operation
                | Reduce(op, operand, dtype)          -> value   over all reduction axes
                | Scan(op, operand, dtype)            -> value   over the points up to this one
                | Sort(operand, descending)           -> value   index of the element of this rank
                | Indirect(symbol, value, extent)     -> no value; later indices may use `symbol`
                | Store(param, index, value, mode)    -> no value

Statement number N defines value N. A value *varies* over the reduction axes if its index or an
operand does. The value of a Reduce does not vary; the value of a Scan or Sort always does. Scans,
sorts and arg-reductions enumerate the reduction axes row-major, so the meaning of a kernel depends
on the order of these axes. A Store happens once for each outer point if neither its value nor its
index varies. Positions are in elements from the start of the buffer. A kernel does not load from a
buffer that it stores to, unless the parameter is INOUT; load and store of an element then happen at
the same point. Several stores, of one kernel or of several, may go to one buffer if no two of them
name the same element: the slices of a value.

A Store scatters if its mode is not SET or its index uses an indirect symbol. Several points may
then name one element, and elements that no point names stay unchanged. Its parameter is INOUT and
holds the old elements when the kernel starts, and no other statement names it. Updates happen in
the row-major order of (outer, reduction) points, so the last SET takes effect. If a target
guarantees no order, its backend says so in a note.

A guided Reduce (`GUIDES`) is a sum over points relative to another reduction of the same operand;
both are computed in one pass.

Arithmetic on f16 and bf16 happens in f32: a load of narrow floats is followed by a `convert` to
f32, and a store is preceded by a `convert` back, so that emitters never compute in a narrow type.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Union

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.graph_ir import SizeSymbol
from kernelfarm.ir.hints import KernelHint


class Access(enum.Enum):
    """How a kernel uses a buffer."""

    READ = "in"
    WRITE = "out"
    READ_WRITE = "inout"


@dataclass(frozen=True, slots=True)
class Param:
    """A buffer parameter: its name (`in0`, `out0`, `inout0`), element type, size and access."""

    name: str
    dtype: DType
    size_elems: Expr
    access: Access


@dataclass(frozen=True, slots=True)
class Axis:
    """A loop variable that runs from 0 to extent-1."""

    name: str
    extent: Expr


@dataclass(frozen=True, slots=True)
class Load:
    """The element at `index`; if `mask` is false, `other`, without reading memory."""

    param: str
    index: Expr
    mask: int | None = None
    other: int | None = None


@dataclass(frozen=True, slots=True)
class Literal:
    """A number of a type; bools are 0 or 1."""

    dtype: DType
    value: float | int


@dataclass(frozen=True, slots=True)
class IndexValue:
    """An index expression as a value (i32 or i64)."""

    dtype: DType
    expr: Expr


@dataclass(frozen=True, slots=True)
class Compute:
    """A scalar operation of `kernelfarm.ir.prims` on earlier values."""

    op: str
    operands: tuple[int, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Reduce:
    """A reduction over all reduction axes; arg-reductions give the first match's flat index."""

    op: str
    operand: int
    dtype: DType


@dataclass(frozen=True, slots=True)
class Scan:
    """The reduction over the points up to and including this one, in row-major order.

    `cummax_index` and `cummin_index` give the flat index (i64) of the last match so far.
    """

    op: str
    operand: int
    dtype: DType


@dataclass(frozen=True, slots=True)
class Sort:
    """The flat index (i64) of the element whose rank is this point's own flat index.

    The row consists of the operand's values at all points of the reduction axes, row-major. Equal
    elements keep their order. NaN is above every number: last, or first if `descending`. The sorted
    row itself is a load at these indices, so that one statement has one value.
    """

    operand: int
    descending: bool

    @property
    def dtype(self) -> DType:
        """The element type of the value."""
        return DType.I64


@dataclass(frozen=True, slots=True)
class Indirect:
    """An index read from memory: wrapped if negative, checked against the extent.

    With an index outside -extent..extent-1 the kernel reports failure, and the access is clamped,
    so that no other memory is touched.
    """

    symbol: str
    value: int
    extent: Expr


class StoreMode(enum.Enum):
    """How a store changes its element; MIN and MAX of floats propagate NaN."""

    SET = "set"
    ADD = "add"
    MUL = "mul"
    MIN = "min"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class Store:
    """Writes a value to the element at `index`, or combines it with the element."""

    param: str
    index: Expr
    value: int
    mode: StoreMode = StoreMode.SET


Statement = Union[Load, Literal, IndexValue, Compute, Reduce, Scan, Sort, Indirect, Store]

GUIDES = {"softmax_sum": "amax", "welford_m2": "sum"}
"""Guided reductions, and the reduction of the same operand that guides each.

`softmax_sum` is the sum of exp(x - amax), `welford_m2` the sum of (x - sum / count)^2, with the
guide of the whole row; both are 0 over no points. An emitter computes the guide in the same loop
and corrects the sum when the guide changes. A row with an infinity or NaN gives NaN, except that
-inf below the maximum adds nothing to a `softmax_sum`.

Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Welford, "Note on
a method for calculating corrected sums of squares and products", 1962; Chan, Golub and LeVeque,
"Updating formulae and a pairwise algorithm for computing sample variances", 1979.
"""

REDUCE_OPS = ("sum", "prod", "amax", "amin", "any", "all", "argmax", "argmin", *GUIDES)


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel; its name and comments are debug text, which is part of no key.

    `hints` are sorted by name, one for each name; they change how it is compiled.
    """

    name: str
    params: tuple[Param, ...]
    sizes: tuple[SizeSymbol, ...]
    outer: tuple[Axis, ...]
    reduction: tuple[Axis, ...]
    body: tuple[Statement, ...]
    comments: tuple[str, ...] = ()
    hints: tuple[KernelHint, ...] = ()

    def param(self, name: str) -> Param:
        """The parameter with a name."""
        return next(p for p in self.params if p.name == name)


def operands_of(statement: Statement) -> tuple[int, ...]:
    """The values that a statement uses directly, not through indirect symbols."""
    match statement:
        case Load(mask=mask, other=other):
            return tuple(v for v in (mask, other) if v is not None)
        case Compute(operands=operands):
            return operands
        case Reduce(operand=operand) | Scan(operand=operand) | Sort(operand=operand):
            return (operand,)
        case Indirect(value=value) | Store(value=value):
            return (value,)
        case _:
            return ()


def needed_statements(kernel: Kernel, roots: Iterable[int]) -> list[int]:
    """The numbers of the roots and of the statements from which they are computed, in order."""
    needed: set[int] = set()
    pending = list(roots)
    while pending:
        number = pending.pop()
        if number not in needed:
            needed.add(number)
            pending.extend(operands_of(kernel.body[number]))
    return sorted(needed)


def index_of(statement: Statement) -> Expr | None:
    """The index expression of a statement, None if it has none."""
    match statement:
        case Load(index=index) | Store(index=index):
            return index
        case IndexValue(expr=expr):
            return expr
        case _:
            return None


def varying_values(kernel: Kernel) -> frozenset[int]:
    """The numbers of the statements whose value (or store) varies over the reduction axes."""
    axes = {axis.name for axis in kernel.reduction}
    varying: set[int] = set()
    symbols = set(axes)
    for number, statement in enumerate(kernel.body):
        if isinstance(statement, Reduce):
            continue
        index = index_of(statement)
        by_index = index is not None and not symbols.isdisjoint(index.symbols)
        varies = by_index or any(v in varying for v in operands_of(statement))
        if varies or isinstance(statement, Scan | Sort):
            varying.add(number)
            if isinstance(statement, Indirect):
                symbols.add(statement.symbol)
    return frozenset(varying)


def is_ordered_reduction(statement: object) -> bool:
    """True if the statement's meaning depends on the order of the reduction axes."""
    if isinstance(statement, Scan | Sort):
        return True
    return isinstance(statement, Reduce) and statement.op in ("argmax", "argmin")


def scattering_stores(kernel: Kernel) -> frozenset[int]:
    """The numbers of the stores that scatter."""
    indirect = {s.symbol for s in kernel.body if isinstance(s, Indirect)}
    return frozenset(
        number
        for number, s in enumerate(kernel.body)
        if isinstance(s, Store)
        and (s.mode is not StoreMode.SET or not indirect.isdisjoint(s.index.symbols))
    )

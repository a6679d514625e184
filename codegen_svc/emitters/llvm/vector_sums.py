"""Sums over the terms of rows in vectors: products of few rows by weights of integers.

A step of the loop over terms takes those of some vectors. It computes the weights of a result from
their integers once, and adds their products with the terms of all rows of the other matrix. If
these rows are many, a unit has some neighbouring results, so that a step reads the rows once for
all of them.

A float that depends on four bits of a byte, and besides them on nothing that differs between the
terms of a vector, is a table of 16 lanes: it is computed once for each value that the bits may
have, and the bits of each lane choose. So a weight of four bits takes a shift and a permutation,
whatever is computed from it.
"""

from __future__ import annotations

from dataclasses import dataclass

from codegen_svc.emitters.llvm.schedule import value_dtype
from codegen_svc.emitters.llvm.vector_loads import (
    BYTES,
    WORD_BYTES,
    VectorLoad,
    varying_between_lanes,
    vector_loads,
)
from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.loop_ir import (
    Axis,
    Compute,
    Kernel,
    Literal,
    Load,
    Reduce,
    Scan,
    Sort,
    Statement,
    Store,
    StoreMode,
    operands_of,
)

BLOCK = "result.block"
"""The results of a unit. No axis of a kernel has this name."""
TABLE_LANES = 16
INSTRUCTIONS = {
    **{"add": "fadd", "sub": "fsub", "mul": "fmul", "bit_and": "and", "bit_or": "or"},
    **{"shl": "shl", "shr_arith": "ashr"},
}
"""Instructions for vectors of f32 and of integers."""
_MOST_SUMS = {512: 16}
_FEW_SUMS = 8
"""Vectors of running sums in registers, of 32 with AVX-512, else of 16 or more."""
_MOST_VECTORS = 4
"""Vectors of a step that are added to sums of their own: each sum waits for the one before."""
_MOST_TOGETHER = 4
"""Results of a unit. In a loop, 8 take 1.4 to 1.5 times as long: the rows of their weights are as
far from each other as lines of one set of a cache."""
_CACHED_BYTES = 32768
"""More bytes of rows do not stay in a first-level cache beside weights."""
_MOST_STATEMENTS, _MOST_DEPTH = 512, 64
"""Of the terms: a step has them for each vector and result, and each waits for its operands."""
_COUNTED = (*BYTES, DType.I16, DType.I32)
_FLOATS = (DType.F32, DType.F16, DType.BF16)
_NUMBERS = (*_COUNTED, *_FLOATS)
_FLOAT_OPS = frozenset(("add", "sub", "mul"))
_SHIFTS = frozenset(("shl", "shr_arith"))
_NIBBLE, _NIBBLE_BITS = 15, 4


@dataclass(frozen=True, slots=True)
class VectorSums:
    """The `sums` of a kernel, by number, over `terms` in vectors of so many `lanes`.

    A unit has `together` neighbours of the axis `results`, in a loop if it `has_loop`, and a step
    of the loop over terms has so many `vectors`. `loads` are the loads of the terms, and `varying`
    the values that differ between the lanes of a vector. Memory is asked ahead for what the loads
    in `fetched` read.
    """

    terms: Axis
    results: Axis
    lanes: int
    vectors: int
    together: int
    has_loop: bool
    sums: tuple[int, ...]
    loads: dict[int, VectorLoad]
    varying: frozenset[int]
    fetched: tuple[int, ...]

    @property
    def vector_bytes(self) -> int:
        """The size of a vector of f32."""
        return WORD_BYTES * self.lanes

    @property
    def units(self) -> Axis:
        """The axis of the units, in place of the one of results."""
        return Axis(BLOCK, self.results.extent // self.together)


@dataclass(frozen=True, slots=True)
class Nibble:
    """Four bits of a byte that a load gives: those above `shift` others."""

    load: int
    shift: int


def vector_sums(kernel: Kernel, vector_bits: int) -> VectorSums | None:
    """How a processor sums a kernel's terms in vectors; None if it is no such kernel."""
    lanes = vector_bits // (8 * WORD_BYTES)
    if len(kernel.reduction) != 1 or not kernel.outer or not _are_plain_sums(kernel):
        return None
    (terms,), results = kernel.reduction, kernel.outer[-1]
    if not terms.extent.is_constant or terms.extent.constant % lanes:
        return None
    inside = _inside(kernel)
    if len(inside) > _MOST_STATEMENTS or _depth(kernel, inside) > _MOST_DEPTH:
        return None
    loads = vector_loads(kernel, inside, terms, lanes)
    varying = None if loads is None else _varying(kernel, inside, loads)
    if loads is None or varying is None:
        return None
    integers = [n for n in loads if n in varying and _is_stored_integer(kernel, n, results)]
    if not integers:
        return None
    sums = tuple(n for n, s in enumerate(kernel.body) if isinstance(s, Reduce))
    has_parts = any(_is_added(kernel.body[number]) for number in varying)
    most = _MOST_SUMS.get(vector_bits, _FEW_SUMS)
    are_cached = _row_bytes(kernel, loads, varying) <= _CACHED_BYTES
    together = 1 if are_cached else _divisor(results.extent, _MOST_TOGETHER)
    if not has_parts:
        together = min(together, _divisor(results.extent, max(1, most // len(sums))))
    vectors = min(_MOST_VECTORS, max(1, most // (together * len(sums))))
    return VectorSums(
        terms=terms,
        results=results,
        lanes=lanes,
        vectors=1 if has_parts else _divisor(terms.extent // lanes, vectors),
        together=together,
        has_loop=has_parts and together > 1,
        sums=sums,
        loads=loads,
        varying=varying,
        fetched=tuple({loads[number].base: number for number in integers}.values()),
    )


def nibble_of(kernel: Kernel, number: int) -> Nibble | None:
    """The four bits of a loaded byte that decide a value, if it is one operation from the byte."""
    statement = kernel.body[number]
    if not isinstance(statement, Compute) or statement.op not in (*_SHIFTS, "bit_and"):
        return None
    loaded, other = statement.operands
    amount = kernel.body[other]
    if not isinstance(amount, Literal) or not isinstance(kernel.body[loaded], Load):
        return None
    if value_dtype(kernel, loaded) not in BYTES:
        return None
    value = int(amount.value)
    if statement.op == "bit_and":
        return Nibble(loaded, 0) if 0 <= value <= _NIBBLE else None
    if value < _NIBBLE_BITS:
        return None
    return Nibble(loaded, 0 if statement.op == "shl" else _NIBBLE_BITS)


def _divisor(extent: Expr, most: int) -> int:
    """The largest number up to `most` that divides an extent."""
    if not extent.is_constant:
        return 1
    return next(number for number in range(most, 0, -1) if extent.constant % number == 0)


def _are_plain_sums(kernel: Kernel) -> bool:
    """True if all reductions are sums in f32, behind which all is stored once."""
    (terms,) = kernel.reduction
    reduced = [s for s in kernel.body if isinstance(s, Reduce)]
    if not all(s.op == "sum" and s.dtype is DType.F32 for s in reduced):
        return False
    if any(isinstance(s, Scan | Sort) for s in kernel.body):
        return False
    stores = [s for s in kernel.body if isinstance(s, Store)]
    return all(s.mode is StoreMode.SET and terms.name not in s.index.symbols for s in stores)


def _inside(kernel: Kernel) -> list[int]:
    """The statements that the terms of the sums need, in order."""
    found: set[int] = set()
    pending = [used for s in kernel.body if isinstance(s, Reduce) for used in operands_of(s)]
    while pending:
        number = pending.pop()
        if number not in found:
            found.add(number)
            pending += operands_of(kernel.body[number])
    return sorted(found)


def _depth(kernel: Kernel, inside: list[int]) -> int:
    """The most statements of which each is an operand of the next one."""
    depths: dict[int, int] = {}
    for number in inside:
        depths[number] = 1 + max((depths[o] for o in operands_of(kernel.body[number])), default=0)
    return max(depths.values(), default=0)


def _varying(
    kernel: Kernel, inside: list[int], loads: dict[int, VectorLoad]
) -> frozenset[int] | None:
    """The values that differ between the lanes of a vector; None if one has no instructions."""
    found = set(varying_between_lanes(loads))
    for number in inside:
        statement = kernel.body[number]
        if not isinstance(statement, Load | Compute | Literal):
            return None
        if not found.isdisjoint(operands_of(statement)):
            found.add(number)
        if number in found and not _has_instructions(kernel, statement):
            return None
    return frozenset(found)


def _has_instructions(kernel: Kernel, statement: Statement) -> bool:
    """True if there are instructions for vectors of a value."""
    if isinstance(statement, Load):
        return kernel.param(statement.param).dtype in _NUMBERS
    if not isinstance(statement, Compute):
        return False
    if statement.op == "convert":
        types = value_dtype(kernel, statement.operands[0]), statement.dtype
        return types[0] in _NUMBERS and types[1] in _FLOATS
    if statement.op in _FLOAT_OPS:
        return statement.dtype is DType.F32
    is_counted = statement.op in INSTRUCTIONS and statement.dtype in _COUNTED
    return is_counted and _is_within_bits(kernel, statement)


def _is_within_bits(kernel: Kernel, statement: Compute) -> bool:
    """False for shifts whose amount may be as large as the width of their type."""
    if statement.op not in _SHIFTS:
        return True
    amount = kernel.body[statement.operands[1]]
    bits = 8 * statement.dtype.itemsize_bytes
    return isinstance(amount, Literal) and 0 <= amount.value < bits


def _row_bytes(kernel: Kernel, loads: dict[int, VectorLoad], varying: frozenset[int]) -> int:
    """The bytes of terms that all results read."""
    (terms,), results = kernel.reduction, kernel.outer[-1]
    rows = [
        load
        for number in loads
        if number in varying and isinstance(load := kernel.body[number], Load)
        if results.name not in load.index.symbols
    ]
    each = sum(kernel.param(load.param).dtype.itemsize_bytes for load in rows)
    return each * terms.extent.constant


def _is_added(statement: Statement) -> bool:
    """True for a sum of products: while it is computed, the next one does not wait for it."""
    return isinstance(statement, Compute) and statement.op == "add"


def _is_stored_integer(kernel: Kernel, number: int, results: Axis) -> bool:
    """True if a load gives integers of a byte of each result."""
    load = kernel.body[number]
    if not isinstance(load, Load) or kernel.param(load.param).dtype not in BYTES:
        return False
    return results.name in load.index.symbols

"""Sums over the terms of rows in vectors: products of few rows by a weight.

A step of the loop over terms takes those of some vectors. It reads the weights of a result once, or
computes them from integers, and adds their products with the terms of all rows of the other matrix.
A unit has some neighbouring results, so that a step reads the rows once for all of them
(`vector_sum_units.py`).

Products of bf16 are added in pairs by one instruction, if the processor has it (`dots.py`), which
takes subnormal elements as 0. A lane has two terms then.

A float that depends on four bits of a byte, and besides them on nothing that differs between the
terms of a vector, is a table of 16 lanes: it is computed once for each value that the bits may
have, and the bits of each lane choose. So a weight of four bits takes a shift and a permutation,
whatever is computed from it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from codegen_svc.emitters.llvm.dots import NO_DOTS, DotInstruction, Dots
from codegen_svc.emitters.llvm.schedule import value_dtype
from codegen_svc.emitters.llvm.skipped_terms import needed_if
from codegen_svc.emitters.llvm.vector_divisions import (
    RESULTS_APART,
    Division,
    Extents,
    divided_integers,
    divided_products,
)
from codegen_svc.emitters.llvm.vector_loads import (
    BYTES,
    WORD_BYTES,
    VectorLoad,
    varying_between_lanes,
    vector_loads,
)
from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ceil_div
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

    A lane has `lane_terms`: one, or those that `dot` multiplies. Neighbours on the axis `results`
    are computed together, as `division` says. `loads` are the loads of the terms, and `varying` the
    values that differ between the lanes of a vector. Memory is asked ahead for what the loads in
    `fetched` read. All results read what those in `rows` do. `needed_if` is the condition without
    which a unit needs no sums, if there is one.
    """

    terms: Axis
    results: Axis
    lanes: int
    dot: DotInstruction | None
    division: Division
    sums: tuple[int, ...]
    loads: dict[int, VectorLoad]
    varying: frozenset[int]
    fetched: tuple[int, ...]
    rows: tuple[int, ...]
    needed_if: int | None = None

    @property
    def vector_bytes(self) -> int:
        """The size of a vector of f32."""
        return WORD_BYTES * self.lanes

    @property
    def lane_terms(self) -> int:
        """The terms of a lane."""
        return 1 if self.dot is None else self.dot.lane_terms

    @property
    def vector_terms(self) -> int:
        """The terms of a vector."""
        return self.lanes * self.lane_terms

    @property
    def is_paired(self) -> bool:
        """True if a lane has two terms."""
        return self.dot is not None

    @property
    def units(self) -> Axis:
        """The axis of the units, in place of the one of results."""
        return Axis(BLOCK, ceil_div(self.results.extent, self.division.unit_results))

    @property
    def has_rest(self) -> bool:
        """True if the last unit has fewer results than others."""
        of_unit, extent = self.division.unit_results, self.results.extent
        return of_unit > 1 and not (extent.is_constant and extent.constant % of_unit == 0)


@dataclass(frozen=True, slots=True)
class Nibble:
    """Four bits of a byte that a load gives: those above `shift` others."""

    load: int
    shift: int


def vector_sums(kernel: Kernel, vector_bits: int, dots: Dots = NO_DOTS) -> VectorSums | None:
    """How a processor sums a kernel's terms in vectors; None if it is no such kernel.

    `dots` are the processor's instructions that multiply and add several terms of a lane.
    """
    if len(kernel.reduction) != 1 or not kernel.outer or not _are_plain_sums(kernel):
        return None
    inside = _inside(kernel)
    if len(inside) > _MOST_STATEMENTS or _depth(kernel, inside) > _MOST_DEPTH:
        return None
    lanes = vector_bits // (8 * WORD_BYTES)
    if dots.pairs is not None:
        found = _sums_of(kernel, inside, lanes, dots.pairs)
        if found is not None and _are_pairs(kernel, found):
            return found
    return _sums_of(kernel, inside, lanes, None)


def _sums_of(
    kernel: Kernel, inside: list[int], lanes: int, dot: DotInstruction | None
) -> VectorSums | None:
    """The sums by vectors of so many lanes; None if there are none."""
    (terms,), results = kernel.reduction, kernel.outer[-1]
    vector_terms = lanes if dot is None else lanes * dot.lane_terms
    if not terms.extent.is_constant or terms.extent.constant % vector_terms:
        return None
    loads = vector_loads(kernel, inside, terms, vector_terms)
    varying = None if loads is None else _varying(kernel, inside, loads)
    if loads is None or varying is None:
        return None
    weights = [n for n in loads if n in varying and _is_of_result(kernel, n, results)]
    integers = [n for n in weights if value_dtype(kernel, n) in BYTES]
    if not integers and not _are_products(kernel, set(weights), loads):
        return None
    sums = tuple(n for n, s in enumerate(kernel.body) if isinstance(s, Reduce))
    rows = tuple(n for n in loads if n in varying and n not in weights)
    row_bytes = _row_bytes(kernel, rows)
    each = Extents(results.extent, terms.extent.constant, vector_terms, len(sums))
    if not integers:
        division = divided_products(each, row_bytes, lanes)
    else:
        has_parts = any(_is_added(kernel.body[number]) for number in varying)
        division = divided_integers(each, row_bytes, lanes, has_parts=has_parts)
    condition = needed_if(kernel) if division.unit_results == 1 else None
    if condition is not None:
        division = replace(division, apart=RESULTS_APART)
    return VectorSums(
        terms=terms,
        results=results,
        lanes=lanes,
        dot=dot,
        division=division,
        sums=sums,
        loads=loads,
        varying=varying,
        fetched=_apart(kernel, loads, integers or weights),
        rows=rows,
        needed_if=condition,
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


def _apart(
    kernel: Kernel, loads: Mapping[int, VectorLoad], numbers: Collection[int]
) -> tuple[int, ...]:
    """One of those loads that read the same memory: bytes of words share it."""
    places = {}
    for number in numbers:
        load = kernel.body[number]
        assert isinstance(load, Load)  # the caller has found it among the loads
        places[load.param, loads[number].base] = number
    return tuple(places.values())


def _row_bytes(kernel: Kernel, rows: Collection[int]) -> int:
    """The bytes of terms of rows that all results read."""
    each = sum(value_dtype(kernel, number).itemsize_bytes for number in rows)
    return each * kernel.reduction[0].extent.constant


def _are_products(
    kernel: Kernel, weights: Collection[int], loads: Mapping[int, VectorLoad]
) -> bool:
    """True if the terms are products of adjacent elements: one of a weight, one of a row."""
    for summed in (s for s in kernel.body if isinstance(s, Reduce)):
        factors = [_loaded(kernel, factor) for factor in operands_of(kernel.body[summed.operand])]
        if not _is_product(kernel, summed.operand) or sum(f in weights for f in factors) != 1:
            return False
        if not all(factor is not None and loads[factor].stride == 1 for factor in factors):
            return False
    return True


def _is_product(kernel: Kernel, number: int) -> bool:
    statement = kernel.body[number]
    return isinstance(statement, Compute) and statement.op == "mul"


def _are_pairs(kernel: Kernel, sums: VectorSums) -> bool:
    """True if the terms are products of elements of bf16."""
    summed = [n for number in sums.sums for n in operands_of(kernel.body[number])]
    are_narrow = all(value_dtype(kernel, n) is DType.BF16 for n in sums.loads)
    return are_narrow and all(_is_product(kernel, number) for number in summed)


def _loaded(kernel: Kernel, number: int) -> int | None:
    """The load whose element a value is, perhaps converted to f32; None if it is none."""
    value = kernel.body[number]
    if isinstance(value, Compute) and value.op == "convert":
        (number,) = value.operands
    return number if isinstance(kernel.body[number], Load) else None


def _is_added(statement: Statement) -> bool:
    """True for a sum of products: while it is computed, the next one does not wait for it."""
    return isinstance(statement, Compute) and statement.op == "add"


def _is_of_result(kernel: Kernel, number: int, results: Axis) -> bool:
    """True if a load gives elements of each result."""
    load = kernel.body[number]
    return isinstance(load, Load) and results.name in load.index.symbols

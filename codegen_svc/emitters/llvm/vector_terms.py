"""The terms of sums in vectors: the values of one vector of terms, for each result of a unit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial, reduce

from codegen_svc.emitters.llvm.dots import add_dots
from codegen_svc.emitters.llvm.element_types import memory_type
from codegen_svc.emitters.llvm.next_panels import write_fetch
from codegen_svc.emitters.llvm.schedule import value_dtype
from codegen_svc.emitters.llvm.text import FLOAT, HALF, I1, I8, I16, I32, I64, PTR, Value, integer
from codegen_svc.emitters.llvm.unit import UnitContext, write_choice
from codegen_svc.emitters.llvm.values import Scope, ValueWriter
from codegen_svc.emitters.llvm.vector_loads import STEP, WORD_BYTES
from codegen_svc.emitters.llvm.vector_sums import (
    INSTRUCTIONS,
    TABLE_LANES,
    Nibble,
    VectorSums,
    nibble_of,
)
from kernelfarm.dtypes import DType
from kernelfarm.ir.loop_ir import Compute, Load, operands_of

_BITS = 8
_NAN = 0x7FC0
"""The bits of NaN as bf16."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """How many results and terms are between what is read and what memory is asked for."""

    results: Value
    terms: Value


class VectorTerms:
    """Writes the values of one vector of terms for one result.

    `scope` has the result's point, and the first term of the vector. `copies` are the addresses of
    vectors that are in the first-level cache, by the load in whose place they are read.
    """

    def __init__(
        self,
        context: UnitContext,
        sums: VectorSums,
        writer: ValueWriter,
        scope: Scope,
        copies: Mapping[int, Value],
    ) -> None:
        self._context = context
        self._fn = context.fn
        self._kernel = context.kernel
        self._sums = sums
        self._writer = writer
        self._scope = scope
        self._copies = copies
        self._known: dict[int, Value] = {}
        self._leaves: dict[int, frozenset[int | Nibble]] = {}

    def added(self, total: Value, number: int) -> Value:
        """A running sum and the terms, in one operation if they are products."""
        if self._sums.dot is not None:
            sides = (self._pairs(factor) for factor in operands_of(self._kernel.body[number]))
            return add_dots(self._fn, self._sums.dot, total, *sides)
        factors = self._factors(number)
        if factors is not None:
            return self._multiplied(*factors, total)
        return self._fn.op("fadd", total, self.vector(number))

    def vector(self, number: int) -> Value:
        """The vector of a value."""
        if number not in self._known:
            self._known[number] = self._vector(number)
        return self._known[number]

    def _vector(self, number: int) -> Value:
        if number not in self._sums.varying:
            return self._spread(self._writer.value(number, self._scope))
        nibble = self._only_nibble(number)
        if nibble is not None:
            return self._from_table(number, nibble)
        statement = self._kernel.body[number]
        if isinstance(statement, Load):
            return self._load(number)
        return self._sum(number) or self._compute(number, self.vector)

    def _factors(self, number: int) -> tuple[Value, Value] | None:
        """The factors of a product; None if a value is none, or has a table."""
        statement = self._kernel.body[number]
        if number not in self._sums.varying or self._only_nibble(number) is not None:
            return None
        if not isinstance(statement, Compute) or statement.op != "mul":
            return None
        first, second = statement.operands
        return self.vector(first), self.vector(second)

    def _multiplied(self, first: Value, second: Value, addend: Value) -> Value:
        name = f"llvm.fma.v{self._sums.lanes}f32"
        return self._fn.call_external(name, addend.type, first, second, addend)

    def _sum(self, number: int) -> Value | None:
        """A sum with a product, in one operation; None if a value is no such sum."""
        statement = self._kernel.body[number]
        if not isinstance(statement, Compute) or statement.op != "add":
            return None
        for product, other in (statement.operands[::-1], statement.operands):
            factors = self._factors(product)
            if factors is not None:
                return self._multiplied(*factors, self.vector(other))
        return None

    def _compute(self, number: int, read: Callable[[int], Value]) -> Value:
        """The value of an operation, whose operands are `read`."""
        fn, statement = self._fn, self._kernel.body[number]
        assert isinstance(statement, Compute)  # others do not vary, or are loads
        fn.topic = f"{statement.op}{number}"
        if statement.op == "convert":
            (operand,) = statement.operands
            wide = self._to_float(read(operand), value_dtype(self._kernel, operand))
            return self._rounded(wide, statement.dtype)
        first, second = map(read, statement.operands)
        name = INSTRUCTIONS[statement.op]
        if statement.op == "shr_arith" and statement.dtype is DType.U8:
            name = "lshr"
        return fn.op(name, first, second)

    def _pairs(self, factor: int) -> Value:
        """Pairs of neighbouring terms of bf16: what a conversion to f32 reads."""
        (load,) = operands_of(self._kernel.body[factor])
        if load not in self._known:
            place = self._copies.get(load) or self._place(load)
            found = self._fn.load(self._type(I32), place, DType.BF16.itemsize_bytes)
            self._known[load] = found
        return self._known[load]

    def fetch(self, number: int, ahead: Ahead | None) -> None:
        """Asks memory for a line of what a load reads later; None: in the same row."""
        fn, symbols = self._fn, self._scope.symbols
        if ahead is None and self._sums.needed_if is not None and self._fetch_beside(number):
            return
        if ahead is None:
            if not self._sums.division.ahead_bytes:
                return
            distance = integer(self._sums.division.ahead_bytes, I64)
            place = f"getelementptr {I8}, {self._place(number)}, {distance}"
            write_fetch(fn, fn.define("ahead", PTR, place))
            return
        results, terms = (axis.name for axis in (self._sums.results, self._sums.terms))
        vectors = fn.op("sdiv", ahead.terms, integer(self._sums.vector_terms, I64))
        further = {
            results: fn.op("add nsw", symbols[results], ahead.results),
            terms: fn.op("add nsw", symbols[terms], ahead.terms),
            STEP: fn.op("add nsw", symbols[STEP], vectors),
        }
        write_fetch(fn, self._place(number, {**symbols, **further}))

    def _fetch_beside(self, number: int) -> bool:
        """Asks memory for what a load reads in the next row of results that has others, if any.

        Behind a result that may not be needed are others that are not, but the next row needs the
        same ones. Of rows with equal loads, the first one asks.
        """
        fn, load, symbols = self._fn, self._kernel.body[number], self._scope.symbols
        assert isinstance(load, Load)  # the caller has asked
        rows = [axis.name for axis in self._kernel.outer if axis is not self._sums.results]
        named = [name for name in rows if name in load.index.symbols]
        if not named:
            return False

        def fetch() -> None:
            following = fn.op("add nuw nsw", symbols[named[-1]], integer(1, I64))
            write_fetch(fn, self._place(number, {**symbols, named[-1]: following}))

        equal = rows[rows.index(named[-1]) + 1 :]
        if not equal:
            fetch()
            return True
        firsts = [fn.compare("icmp", "eq", symbols[name], integer(0, I64)) for name in equal]
        write_choice(fn, "fetch", reduce(partial(fn.op, "and"), firsts), fetch, lambda: None)
        return True

    # Loads and conversions.

    def _load(self, number: int) -> Value:
        fn, at = self._fn, self._sums.loads[number]
        dtype = value_dtype(self._kernel, number)
        if at.stride == WORD_BYTES:
            byte = self._shifted(self._word(number), _BITS * at.offset)
            return fn.cast("trunc", byte, self._type(I8))
        place = self._copies.get(number) or self._place(number)
        return fn.load(self._type(memory_type(dtype)), place, dtype.itemsize_bytes)

    def _word(self, number: int) -> Value:
        """The words that the bytes of a load are in."""
        return self._fn.load(self._type(I32), self._place(number), 1, wish="word")

    def _place(self, number: int, symbols: dict[str, Value] | None = None) -> Value:
        """The address of a load's first element, at the scope's point unless symbols are given."""
        context, load = self._context, self._kernel.body[number]
        assert isinstance(load, Load)  # the caller has asked
        point = self._scope.symbols if symbols is None else symbols
        position = context.index.write(self._sums.loads[number].base, point)
        kind = memory_type(value_dtype(self._kernel, number))
        return self._fn.element(kind, context.buffers[load.param], position)

    def _shifted(self, words: Value, bits: int) -> Value:
        return words if not bits else self._fn.op("lshr", words, self._same(integer(bits, I32)))

    def _to_float(self, value: Value, source: DType) -> Value:
        fn, floats = self._fn, self._type(FLOAT)
        if source is DType.F32:
            return value
        if source is DType.F16:
            return fn.cast("fpext", value, floats)
        words = self._type(I32)
        if source is DType.BF16:
            bits = fn.op("shl", fn.cast("zext", value, words), self._same(integer(16, I32)))
            return fn.cast("bitcast", bits, floats)
        wide = fn.cast("zext" if source is DType.U8 else "sext", value, words)
        return fn.cast("sitofp", wide, floats)

    def _rounded(self, value: Value, target: DType) -> Value:
        """A vector of f32 in another type, rounded to nearest even."""
        fn, words = self._fn, self._type(I32)
        if target is DType.F32:
            return value
        if target is DType.F16:
            return fn.cast("fptrunc", value, self._type(HALF))
        bits = fn.cast("bitcast", value, words)
        sixteen, one = (self._same(integer(number, I32)) for number in (16, 1))
        odd = fn.op("and", fn.op("lshr", bits, sixteen), one)
        half = fn.op("add", odd, self._same(integer(0x7FFF, I32)))
        upper = fn.op("lshr", fn.op("add", bits, half), sixteen)
        conditions = self._type(I1)
        is_nan = fn.define("", conditions, f"fcmp uno {value}, {value.text}")
        chosen = f"select {is_nan}, {self._same(integer(_NAN, I32))}, {upper}"
        return fn.cast("trunc", fn.define("", words, chosen), self._type(I16))

    # Tables of 16 lanes.

    def _only_nibble(self, number: int) -> Nibble | None:
        """The four bits that alone decide a float, besides what all lanes share."""
        if self._sums.lanes != TABLE_LANES or value_dtype(self._kernel, number) is not DType.F32:
            return None
        leaves = self._leaves_of(number)
        if len(leaves) != 1:
            return None
        (leaf,) = leaves
        is_word = isinstance(leaf, Nibble) and self._sums.loads[leaf.load].stride == WORD_BYTES
        return leaf if is_word and isinstance(leaf, Nibble) else None

    def _leaves_of(self, number: int) -> frozenset[int | Nibble]:
        """What differs between lanes in a value: loads, by number, and four bits of bytes."""
        if number not in self._sums.varying:
            return frozenset()
        if number not in self._leaves:
            nibble = nibble_of(self._kernel, number)
            if nibble is not None:
                found: frozenset[int | Nibble] = frozenset((nibble,))
            elif isinstance(self._kernel.body[number], Load):
                found = frozenset((number,))
            else:
                below = (self._leaves_of(o) for o in operands_of(self._kernel.body[number]))
                found = frozenset().union(*below)
            self._leaves[number] = found
        return self._leaves[number]

    def _from_table(self, number: int, nibble: Nibble) -> Value:
        """The floats for all values of four bits, of which those of each lane choose one."""
        fn, at = self._fn, self._sums.loads[nibble.load]
        values = range(0, TABLE_LANES << nibble.shift, 1 << nibble.shift)
        known = {nibble.load: self._constants(values)}

        def entry(value: int) -> Value:
            if value not in known:
                varies = value in self._sums.varying
                known[value] = self._compute(value, entry) if varies else self.vector(value)
            return known[value]

        table = entry(number)
        chosen = self._shifted(self._word(nibble.load), _BITS * at.offset + nibble.shift)
        fn.topic = f"table{number}"
        name = "llvm.x86.avx512.permvar.sf.512"
        return fn.call_external(name, self._type(FLOAT), table, chosen)

    def _constants(self, values: Iterable[int]) -> Value:
        texts = ", ".join(str(integer(value, I8)) for value in values)
        return Value(f"<{texts}>", self._type(I8))

    def _type(self, element: str) -> str:
        return f"<{self._sums.lanes} x {element}>"

    def _same(self, value: Value) -> Value:
        """A constant in all lanes."""
        return Value(f"<{', '.join([str(value)] * self._sums.lanes)}>", self._type(value.type))

    def _spread(self, value: Value) -> Value:
        """A vector of equal lanes."""
        fn, kind = self._fn, self._type(value.type)
        if not value.text.startswith("%"):
            return self._same(value)
        one = fn.define("", kind, f"insertelement {kind} poison, {value}, {I32} 0")
        mask = f"<{self._sums.lanes} x i32> zeroinitializer"
        return fn.define("", kind, f"shufflevector {one}, {kind} poison, {mask}")

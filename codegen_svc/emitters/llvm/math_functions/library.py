"""Elementary functions as LLVM functions: vectorizable, without branches and library calls.

In the module, each is an internal function `kf.<op>.<f32|f64>` that is always inlined, so that the
loop vectorizer sees plain arithmetic. `MathFunction` states its largest error, which tests sweep.
Every CPU target has fused multiply-add, and the functions rely on it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from codegen_svc.emitters.llvm.text import (
    DOUBLE,
    FLOAT,
    I32,
    FunctionText,
    ModuleText,
    Value,
    bits_type,
    floating,
    integer,
)


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """A binary floating-point format; adding `round_shift` rounds to an integer."""

    mantissa_bits: int
    bias: int
    round_shift: float
    min_normal: float


# Angles of most models are smaller. The usual ways of sine and cosine are not exact enough above.
USUAL_LIMIT: Final = 4096.0

FORMATS: Final = {
    FLOAT: FloatFormat(23, 127, 1.5 * 2.0**23, 2.0**-126),
    DOUBLE: FloatFormat(52, 1023, 1.5 * 2.0**52, 2.0**-1022),
}


class Math:
    """Arithmetic in one floating-point type, written into one function."""

    def __init__(self, fn: FunctionText, llvm_type: str, library: MathLibrary) -> None:
        self.fn = fn
        self.type = llvm_type
        self.bits = bits_type(llvm_type)
        self.format = FORMATS[llvm_type]
        self._library = library

    @property
    def is_f32(self) -> bool:
        """True for single precision."""
        return self.type == FLOAT

    def wider(self) -> Math:
        """Arithmetic in double precision, in the same function."""
        return Math(self.fn, DOUBLE, self._library)

    def const(self, value: float) -> Value:
        """A constant of this type."""
        return floating(value, self.type)

    def int_const(self, value: int) -> Value:
        """A constant of the integer type of this width."""
        return integer(value, self.bits)

    @property
    def scales_by_powers(self) -> bool:
        """True if one instruction multiplies by a power of two."""
        return self._library.scales_by_powers

    def add(self, a: Value, b: Value | float) -> Value:
        """a + b"""
        return self.fn.op("fadd", a, self._lift(b))

    def sub(self, a: Value | float, b: Value | float) -> Value:
        """a - b"""
        return self.fn.op("fsub", self._lift(a), self._lift(b))

    def mul(self, a: Value, b: Value | float) -> Value:
        """a * b"""
        return self.fn.op("fmul", a, self._lift(b))

    def div(self, a: Value | float, b: Value) -> Value:
        """a / b"""
        return self.fn.op("fdiv", self._lift(a), b)

    def fma(self, a: Value, b: Value | float, c: Value | float) -> Value:
        """a * b + c, rounded once"""
        return self.fn.intrinsic("fma", a, self._lift(b), self._lift(c))

    def neg(self, a: Value) -> Value:
        """-a"""
        return self.fn.op("fneg", a)

    def abs(self, a: Value) -> Value:
        """The magnitude."""
        return self.fn.intrinsic("fabs", a)

    def sqrt(self, a: Value) -> Value:
        """The square root, correctly rounded."""
        return self.fn.intrinsic("sqrt", a)

    def copysign(self, a: Value, sign: Value) -> Value:
        """The magnitude of `a` with the sign of `sign`."""
        if self.is_f32:
            return self.fn.intrinsic("copysign", a, sign)
        # With a copysign between them, LLVM 22 merges the conversions f64 -> f32 -> f16 into one,
        # for which x86 has no instruction.
        is_negative = self.fn.compare("icmp", "slt", self.as_bits(sign), self.int_const(0))
        magnitude = self.abs(a)
        return self.select(is_negative, self.neg(magnitude), magnitude)

    def test(self, predicate: str, a: Value, b: Value | float) -> Value:
        """`fcmp`"""
        return self.fn.compare("fcmp", predicate, a, self._lift(b))

    def select(self, condition: Value, a: Value | float, b: Value | float) -> Value:
        """`a` if the condition holds, else `b`."""
        return self.fn.select(condition, self._lift(a), self._lift(b))

    def at_most(self, a: Value, limit: float) -> Value:
        """The smaller of `a` and the limit; NaN stays NaN."""
        return self.select(self.test("ogt", a, limit), limit, a)

    def at_least(self, a: Value, limit: float) -> Value:
        """The larger of `a` and the limit; NaN stays NaN."""
        return self.select(self.test("olt", a, limit), limit, a)

    def as_bits(self, a: Value) -> Value:
        """The bit pattern."""
        return self.fn.cast("bitcast", a, self.bits)

    def from_bits(self, a: Value) -> Value:
        """The number with a bit pattern."""
        return self.fn.cast("bitcast", a, self.type)

    def int_op(self, name: str, a: Value, b: Value | int) -> Value:
        """An integer instruction."""
        return self.fn.op(name, a, b if isinstance(b, Value) else integer(b, a.type))

    def int_to_float(self, a: Value) -> Value:
        """A signed integer as a number."""
        return self.fn.cast("sitofp", a, self.type)

    def polynomial(self, coefficients: Sequence[float], x: Value) -> Value:
        """A polynomial by Horner's rule; the coefficient of the lowest power comes first."""
        result = self.const(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            result = self.fma(result, x, coefficient)
        return result

    def call(self, op: str, *arguments: Value) -> Value:
        """Another function of the library."""
        return self._library.call(self.fn, op, *arguments)

    def table_entry(self, name: str, element: str, rows: Sequence[float | int], at: Value) -> Value:
        """Entry number `at` of a constant table."""
        texts = [
            (floating(row, element) if element == DOUBLE else integer(int(row), element)).text
            for row in rows
        ]
        self.fn.module.table(name, element, texts)
        pointer = self.fn.element(element, Value(f"@{name}", "ptr"), at)
        return self.fn.load(element, pointer, 8)

    def _lift(self, value: Value | float) -> Value:
        return value if isinstance(value, Value) else self.const(value)


Definition = Callable[..., Value]
"""Writes a function's value, in the arithmetic of a `Math`, of arguments of its type."""


@dataclass(frozen=True, slots=True)
class MathFunction:
    """One function: how to write it in f64 and f32; without f32, it is computed in f64 and rounded.

    Functions without f64 take f32 alone.

    `usual` is a faster way to write it in f32, for magnitudes below `USUAL_LIMIT`.

    Units: `max_ulp_*` in units of the exact result's last place.
    """

    f64: Definition | None
    f32: Definition | None
    max_ulp_f32: float
    max_ulp_f64: float
    usual: Definition | None = None


class MathLibrary:
    """The functions that one module uses; each is defined at its first use.

    `scales_by_powers` says that the processor multiplies vectors by powers of two.
    """

    def __init__(
        self,
        module: ModuleText,
        functions: dict[str, MathFunction],
        *,
        scales_by_powers: bool = False,
    ) -> None:
        self.scales_by_powers = scales_by_powers
        # Twice the bit pattern of the largest argument of a usual way, without its sign.
        self._largest: Value | None = None
        self._module = module
        self._functions = functions
        self._defined: set[str] = set()

    def has(self, op: str) -> bool:
        """True if the operation is an elementary function."""
        return op in self._functions

    def has_usual(self, op: str) -> bool:
        """True if the operation has a faster way for usual arguments."""
        return op in self._functions and self._functions[op].usual is not None

    def begin_usual(self, fn: FunctionText) -> None:
        """From now on, calls use the usual ways, which are wrong for large arguments."""
        self._largest = fn.alloca("largest", I32)
        fn.store(integer(0, I32), self._largest, 8)

    def end_usual(self, fn: FunctionText) -> Value:
        """Calls use the general ways again; true if an argument was too large for its usual way."""
        assert self._largest is not None  # each end has a begin
        largest = fn.load(I32, self._largest, 8, wish="largest.last")
        self._largest = None
        (pattern,) = struct.unpack("<i", struct.pack("<f", USUAL_LIMIT))
        return fn.compare("icmp", "uge", largest, integer(2 * pattern, I32), wish="is_beyond")

    def call(self, fn: FunctionText, op: str, *arguments: Value) -> Value:
        """Calls `op` on floats of one type."""
        llvm_type, function = arguments[0].type, self._functions[op]
        is_f32 = llvm_type == FLOAT
        definition, suffix = (function.f32, "f32") if is_f32 else (function.f64, "f64")
        if is_f32 and self._largest is not None and function.usual is not None:
            definition, suffix = function.usual, "usual"
            _keep_largest(fn, self._largest, arguments[0])
        name = f"kf.{op}.{suffix}"
        if name not in self._defined:
            self._defined.add(name)
            self._define(name, op, definition, [a.type for a in arguments])
        return fn.call(name, llvm_type, *arguments, wish=op)

    def _define(self, name: str, op: str, definition: Definition | None, types: list[str]) -> None:
        arguments = [Value(f"%x{k}", llvm_type) for k, llvm_type in enumerate(types)]
        listed = ", ".join(map(str, arguments))
        fn = FunctionText(
            self._module,
            f"define internal {types[0]} @{name}({listed}) alwaysinline nounwind",
        )
        if definition is not None:
            result = definition(Math(fn, types[0], self), *arguments)
        else:
            wide = [fn.cast("fpext", a, DOUBLE) for a in arguments]
            result = fn.cast("fptrunc", self.call(fn, op, *wide), FLOAT)
        fn.emit(f"ret {result}")
        fn.finish()


def _keep_largest(fn: FunctionText, slot: Value, x: Value) -> None:
    """Patterns of positive floats are in the order of their values, and NaN's are the largest."""
    doubled = fn.op("shl", fn.cast("bitcast", x, I32), integer(1, I32), wish="without_sign")
    known = fn.load(I32, slot, 8, wish="largest.old")
    fn.store(fn.intrinsic("umax", known, doubled, wish="largest.new"), slot, 8)

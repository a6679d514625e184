"""Operations on single elements: arithmetic, comparisons, conversions, mathematical functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from codegen_svc.emitters.llvm.blocks.program import BlockType, Operation
from codegen_svc.emitters.llvm.element_types import constant, convert, memory_type, register_type
from codegen_svc.emitters.llvm.math_functions.library import MathLibrary
from codegen_svc.emitters.llvm.scalar_ops import TypedValue, emit_scalar
from codegen_svc.emitters.llvm.text import I1, I8, I64, PTR, FunctionText, Value, integer
from kernelfarm.dtypes import DType
from kernelfarm.errors import KernelRejectedError

_FLOATS: Final[Mapping[str, str]] = {
    "arith.addf": "add",
    "arith.subf": "sub",
    "arith.mulf": "mul",
    "arith.divf": "div",
    "arith.remf": "fmod",
    "arith.negf": "neg",
    "arith.maxnumf": "fmax",
    "arith.minnumf": "fmin",
    "arith.maximumf": "maximum",
    "arith.minimumf": "minimum",
    "tt.precise_divf": "div",
    "tt.precise_sqrt": "sqrt",
    "math.absf": "abs",
    **{
        f"math.{name}": name
        for name in (
            *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "erf"),
            *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "floor"),
            *("ceil", "trunc", "copysign"),
        )
    },
    "math.powf": "pow",
    "math.roundeven": "round_even",
}
# The names of NVIDIA's library, which Triton's front end writes, without prefix and type.
_LIBRARY: Final[Mapping[str, str]] = {
    **{
        name: name
        for name in (
            *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "erf"),
            *("erfc", "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh"),
            *("asinh", "acosh", "atanh", "pow", "floor", "ceil", "trunc", "copysign", "fmod"),
            *("fmax", "fmin"),
        )
    },
    "fabs": "abs",
    "fast_exp": "exp",
    "fast_log": "log",
    "fast_log2": "log2",
    "fast_sin": "sin",
    "fast_cos": "cos",
    "fast_tan": "tan",
    "fast_pow": "pow",
    "fast_tanh": "tanh",
    "rint": "round_even",
    "nearbyint": "round_even",
}
_INTEGERS: Final[Mapping[str, str]] = {
    "arith.addi": "add",
    "arith.subi": "sub",
    "arith.muli": "mul",
    "arith.andi": "and",
    "arith.ori": "or",
    "arith.xori": "xor",
}
_SHIFTS: Final[Mapping[str, str]] = {
    "arith.shli": "shl",
    "arith.shrsi": "ashr",
    "arith.shrui": "lshr",
}
_DIVISIONS: Final[Mapping[str, str]] = {
    "arith.divsi": "sdiv",
    "arith.divui": "udiv",
    "arith.remsi": "srem",
    "arith.remui": "urem",
}
_EXTREMA: Final[Mapping[str, str]] = {
    "arith.maxsi": "smax",
    "arith.minsi": "smin",
    "arith.maxui": "umax",
    "arith.minui": "umin",
}
_INTEGER_CASTS: Final[Mapping[str, str]] = {
    "arith.extsi": "sext",
    "arith.extui": "zext",
    "arith.trunci": "trunc",
}
_FROM_INTEGER: Final[Mapping[str, str]] = {"arith.sitofp": "sitofp", "arith.uitofp": "uitofp"}
_TO_INTEGER: Final[Mapping[str, str]] = {"arith.fptosi": "fptosi", "arith.fptoui": "fptoui"}
_FLOAT_CASTS: Final = frozenset({"arith.extf", "arith.truncf", "tt.fp_to_fp"})
_BITCASTS: Final = frozenset({"arith.bitcast", "tt.bitcast"})
_OTHERS: Final = frozenset(
    {
        *("arith.cmpi", "arith.cmpf", "arith.select", "math.fma", "math.absi", "tt.mulhiui"),
        *("tt.addptr", "tt.int_to_ptr", "tt.ptr_to_int", "tt.extern_elementwise", "tt.clampf"),
    }
)
ELEMENTWISE: Final = frozenset(
    {*_FLOATS, *_INTEGERS, *_SHIFTS, *_DIVISIONS, *_EXTREMA, *_INTEGER_CASTS, *_FROM_INTEGER}
    | {*_TO_INTEGER, *_FLOAT_CASTS, *_BITCASTS, *_OTHERS}
)
"""Operations that compute each element of the result of the elements at its place."""
_Values = Sequence[Value]
_Kinds = Sequence[BlockType]
_Write = Callable[[Operation, _Values, _Kinds, BlockType], Value]
_SYMBOL: Final = re.compile(r'symbol = "__nv_(\w+)"')
_PREDICATE: Final = re.compile(r"[a-z]+")


def register_of(kind: BlockType) -> str:
    """The LLVM type of an element in a register.

    Raises:
        KernelRejectedError: processors have no such type.
    """
    return PTR if kind.is_pointer else register_type(number_type(kind))


def memory_of(kind: BlockType) -> str:
    """The LLVM type of an element in memory."""
    return PTR if kind.is_pointer else memory_type(number_type(kind))


def size_bytes(kind: BlockType) -> int:
    """The bytes of an element in memory."""
    return 8 if kind.is_pointer else number_type(kind).itemsize_bytes


def number_type(kind: BlockType) -> DType:
    """The element type of numbers.

    Raises:
        KernelRejectedError: processors have no such type.
    """
    if kind.dtype is None:
        raise KernelRejectedError(
            f"elements of type {kind.element[:60]} have no code for processors"
        )
    return kind.dtype


def load_element(fn: FunctionText, kind: BlockType, at: Value) -> Value:
    """An element from memory, where a truth value is a byte."""
    found = fn.load(memory_of(kind), at, size_bytes(kind))
    return fn.compare("icmp", "ne", found, integer(0, I8)) if kind.element == "i1" else found


def store_element(fn: FunctionText, kind: BlockType, value: Value, at: Value) -> None:
    """Stores an element."""
    stored = fn.cast("zext", value, I8) if kind.element == "i1" else value
    fn.store(stored, at, size_bytes(kind))


@dataclass(frozen=True, slots=True)
class ElementWriter:
    """Writes operations on single elements into a function."""

    fn: FunctionText
    library: MathLibrary
    types: Mapping[int, BlockType]

    def write(self, op: Operation, values: Sequence[Value]) -> Value:
        """The result of an elementwise operation for these operands.

        Raises:
            KernelRejectedError: there is no code for it.
        """
        kinds = [self.types[number] for number in op.operands]
        result = self.types[op.results[0]]
        for table, write in self._writers():
            if op.name in table:
                return write(op, values, kinds, result)
        raise KernelRejectedError(f"operation {op.name} has no code for processors")

    def constant(self, op: Operation, kind: BlockType) -> Value:
        """The value of a constant's elements, which are equal.

        Raises:
            KernelRejectedError: they are not equal.
        """
        text = op.words.removeprefix("dense<").removesuffix(">")
        dtype = number_type(kind)
        if text.startswith(("[", '"')):
            raise KernelRejectedError("a block of different constants has no code for processors")
        if text in ("true", "false"):
            return integer(int(text == "true"), I1)
        if not dtype.is_float:
            return integer(int(text, 0), register_type(dtype))
        if not text.startswith("0x"):
            return constant(self.fn, dtype, float(text))
        bits = integer(int(text, 16), f"i{8 * dtype.itemsize_bytes}")
        return self.fn.cast("bitcast", bits, register_type(dtype))

    def _writers(self) -> tuple[tuple[Container[str], _Write], ...]:
        return (
            (_FLOATS, lambda op, v, k, r: self._float(_FLOATS[op.name], v, k, r)),
            (_INTEGERS, lambda op, v, _k, _r: self.fn.op(_INTEGERS[op.name], *v)),
            (_SHIFTS, self._shift),
            (_DIVISIONS, self._division),
            (_EXTREMA, lambda op, v, _k, _r: self.fn.intrinsic(_EXTREMA[op.name], *v)),
            (_INTEGER_CASTS, self._integer_cast),
            (_FROM_INTEGER, self._from_integer),
            (_TO_INTEGER, self._to_integer),
            (_FLOAT_CASTS, lambda _op, v, k, r: self._converted(v[0], k[0], r)),
            (_BITCASTS, lambda _op, v, _k, r: self.fn.cast("bitcast", v[0], register_of(r))),
            ({"arith.cmpi"}, self._compare_integers),
            ({"arith.cmpf"}, self._compare_floats),
            ({"arith.select"}, self._select),
            ({"math.absi"}, self._absolute),
            ({"tt.addptr"}, self._advance),
            ({"tt.int_to_ptr"}, self._to_address),
            ({"tt.ptr_to_int"}, self._of_address),
            ({"tt.clampf"}, self._clamp),
            ({"math.fma"}, self._fused),
            ({"tt.mulhiui"}, self._high_product),
            ({"tt.extern_elementwise"}, self._library_call),
        )

    def _float(self, name: str, values: _Values, kinds: _Kinds, result: BlockType) -> Value:
        typed = [
            TypedValue(value, number_type(kind)) for value, kind in zip(values, kinds, strict=True)
        ]
        return emit_scalar(self.fn, self.library, name, typed, number_type(result))

    def _converted(self, value: Value, source: BlockType, target: BlockType) -> Value:
        return convert(self.fn, value, number_type(source), number_type(target))

    def _shift(self, op: Operation, v: _Values, _k: object, _r: object) -> Value:
        # LLVM leaves a shift by the width or more undefined, and a masked lane may have one.
        bits = int(v[1].type[1:])
        amount = self.fn.op("and", v[1], integer(bits - 1, v[1].type))
        return self.fn.op(_SHIFTS[op.name], v[0], amount)

    def _division(self, op: Operation, v: _Values, _k: object, _r: object) -> Value:
        """A division that does not trap: a masked lane may divide by zero, or overflow."""
        fn, one = self.fn, integer(1, v[1].type)
        divisor = v[1]
        if divisor.text.startswith("%"):
            is_bad = fn.compare("icmp", "eq", divisor, integer(0, divisor.type))
            if op.name in ("arith.divsi", "arith.remsi"):
                least = integer(1 << (int(divisor.type[1:]) - 1), divisor.type)
                is_least = fn.compare("icmp", "eq", v[0], least)
                is_minus = fn.compare("icmp", "eq", divisor, integer(-1, divisor.type))
                is_bad = fn.op("or", is_bad, fn.op("and", is_least, is_minus))
            divisor = fn.select(is_bad, one, divisor)
        elif divisor.text == "0":
            divisor = one
        return fn.op(_DIVISIONS[op.name], v[0], divisor)

    def _integer_cast(self, op: Operation, v: _Values, _k: object, result: BlockType) -> Value:
        return self.fn.cast(_INTEGER_CASTS[op.name], v[0], register_of(result))

    def _from_integer(self, op: Operation, v: _Values, _k: object, result: BlockType) -> Value:
        wide: DType = number_type(result).compute_dtype
        found = self.fn.cast(_FROM_INTEGER[op.name], v[0], register_type(wide))
        return convert(self.fn, found, wide, number_type(result))

    def _to_integer(self, op: Operation, v: _Values, kinds: _Kinds, result: BlockType) -> Value:
        source = number_type(kinds[0])
        wide: DType = source.compute_dtype
        value = convert(self.fn, v[0], source, wide)
        suffix = "f64" if wide is DType.F64 else "f32"
        to = register_of(result)
        # Saturating: what does not fit is undefined otherwise, and a masked lane may have it.
        name = f"llvm.{_TO_INTEGER[op.name]}.sat.{to}.{suffix}"
        return self.fn.call_external(name, to, value)

    def _compare_integers(self, op: Operation, v: _Values, _k: object, _r: object) -> Value:
        return self.fn.compare("icmp", self._predicate(op), v[0], v[1])

    def _compare_floats(self, op: Operation, v: _Values, kinds: _Kinds, _r: object) -> Value:
        dtype = number_type(kinds[0])
        a, b = (convert(self.fn, value, dtype, dtype.compute_dtype) for value in v)
        return self.fn.compare("fcmp", self._predicate(op), a, b)

    def _select(self, _: Operation, v: _Values, _k: object, _r: object) -> Value:
        return self.fn.select(v[0], v[1], v[2])

    def _absolute(self, _: Operation, v: _Values, _k: object, _r: object) -> Value:
        negative = self.fn.op("sub", integer(0, v[0].type), v[0])
        return self.fn.intrinsic("smax", v[0], negative)

    def _advance(self, _: Operation, v: _Values, kinds: _Kinds, _r: object) -> Value:
        """An address so many elements further."""
        if kinds[0].pointee is None:
            raise KernelRejectedError(
                f"addresses of type {kinds[0].element[:60]} have no code for processors"
            )
        offset = self.fn.cast("sext", v[1], I64)
        step = memory_type(kinds[0].pointee)
        return self.fn.define("", PTR, f"getelementptr {step}, {v[0]}, {offset}")

    def _to_address(self, _: Operation, v: _Values, _k: object, _r: object) -> Value:
        return self.fn.cast("inttoptr", v[0], PTR)

    def _of_address(self, _: Operation, v: _Values, _k: object, result: BlockType) -> Value:
        return self.fn.cast("ptrtoint", v[0], register_of(result))

    def _clamp(self, _: Operation, v: _Values, kinds: _Kinds, result: BlockType) -> Value:
        lower = self._float("fmax", v[:2], kinds[:2], result)
        return self._float("fmin", (lower, v[2]), (result, kinds[2]), result)

    def _fused(self, _: Operation, v: _Values, kinds: _Kinds, result: BlockType) -> Value:
        if number_type(result).compute_dtype is number_type(result):
            return self.fn.intrinsic("fma", *v)
        product = self._float("mul", v[:2], kinds[:2], result)
        return self._float("add", (product, v[2]), (result, kinds[2]), result)

    def _predicate(self, op: Operation) -> str:
        match = _PREDICATE.match(op.words)
        return match[0] if match else ""

    def _high_product(self, _: Operation, v: _Values, _k: object, _r: object) -> Value:
        a, b = v
        bits = int(a.type[1:])
        wide = f"i{2 * bits}"
        product = self.fn.op("mul", self.fn.cast("zext", a, wide), self.fn.cast("zext", b, wide))
        high = self.fn.op("lshr", product, integer(bits, wide))
        return self.fn.cast("trunc", high, a.type)

    def _library_call(self, op: Operation, v: _Values, kinds: _Kinds, result: BlockType) -> Value:
        match = _SYMBOL.search(op.attributes)
        symbol = match[1] if match else ""
        is_f32 = number_type(result) is DType.F32
        name = _LIBRARY.get(symbol.removesuffix("f") if is_f32 else symbol)
        if name is None:
            raise KernelRejectedError(
                f"library function {symbol[:60]!r} has no code for processors"
            )
        return self._float(name, v, kinds, result)

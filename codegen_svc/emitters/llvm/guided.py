"""Guided reductions: the terms of a point, joining two partial results, the final value.

A partial result is the count of some points, their guide (the maximum, or the mean) and their sum
relative to it. Terms are computed relative to an anchor near the guide. Partial results are joined
in f64, so that a mean far larger than the spread costs no digits.
"""

from __future__ import annotations

from dataclasses import dataclass

from codegen_svc.emitters.llvm.element_types import convert, register_type
from codegen_svc.emitters.llvm.math_functions.library import MathLibrary
from codegen_svc.emitters.llvm.scalar_ops import TypedValue, emit_scalar
from codegen_svc.emitters.llvm.text import DOUBLE, FunctionText, Value, floating
from kernelfarm.dtypes import DType


@dataclass(frozen=True, slots=True)
class PartialResult:
    """Some points of a row: their count (f64), their guide, and their sum relative to it."""

    count: Value
    guide: Value
    total: Value


@dataclass(frozen=True, slots=True)
class GuidedText:
    """Writes one guided reduction of points of `dtype`.

    Partial sums of exponentials have the type `total_dtype`.
    """

    fn: FunctionText
    library: MathLibrary
    op: str
    dtype: DType
    total_dtype: DType

    @property
    def kept(self) -> tuple[DType, DType]:
        """The types of a partial result's guide and total."""
        if self._is_softmax:
            return self.dtype, self.total_dtype
        return DType.F64, DType.F64

    @property
    def term_count(self) -> int:
        """The number of terms of each point: squares have distances beside them."""
        return 1 if self._is_softmax else 2

    def anchor(self, count: Value, guide: Value) -> Value:
        """The anchor of some points' terms, given their maximum or sum.

        An infinite maximum is replaced by 0, so that every point has a distance to it.
        """
        if self._is_softmax:
            zero = self._number(0.0, self.dtype)
            return self.fn.select(self._is_infinite(guide), zero, guide)
        mean = self.mean(count, convert(self.fn, guide, self.dtype, DType.F64))
        return convert(self.fn, mean, DType.F64, self.dtype)

    def mean(self, count: Value, total: Value) -> Value:
        """The mean of a sum (f64); 0 over no points."""
        # A product with the reciprocal, so that lanes share one division.
        one = floating(1.0, DOUBLE)
        share = self.fn.op("fdiv", one, self.fn.intrinsic("maxnum", count, one))
        return self.fn.op("fmul", total, share)

    def terms(self, x: Value, anchor: Value) -> tuple[Value, ...]:
        """The terms of a point relative to this anchor."""
        distance = self._scalar("sub", x, anchor)
        if self._is_softmax:
            return (self._scalar("exp", distance),)
        return self._scalar("mul", distance, distance), distance

    def partial(
        self, count: Value, anchor: Value, guide: Value, sums: tuple[Value, ...]
    ) -> PartialResult:
        """The partial result with these sums of terms."""
        fn = self.fn
        if self._is_softmax:
            # If all points are -inf, each is the maximum.
            lowest = self._number(float("-inf"), self.dtype)
            is_lowest = fn.compare("fcmp", "oeq", guide, lowest)
            points = convert(fn, count, DType.F64, self.dtype)
            total = fn.select(is_lowest, points, sums[0])
            return PartialResult(count, guide, convert(fn, total, self.dtype, self.total_dtype))
        squares, distances = (convert(fn, s, self.dtype, DType.F64) for s in sums)
        rest = self.mean(count, distances)
        total = fn.op("fsub", squares, fn.op("fmul", distances, rest))
        # Rounding may give less than 0; an infinite sum of squares stays infinite.
        zero = floating(0.0, DOUBLE)
        total = fn.select(fn.compare("fcmp", "olt", total, zero), zero, total)
        is_beyond = fn.compare("fcmp", "oeq", squares, floating(float("inf"), DOUBLE))
        total = fn.select(is_beyond, squares, total)
        mean = fn.op("fadd", convert(fn, anchor, self.dtype, DType.F64), rest)
        return PartialResult(count, mean, total)

    def lone(self, x: Value) -> PartialResult:
        """The partial result of one point."""
        if self._is_softmax:
            return PartialResult(floating(1.0, DOUBLE), x, self._number(1.0, self.total_dtype))
        mean = convert(self.fn, x, self.dtype, DType.F64)
        # 0, or NaN for an infinity.
        return PartialResult(floating(1.0, DOUBLE), mean, self.fn.op("fsub", mean, mean))

    def joined(self, first: PartialResult, second: PartialResult) -> PartialResult:
        """Both partial results as one; the first may have no points."""
        join = self._joined_exponents if self._is_softmax else self._joined_squares
        return join(first, second)

    def finished(self, partial: PartialResult) -> Value:
        """The result in the type of the points.

        It is NaN if the maximum is infinite, and 0 over no points.
        """
        fn, (_, dtype) = self.fn, self.kept
        total = partial.total
        if self._is_softmax:
            has_points = fn.compare("fcmp", "une", total, self._number(0.0, dtype))
            is_odd = fn.op("and", self._is_infinite(partial.guide), has_points)
            total = fn.select(is_odd, self._number(float("nan"), dtype), total)
        return convert(fn, total, dtype, self.dtype)

    @property
    def _is_softmax(self) -> bool:
        return self.op == "softmax_sum"

    def _joined_exponents(self, first: PartialResult, second: PartialResult) -> PartialResult:
        """Joins two sums with one exponential: of the smaller maximum relative to the larger."""
        fn = self.fn
        count = fn.op("fadd", first.count, second.count)
        is_same = fn.compare("fcmp", "oeq", second.guide, first.guide)
        zero = self._number(0.0, self.dtype)
        # The distance of equal infinities is 0.
        apart = fn.select(is_same, zero, self._scalar("sub", second.guide, first.guide))
        scale = self._scalar("exp", self._scalar("neg", self._scalar("abs", apart)))
        scale = convert(fn, scale, self.dtype, self.total_dtype)
        is_higher = fn.compare("fcmp", "ogt", apart, zero)
        larger = fn.select(is_higher, second.total, first.total)
        smaller = fn.select(is_higher, first.total, second.total)
        total = fn.op("fadd", larger, fn.op("fmul", smaller, scale))
        return PartialResult(count, self._scalar("maximum", first.guide, second.guide), total)

    def _joined_squares(self, first: PartialResult, second: PartialResult) -> PartialResult:
        fn = self.fn
        apart = fn.op("fsub", second.guide, first.guide)
        count = fn.op("fadd", first.count, second.count)
        share = fn.op("fdiv", second.count, count)
        # In this order, the weight 0 of an empty first part keeps the square of its mean from
        # overflowing.
        weighted = fn.op("fmul", apart, fn.op("fmul", first.count, share))
        total = fn.op("fadd", first.total, second.total)
        total = fn.op("fadd", total, fn.op("fmul", weighted, apart))
        return PartialResult(count, fn.op("fadd", first.guide, fn.op("fmul", apart, share)), total)

    def _is_infinite(self, guide: Value) -> Value:
        infinity = self._number(float("inf"), self.dtype)
        return self.fn.compare("fcmp", "oeq", self._scalar("abs", guide), infinity)

    def _scalar(self, op: str, *values: Value) -> Value:
        typed = [TypedValue(value, self.dtype) for value in values]
        return emit_scalar(self.fn, self.library, op, typed, self.dtype)

    def _number(self, number: float, dtype: DType) -> Value:
        return floating(number, register_type(dtype))

"""Emits Prims for one captured operator, with broadcasting, conversion and typed numbers.

Prims have no implicit broadcast, promotion or numbers. This builder adds them, so that a
decomposition reads like its formula.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from frontend_svc.operators.core.extents import Extents, Shape, text_of
from frontend_svc.operators.core.promotion import Category, number_dtype, result_dtype
from frontend_svc.operators.core.registry import NotDecomposedError
from frontend_svc.operators.core.values import Number, Operand, Tensor
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr
from kernelfarm.ir.graph_ir import Arg, TensorType

_POSITIONS = frozenset({"argmax", "argmin"})
_NARROW_FLOATS = (DType.F16, DType.BF16)


class NodeAppender(Protocol):
    """Appends prims to a graph, as `kernelfarm.ir.builder.GraphBuilder` does."""

    def add(self, op: str, *operands: int, **attrs: Arg) -> int:
        """Appends a prim with one result; returns the result's id."""

    def type_of(self, value: int) -> TensorType:
        """A value's type."""


class PrimsBuilder:
    """The Prims graph under construction, as decompositions use it.

    `stated` are the result types on the wire, for operators whose results depend on more than the
    types of their operands.
    """

    __slots__ = (
        "_builder",
        "_is_random_native",
        "_seeds",
        "extents",
        "max_sorted_elems",
        "needs_fixed_order",
        "stated",
    )

    def __init__(
        self,
        builder: NodeAppender,
        extents: Extents,
        *,
        is_random_native: bool = True,
        max_sorted_elems: int | None = None,
        needs_fixed_order: bool = False,
    ) -> None:
        self._builder = builder
        self._is_random_native = is_random_native
        self._seeds = 0
        self.extents = extents
        self.max_sorted_elems = max_sorted_elems
        self.needs_fixed_order = needs_fixed_order
        self.stated: tuple[TensorType, ...] = ()

    def prim(self, op: str, *operands: Tensor, **attrs: Arg) -> Tensor:
        """A prim with these operands, unchanged."""
        value = self._builder.add(op, *(operand.id for operand in operands), **attrs)
        return Tensor(value, self._builder.type_of(value))

    def apply(self, op: str, *operands: Operand) -> Tensor:
        """An elementwise prim on broadcast operands; numbers get the type of the first tensor."""
        tensors = [operand for operand in operands if isinstance(operand, Tensor)]
        shape = self.extents.broadcast([tensor.shape for tensor in tensors])
        dtype = tensors[0].dtype
        return self.prim(op, *(self._as_tensor(operand, dtype, shape) for operand in operands))

    def where(self, condition: Tensor, if_true: Operand, if_false: Operand) -> Tensor:
        """A selection by a bool condition; one branch at least is a tensor and types the other."""
        branches = [branch for branch in (if_true, if_false) if isinstance(branch, Tensor)]
        shape = self.extents.broadcast([condition.shape, *(branch.shape for branch in branches)])
        dtype = branches[0].dtype
        return self.prim(
            "where",
            self.expand(condition, shape),
            self._as_tensor(if_true, dtype, shape),
            self._as_tensor(if_false, dtype, shape),
        )

    def full(self, value: Number, dtype: DType, shape: Shape = ()) -> Tensor:
        """A tensor filled with a number, which is converted to the type as in PyTorch."""
        if isinstance(value, Expr) and not dtype.is_integer:
            return self.convert(self.full(value, DType.I64, shape), dtype)
        return self.prim("full", dtype=dtype, shape=shape, value=as_typed(value, dtype))

    def convert(self, x: Tensor, dtype: DType) -> Tensor:
        """The same elements in another type."""
        return x if x.dtype is dtype else self.prim("convert", x, dtype=dtype)

    def program_cast(self, x: Tensor, dtype: DType) -> Tensor:
        """A conversion that the program asks for: its rounding is never left out."""
        if x.dtype in _NARROW_FLOATS or dtype not in _NARROW_FLOATS:
            return self.convert(x, dtype)
        return self.prim("convert", x, dtype=dtype, is_cast=True)

    def widened(self, x: Tensor) -> Tensor:
        """The elements in the computing type: f32 for narrower floats."""
        return self.convert(x, x.dtype.compute_dtype)

    def expand(self, x: Tensor, shape: Shape) -> Tensor:
        """The tensor broadcast to a shape, aligned at the last axis."""
        if x.shape == shape:
            return x
        if len(x.shape) == len(shape) and all(
            old is new or (old is not ONE and new is not ONE)
            for old, new in zip(x.shape, shape, strict=True)
        ):
            # Equal by a guard of the framework only: use one expression for the size from here on.
            return self.prim("reshape", x, shape=shape)
        offset = len(shape) - x.rank
        if offset < 0:
            raise InvalidGraphError(f"shape {text_of(x.shape)} does not expand to {text_of(shape)}")
        aligned = self._aligned(x, shape[offset:])
        dims = tuple(range(offset, len(shape)))
        return self.prim("broadcast_in_dim", aligned, dims=dims, shape=shape)

    def reshape(self, x: Tensor, shape: Shape) -> Tensor:
        """The elements in row-major order under another shape with as many elements."""
        return x if x.shape == shape else self.prim("reshape", x, shape=shape)

    def permute(self, x: Tensor, dims: Sequence[int]) -> Tensor:
        """The axes in another order."""
        if list(dims) == list(range(x.rank)):
            return x
        return self.prim("permute", x, dims=tuple(dims))

    def slice_axis(
        self, x: Tensor, axis: int, start: Expr, limit: Expr, step: Expr = ONE
    ) -> Tensor:
        """Elements start, start+step, ... of one axis, below limit."""
        starts = [ZERO] * x.rank
        limits, steps = list(x.shape), [ONE] * x.rank
        starts[axis], limits[axis], steps[axis] = start, limit, step
        return self.prim("slice", x, limits=tuple(limits), starts=tuple(starts), steps=tuple(steps))

    def reduce(self, op: str, x: Tensor, axes: Sequence[int], *, keepdim: bool = False) -> Tensor:
        """A reduction over distinct axes; without axes the elements stay as they are."""
        dims = tuple(sorted(axes))
        if not dims:
            # Over one element, the position of an extremum is 0; other reductions give the element.
            return self.full(0, DType.I64, x.shape) if op in _POSITIONS else x
        result = self.prim(op, x, dims=dims)
        if not keepdim:
            return result
        kept = tuple(ONE if axis in dims else extent for axis, extent in enumerate(x.shape))
        return self.reshape(result, kept)

    def scatter(
        self,
        base: Tensor,
        positions: tuple[tuple[int, ...], Sequence[Tensor]],
        updates: Tensor,
        mode: str,
        *,
        is_order_free: bool = False,
    ) -> Tensor:
        """The base with updates at positions: (axes, one index tensor for each axis).

        `mode` says how updates combine with elements. `is_order_free`: the caller knows that the
        order of the updates does not matter, because no element has two different ones.

        Raises:
            NotDecomposedError: the request asks for results that do not depend on scheduling, and
                those of the target's kernels do.
        """
        dims, indices = positions
        is_single = all(extent is ONE for index in indices for extent in index.shape)
        if self.needs_fixed_order and not (is_order_free or is_single):
            _check_order(mode, base.dtype)
        return self.prim("scatter", base, *indices, updates, dims=dims, mode=mode)

    def iota(self, length: Expr, dtype: DType = DType.I64) -> Tensor:
        """0, 1, ..., length-1."""
        return self.prim("iota", dtype=dtype, length=length)

    def seed(self) -> Tensor:
        """64 random bits (i64, no axes) that each run draws anew, for this operator alone.

        Raises:
            NotDecomposedError: the request asks for the random numbers of the framework.
        """
        if not self._is_random_native:
            raise NotDecomposedError("random: the option fallback_random is on")
        self._seeds += 1
        return self.prim("seed", index=self._seeds - 1)

    def promoted(self, *operands: Operand) -> DType:
        """The type in which the operands are computed, by PyTorch's promotion."""
        return result_dtype(map(_category, operands))

    def cast(self, operand: Operand, dtype: DType) -> Tensor:
        """An operand as a tensor of a type."""
        if isinstance(operand, Tensor):
            return self.convert(operand, dtype)
        return self.full(operand, dtype)

    def _as_tensor(self, operand: Operand, dtype: DType, shape: Shape) -> Tensor:
        if isinstance(operand, Tensor):
            return self.expand(operand, shape)
        return self.full(operand, dtype, shape)

    def _aligned(self, x: Tensor, shape: Shape) -> Tensor:
        """The tensor with the extents of `shape` wherever its own are not 1."""
        named = tuple(old if old is ONE else new for old, new in zip(x.shape, shape, strict=True))
        if not self.extents.is_same_shape(x.shape, named):
            raise InvalidGraphError(f"shape {text_of(x.shape)} does not expand to {text_of(shape)}")
        return self.reshape(x, named)


def _check_order(mode: str, dtype: DType) -> None:
    """Checks that updates of one element give the same in every order.

    Raises:
        NotDecomposedError: they do not.
    """
    if mode == "set":
        raise NotDecomposedError(
            "deterministic: kernels of the target may write an element several times, in any order"
        )
    if mode in ("add", "mul") and dtype.is_float:
        raise NotDecomposedError(
            "deterministic: kernels of the target combine floats with an element in any order"
        )


def as_typed(value: Number, dtype: DType) -> Number:
    """A number as the prim `full` of a type contains it."""
    if isinstance(value, Expr):
        return value
    if dtype.is_float:
        return float(value)
    if dtype is DType.BOOL:
        return bool(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidGraphError(f"{value} has no value in {dtype!r}")
    return _wrapped(int(value), dtype)


def _wrapped(value: int, dtype: DType) -> int:
    """An integer wrapped around to the range of a type."""
    span = 1 << (8 * dtype.itemsize_bytes)
    wrapped = value % span
    is_signed = dtype is not DType.U8
    return wrapped - span if is_signed and wrapped >= span // 2 else wrapped


def _category(operand: Operand) -> tuple[Category, DType]:
    if not isinstance(operand, Tensor):
        return Category.NUMBER, number_dtype(operand)
    return (Category.AXES if operand.rank else Category.NO_AXES), operand.dtype

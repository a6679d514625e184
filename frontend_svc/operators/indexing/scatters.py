"""Writes at places that other tensors tell.

Every form becomes the prim `scatter`. Updates that combine (add, multiply, extrema) run in the type
that arithmetic uses, and the result is rounded once.
"""

from __future__ import annotations

from frontend_svc.operators.core.coordinates import numbers_along
from frontend_svc.operators.core.extents import axis_of, numel_of, text_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Number, Tensor, number_of
from frontend_svc.operators.indexing.masks import masked_put
from frontend_svc.operators.indexing.scatter_product import scatter_product
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr

_MODES = {
    "sum": "add",
    "mean": "add",
    "amax": "max",
    "amin": "min",
    "add": "add",
    "prod": "mul",
    "multiply": "mul",
}
_SMALL = frozenset({DType.BOOL, DType.U8, DType.I8, DType.I16})
_INDEX_DTYPES = frozenset({DType.I32, DType.I64})


@decomposes("aten.scatter.src")
def scatter_src(
    builder: PrimsBuilder, self: Tensor, dim: int, index: Tensor, src: Tensor
) -> Tensor:
    """Elements along an axis replaced, at an index of the updates' shape."""
    return _along(builder, "set", self, dim, index, src)


@decomposes("aten.scatter.value")
def scatter_value(
    builder: PrimsBuilder, self: Tensor, dim: int, index: Tensor, value: Number
) -> Tensor:
    """Elements along an axis replaced by a number."""
    return _along(builder, "set", self, dim, index, builder.full(value, self.dtype, index.shape))


@decomposes("aten.scatter_add.default")
def scatter_add(
    builder: PrimsBuilder, self: Tensor, dim: int, index: Tensor, src: Tensor
) -> Tensor:
    """Updates added along an axis."""
    return _along(builder, "add", self, dim, index, src)


@decomposes("aten.scatter.reduce", note="extern for products over many places")
def scatter_with(
    builder: PrimsBuilder, self: Tensor, dim: int, index: Tensor, src: Tensor, *, reduce: str
) -> Tensor:
    """Updates combined along an axis."""
    return _along(builder, _mode(reduce), self, dim, index, src)


@decomposes("aten.scatter.value_reduce", note="extern for products over many places")
def scatter_value_with(
    builder: PrimsBuilder, self: Tensor, dim: int, index: Tensor, value: Number, *, reduce: str
) -> Tensor:
    """A number combined with elements along an axis."""
    updates = builder.full(value, self.dtype, index.shape)
    return _along(builder, _mode(reduce), self, dim, index, updates)


@decomposes("aten.scatter_reduce.two", note="extern for products over many places")
def scatter_reduce(  # noqa: PLR0913  # the operator's own parameters
    builder: PrimsBuilder,
    self: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> Tensor:
    """Updates combined along an axis, with the elements that were there or without."""
    mode, base = _mode(reduce), self
    if not include_self:
        base = scatter_value(builder, self, dim, index, _neutral(mode, self.dtype))
    result = _along(builder, mode, base, dim, index, src)
    if reduce != "mean":
        return result
    ones = builder.full(1, DType.I64, index.shape)
    counts = builder.full(int(include_self), DType.I64, self.shape)
    return _mean(builder, result, _along(builder, "add", counts, dim, index, ones))


@decomposes("aten.index_reduce.default", note="extern for products over many places")
def index_reduce(  # noqa: PLR0913  # the operator's own parameters
    builder: PrimsBuilder,
    self: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> Tensor:
    """Slices combined at the positions of a vector, with those that were there or without."""
    mode, base, positions = _mode(reduce), self, _inside(builder, self, dim, index)
    if not include_self:
        neutral = builder.full(_neutral(mode, self.dtype), self.dtype, source.shape)
        base = _slices(builder, "set", self, dim, (positions, neutral))
    result = _slices(builder, mode, base, dim, (positions, source))
    if reduce != "mean":
        return result
    ones = builder.full(1, DType.I64, source.shape)
    counts = builder.full(int(include_self), DType.I64, self.shape)
    return _mean(builder, result, _slices(builder, "add", counts, dim, (positions, ones)))


@decomposes("aten.put.default")
def put(
    builder: PrimsBuilder, self: Tensor, index: Tensor, source: Tensor, accumulate: bool = False
) -> Tensor:
    """Elements of the flattened tensor replaced, or added to."""
    flat = builder.reshape(self, (numel_of(self.shape),))
    positions = builder.reshape(_integers(builder, index), (numel_of(index.shape),))
    updates = builder.convert(builder.reshape(source, positions.shape), self.dtype)
    mode = "add" if accumulate else "set"
    return builder.reshape(
        _scattered(builder, mode, flat, ((0,), [positions]), updates), self.shape
    )


def _neutral(mode: str, dtype: DType) -> Number:
    neutral = {"add": 0, "mul": 1}
    return neutral[mode] if mode in neutral else _extreme(dtype, is_top=mode == "min")


def _mean(builder: PrimsBuilder, sums: Tensor, counted: Tensor) -> Tensor:
    """Sums by their numbers of updates; integers round down."""
    counts = builder.apply("maximum", counted, 1)
    if not sums.dtype.is_float:
        quotient = builder.apply("floor_div", builder.convert(sums, DType.I64), counts)
        return builder.convert(quotient, sums.dtype)
    wide = builder.widened(sums)
    return builder.convert(
        builder.apply("div", wide, builder.convert(counts, wide.dtype)), sums.dtype
    )


@decomposes(
    "aten.index_put.default", "aten._unsafe_index_put.default", note="extern for several masks"
)
def index_put(
    builder: PrimsBuilder,
    self: Tensor,
    indices: tuple[Tensor | None, ...],
    values: Tensor,
    accumulate: bool = False,
) -> Tensor:
    """Elements at broadcast index tensors replaced, or added to."""
    picked = [(axis, i) for axis, i in enumerate(indices) if i is not None]
    if not picked:
        raise InvalidGraphError("no index; expected one tensor at least")
    if len(indices) > self.rank:
        raise InvalidGraphError(f"{len(indices)} indices for {self.rank} axes; expected no more")
    if any(i.dtype in (DType.BOOL, DType.U8) for _, i in picked):
        return masked_put(builder, self, picked, values, accumulate=accumulate)
    dims = tuple(axis for axis, _ in picked)
    shape = builder.extents.broadcast([i.shape for _, i in picked])
    positions = [builder.expand(_integers(builder, i), shape) for _, i in picked]
    rest = tuple(e for axis, e in enumerate(self.shape) if axis not in dims)
    first = dims[0]
    if dims != tuple(range(first, first + len(dims))):
        first = 0  # index axes that are no neighbours stand in front
    expected = (*rest[:first], *shape, *rest[first:])
    updates = builder.expand(builder.convert(values, self.dtype), expected)
    middle = range(first, first + len(shape))
    order = [*middle, *(axis for axis in range(len(expected)) if axis not in middle)]
    mode = "add" if accumulate else "set"
    return _scattered(builder, mode, self, (dims, positions), builder.permute(updates, order))


@decomposes("aten._index_put_impl.default", note="extern for several masks")
def index_put_impl(  # the operator's own parameters
    builder: PrimsBuilder,
    self: Tensor,
    indices: tuple[Tensor | None, ...],
    values: Tensor,
    accumulate: bool = False,
    unsafe: bool = False,
) -> Tensor:
    """Elements at broadcast index tensors replaced, or added to."""
    return index_put(builder, self, indices, values, accumulate)


@decomposes("aten._unsafe_masked_index_put_accumulate.default")
def unsafe_masked_index_put_accumulate(
    builder: PrimsBuilder,
    self: Tensor,
    mask: Tensor,
    indices: tuple[Tensor | None, ...],
    values: Tensor,
) -> Tensor:
    """Values added at broadcast index tensors where the mask says so."""
    if any(extent == 0 for extent in self.shape):
        return self
    if len(indices) > self.rank:
        raise InvalidGraphError(f"{len(indices)} indices for {self.rank} axes; expected no more")
    held = builder.convert(mask, DType.BOOL)
    # What the mask hides may lie anywhere; PyTorch clamps it as well.
    inside = [
        i if i is None else _clamped(builder, i, self.shape[k]) for k, i in enumerate(indices)
    ]
    return index_put(builder, self, tuple(inside), builder.where(held, values, 0), True)


@decomposes("aten.index_add.default")
def index_add(
    builder: PrimsBuilder,
    self: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    *,
    alpha: Number = 1,
) -> Tensor:
    """Slices added at the positions of a vector."""
    scaled = source
    if source.dtype is DType.BOOL:
        scaled = builder.apply("logical_and", source, bool(alpha))
    elif alpha != 1:
        scaled = builder.apply("mul", source, alpha)
    return _slices(builder, "add", self, dim, (_inside(builder, self, dim, index), scaled))


@decomposes("aten.index_copy.default")
def index_copy(
    builder: PrimsBuilder, self: Tensor, dim: int, index: Tensor, source: Tensor
) -> Tensor:
    """Slices replaced at the positions of a vector."""
    return _slices(builder, "set", self, dim, (_inside(builder, self, dim, index), source))


@decomposes("aten.index_fill.int_Scalar")
def index_fill(
    builder: PrimsBuilder, self: Tensor, dim: int, index: Tensor, value: Number
) -> Tensor:
    """Slices at the positions of a vector filled with a number."""
    return index_fill_tensor(builder, self, dim, index, builder.full(value, self.dtype))


@decomposes("aten.index_fill.int_Tensor")
def index_fill_tensor(
    builder: PrimsBuilder, self: Tensor, dim: int, index: Tensor, value: Tensor
) -> Tensor:
    """Slices at the positions of a vector filled with the one element of a tensor."""
    axis, vector = axis_of(dim, self.rank), builder.reshape(index, (numel_of(index.shape),))
    x = self if self.rank else builder.reshape(self, (ONE,))
    shape = (*x.shape[:axis], vector.shape[0], *x.shape[axis + 1 :])
    updates = builder.expand(builder.convert(builder.reshape(value, ()), self.dtype), shape)
    return _slices(builder, "set", self, dim, (vector, updates))


@decomposes("aten.embedding_dense_backward.default", note="extern for scale_grad_by_freq")
def embedding_dense_backward(  # the operator's own parameters
    builder: PrimsBuilder,
    grad_output: Tensor,
    indices: Tensor,
    num_weights: Expr,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> Tensor:
    """The gradient of a table: each row the sum of what its uses received."""
    if scale_grad_by_freq:
        raise NotDecomposedError("a gradient that is scaled by how often a row is used")
    rows, width = numel_of(indices.shape), grad_output.shape[-1]
    updates = builder.reshape(grad_output, (rows, width))
    positions = builder.reshape(_integers(builder, indices), (rows,))
    if padding_idx >= 0:
        is_used = builder.reshape(builder.apply("ne", positions, padding_idx), (rows, ONE))
        updates = builder.where(is_used, updates, 0)
    zeros = builder.full(0, grad_output.dtype, (num_weights, width))
    return _scattered(builder, "add", zeros, ((0,), [positions]), updates)


def _mode(reduce: str) -> str:
    if reduce not in _MODES:
        raise InvalidGraphError(f"reduce={reduce!r}; expected sum, prod, mean, amax or amin")
    return _MODES[reduce]


def _extreme(dtype: DType, *, is_top: bool) -> Number:
    if dtype.is_float:
        return float("inf") if is_top else float("-inf")
    if dtype is DType.BOOL:
        return is_top
    bits = 8 * dtype.itemsize_bytes
    if dtype is DType.U8:
        return 255 if is_top else 0
    return (1 << (bits - 1)) - 1 if is_top else -(1 << (bits - 1))


def _along(
    builder: PrimsBuilder, mode: str, base: Tensor, dim: int, index: Tensor, updates: Tensor
) -> Tensor:
    """A scatter along one axis; the other axes of the index count from 0."""
    axis = axis_of(dim, base.rank)
    if not base.rank:
        flat = builder.reshape(base, (ONE,))
        parts = (builder.reshape(x, (numel_of(x.shape),)) for x in (index, updates))
        return builder.reshape(_along(builder, mode, flat, 0, *parts), ())
    if any(extent == 0 for extent in index.shape):
        return base
    if not index.rank:
        index, updates = (builder.reshape(x, (ONE,)) for x in (index, updates))
    _check_along(builder, base, axis, index, updates)
    if updates.shape != index.shape:  # updates may be larger than the index
        part = tuple(zip(updates.shape, index.shape, strict=True))
        for k, (whole, used) in enumerate(part):
            if whole is not used:
                updates = builder.slice_axis(updates, k, ZERO, used)
    positions = _inside(builder, base, dim, index)
    updates = builder.convert(updates, base.dtype)
    if mode == "mul":
        return scatter_product(builder, base, axis, positions, updates)
    picks = [
        positions if k == axis else numbers_along(builder, index.shape, k) for k in range(base.rank)
    ]
    return _scattered(builder, mode, base, (tuple(range(base.rank)), picks), updates)


def _check_along(
    builder: PrimsBuilder, base: Tensor, axis: int, index: Tensor, updates: Tensor
) -> None:
    if index.rank != base.rank or updates.rank != base.rank:
        raise InvalidGraphError(
            f"an index with {index.rank} and updates with {updates.rank} axes; expected {base.rank}"
        )
    for k, extent in enumerate(index.shape):
        is_beyond = k != axis and builder.extents.is_negative(base.shape[k] - extent)
        if is_beyond or builder.extents.is_negative(updates.shape[k] - extent):
            seen = f"{text_of(index.shape)} into {text_of(base.shape)} of {text_of(updates.shape)}"
            raise InvalidGraphError(f"an index {seen}; expected it no larger on axis {k}")


def _slices(
    builder: PrimsBuilder, mode: str, base: Tensor, dim: int, parts: tuple[Tensor, Tensor]
) -> Tensor:
    """A scatter of slices at the positions of a vector."""
    axis, (index, updates) = axis_of(dim, base.rank), parts
    x = base if base.rank else builder.reshape(base, (ONE,))
    positions = builder.reshape(_integers(builder, index), (numel_of(index.shape),))
    expected = (*x.shape[:axis], positions.shape[0], *x.shape[axis + 1 :])
    if updates.rank and not builder.extents.is_same_shape(updates.shape, expected):
        raise InvalidGraphError(
            f"slices of shape {text_of(updates.shape)}; expected {text_of(expected)}"
        )
    updates = builder.convert(builder.reshape(updates, expected), base.dtype)
    if mode == "mul":
        return builder.reshape(scatter_product(builder, x, axis, positions, updates), base.shape)
    order = [axis, *(k for k in range(x.rank) if k != axis)]
    found = _scattered(builder, mode, x, ((axis,), [positions]), builder.permute(updates, order))
    return builder.reshape(found, base.shape)


def _scattered(
    builder: PrimsBuilder,
    mode: str,
    base: Tensor,
    positions: tuple[tuple[int, ...], list[Tensor]],
    updates: Tensor,
) -> Tensor:
    """The prim, in a type that updates combine in."""
    dims, indices = positions
    wide = base.dtype if mode == "set" else _combined_dtype(base.dtype)
    x, new = builder.convert(base, wide), builder.convert(updates, wide)
    found = builder.prim("scatter", x, *indices, new, dims=dims, mode=mode)
    if mode in ("min", "max") and wide.is_float:
        # A NaN that was there stays, of whichever sign: atomic extrema compare bits.
        found = builder.where(builder.apply("isnan", x), x, found)
    return builder.convert(found, base.dtype)


def _combined_dtype(dtype: DType) -> DType:
    return DType.I32 if dtype in _SMALL else dtype.compute_dtype


def _clamped(builder: PrimsBuilder, index: Tensor, extent: Expr) -> Tensor:
    least, most = number_of(-extent), number_of(extent - 1)
    return builder.apply(
        "minimum", builder.apply("maximum", _integers(builder, index), least), most
    )


def _integers(builder: PrimsBuilder, index: Tensor) -> Tensor:
    if index.dtype.is_float or index.dtype is DType.BOOL:
        raise InvalidGraphError(f"an index of type {index.dtype!r}; expected integers")
    return index if index.dtype in _INDEX_DTYPES else builder.convert(index, DType.I64)


def _inside(builder: PrimsBuilder, base: Tensor, dim: int, index: Tensor) -> Tensor:
    """The index with what is negative moved outside: these operators do not count from the end."""
    x = builder.convert(_integers(builder, index), DType.I64)
    extent: Number = base.shape[axis_of(dim, base.rank)] if base.rank else 1
    if isinstance(extent, Expr) and extent.is_constant:
        extent = extent.constant
    return builder.where(builder.apply("lt", x, 0), builder.full(extent, DType.I64, x.shape), x)

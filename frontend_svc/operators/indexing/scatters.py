"""Writes at places that other tensors tell.

Every form becomes the prim `scatter`. Updates that combine (add, multiply, extrema) run in the type
that arithmetic uses, and the result is rounded once.
"""

from __future__ import annotations

from frontend_svc.operators.core.coordinates import numbers_along
from frontend_svc.operators.core.extents import axis_of, numel_of, text_of
from frontend_svc.operators.core.prims_builder import Lowering
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Number, Tensor, number_of
from frontend_svc.operators.indexing.masks import put_at_mask
from frontend_svc.operators.indexing.scatter_product import multiplied_along
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
def scatter_src(op: Lowering, self: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """Elements along an axis replaced, at an index of the updates' shape."""
    return _along(op, "set", self, dim, index, src)


@decomposes("aten.scatter.value")
def scatter_value(op: Lowering, self: Tensor, dim: int, index: Tensor, value: Number) -> Tensor:
    """Elements along an axis replaced by a number."""
    return _along(op, "set", self, dim, index, op.full(value, self.dtype, index.shape))


@decomposes("aten.scatter_add.default")
def scatter_add(op: Lowering, self: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """Updates added along an axis."""
    return _along(op, "add", self, dim, index, src)


@decomposes("aten.scatter.reduce", note="extern for products over many places")
def scatter_with(
    op: Lowering, self: Tensor, dim: int, index: Tensor, src: Tensor, *, reduce: str
) -> Tensor:
    """Updates combined along an axis."""
    return _along(op, _mode(reduce), self, dim, index, src)


@decomposes("aten.scatter.value_reduce", note="extern for products over many places")
def scatter_value_with(
    op: Lowering, self: Tensor, dim: int, index: Tensor, value: Number, *, reduce: str
) -> Tensor:
    """A number combined with elements along an axis."""
    updates = op.full(value, self.dtype, index.shape)
    return _along(op, _mode(reduce), self, dim, index, updates)


@decomposes("aten.scatter_reduce.two", note="extern for products over many places")
def scatter_reduce(  # noqa: PLR0913  # the operator's own parameters
    op: Lowering,
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
        base = scatter_value(op, self, dim, index, _neutral(mode, self.dtype))
    result = _along(op, mode, base, dim, index, src)
    if reduce != "mean":
        return result
    ones = op.full(1, DType.I64, index.shape)
    counts = op.full(int(include_self), DType.I64, self.shape)
    return _mean(op, result, _along(op, "add", counts, dim, index, ones))


@decomposes("aten.index_reduce.default", note="extern for products over many places")
def index_reduce(  # noqa: PLR0913  # the operator's own parameters
    op: Lowering,
    self: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> Tensor:
    """Slices combined at the positions of a vector, with those that were there or without."""
    mode, base, places = _mode(reduce), self, _inside(op, self, dim, index)
    if not include_self:
        neutral = op.full(_neutral(mode, self.dtype), self.dtype, source.shape)
        base = _slices(op, "set", self, dim, (places, neutral))
    result = _slices(op, mode, base, dim, (places, source))
    if reduce != "mean":
        return result
    ones = op.full(1, DType.I64, source.shape)
    counts = op.full(int(include_self), DType.I64, self.shape)
    return _mean(op, result, _slices(op, "add", counts, dim, (places, ones)))


@decomposes("aten.put.default")
def put(
    op: Lowering, self: Tensor, index: Tensor, source: Tensor, accumulate: bool = False
) -> Tensor:
    """Elements of the flattened tensor replaced, or added to."""
    flat = op.reshape(self, (numel_of(self.shape),))
    places = op.reshape(_integers(op, index), (numel_of(index.shape),))
    updates = op.convert(op.reshape(source, places.shape), self.dtype)
    mode = "add" if accumulate else "set"
    return op.reshape(_scattered(op, mode, flat, ((0,), [places]), updates), self.shape)


def _neutral(mode: str, dtype: DType) -> Number:
    neutral = {"add": 0, "mul": 1}
    return neutral[mode] if mode in neutral else _extreme(dtype, is_top=mode == "min")


def _mean(op: Lowering, sums: Tensor, counted: Tensor) -> Tensor:
    """Sums by their numbers of updates; integers round down."""
    counts = op.apply("maximum", counted, 1)
    if not sums.dtype.is_float:
        quotient = op.apply("floor_div", op.convert(sums, DType.I64), counts)
        return op.convert(quotient, sums.dtype)
    wide = op.widened(sums)
    return op.convert(op.apply("div", wide, op.convert(counts, wide.dtype)), sums.dtype)


@decomposes(
    "aten.index_put.default", "aten._unsafe_index_put.default", note="extern for several masks"
)
def index_put(
    op: Lowering,
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
        return put_at_mask(op, self, picked, values, accumulate=accumulate)
    dims = tuple(axis for axis, _ in picked)
    shape = op.extents.broadcast([i.shape for _, i in picked])
    placed = [op.expand(_integers(op, i), shape) for _, i in picked]
    rest = tuple(e for axis, e in enumerate(self.shape) if axis not in dims)
    first = dims[0]
    if dims != tuple(range(first, first + len(dims))):
        first = 0  # index axes that are no neighbours stand in front
    wanted = (*rest[:first], *shape, *rest[first:])
    updates = op.expand(op.convert(values, self.dtype), wanted)
    middle = range(first, first + len(shape))
    order = [*middle, *(axis for axis in range(len(wanted)) if axis not in middle)]
    mode = "add" if accumulate else "set"
    return _scattered(op, mode, self, (dims, placed), op.permute(updates, order))


@decomposes("aten._index_put_impl.default", note="extern for several masks")
def index_put_impl(  # the operator's own parameters
    op: Lowering,
    self: Tensor,
    indices: tuple[Tensor | None, ...],
    values: Tensor,
    accumulate: bool = False,
    unsafe: bool = False,
) -> Tensor:
    """Elements at broadcast index tensors replaced, or added to."""
    return index_put(op, self, indices, values, accumulate)


@decomposes("aten._unsafe_masked_index_put_accumulate.default")
def unsafe_masked_index_put_accumulate(
    op: Lowering,
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
    held = op.convert(mask, DType.BOOL)
    # What the mask hides may lie anywhere; PyTorch clamps it as well.
    inside = [i if i is None else _clamped(op, i, self.shape[k]) for k, i in enumerate(indices)]
    return index_put(op, self, tuple(inside), op.where(held, values, 0), True)


@decomposes("aten.index_add.default")
def index_add(
    op: Lowering, self: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Number = 1
) -> Tensor:
    """Slices added at the positions of a vector."""
    scaled = source
    if source.dtype is DType.BOOL:
        scaled = op.apply("logical_and", source, bool(alpha))
    elif alpha != 1:
        scaled = op.apply("mul", source, alpha)
    return _slices(op, "add", self, dim, (_inside(op, self, dim, index), scaled))


@decomposes("aten.index_copy.default")
def index_copy(op: Lowering, self: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """Slices replaced at the positions of a vector."""
    return _slices(op, "set", self, dim, (_inside(op, self, dim, index), source))


@decomposes("aten.index_fill.int_Scalar")
def index_fill(op: Lowering, self: Tensor, dim: int, index: Tensor, value: Number) -> Tensor:
    """Slices at the positions of a vector filled with a number."""
    return index_fill_tensor(op, self, dim, index, op.full(value, self.dtype))


@decomposes("aten.index_fill.int_Tensor")
def index_fill_tensor(op: Lowering, self: Tensor, dim: int, index: Tensor, value: Tensor) -> Tensor:
    """Slices at the positions of a vector filled with the one element of a tensor."""
    axis, vector = axis_of(dim, self.rank), op.reshape(index, (numel_of(index.shape),))
    x = self if self.rank else op.reshape(self, (ONE,))
    shape = (*x.shape[:axis], vector.shape[0], *x.shape[axis + 1 :])
    updates = op.expand(op.convert(op.reshape(value, ()), self.dtype), shape)
    return _slices(op, "set", self, dim, (vector, updates))


@decomposes("aten.embedding_dense_backward.default", note="extern for scale_grad_by_freq")
def embedding_dense_backward(  # the operator's own parameters
    op: Lowering,
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
    updates = op.reshape(grad_output, (rows, width))
    places = op.reshape(_integers(op, indices), (rows,))
    if padding_idx >= 0:
        is_used = op.reshape(op.apply("ne", places, padding_idx), (rows, ONE))
        updates = op.where(is_used, updates, 0)
    zeros = op.full(0, grad_output.dtype, (num_weights, width))
    return _scattered(op, "add", zeros, ((0,), [places]), updates)


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
    op: Lowering, mode: str, base: Tensor, dim: int, index: Tensor, updates: Tensor
) -> Tensor:
    """A scatter along one axis; the other axes of the index count from 0."""
    axis = axis_of(dim, base.rank)
    if not base.rank:
        flat = op.reshape(base, (ONE,))
        parts = (op.reshape(x, (numel_of(x.shape),)) for x in (index, updates))
        return op.reshape(_along(op, mode, flat, 0, *parts), ())
    if any(extent == 0 for extent in index.shape):
        return base
    if not index.rank:
        index, updates = (op.reshape(x, (ONE,)) for x in (index, updates))
    _check_along(op, base, axis, index, updates)
    if updates.shape != index.shape:  # updates may be larger than the index
        part = tuple(zip(updates.shape, index.shape, strict=True))
        for k, (whole, used) in enumerate(part):
            if whole is not used:
                updates = op.slice_axis(updates, k, ZERO, used)
    places = _inside(op, base, dim, index)
    updates = op.convert(updates, base.dtype)
    if mode == "mul":
        return multiplied_along(op, base, axis, places, updates)
    picks = [places if k == axis else numbers_along(op, index.shape, k) for k in range(base.rank)]
    return _scattered(op, mode, base, (tuple(range(base.rank)), picks), updates)


def _check_along(op: Lowering, base: Tensor, axis: int, index: Tensor, updates: Tensor) -> None:
    if index.rank != base.rank or updates.rank != base.rank:
        raise InvalidGraphError(
            f"an index with {index.rank} and updates with {updates.rank} axes; expected {base.rank}"
        )
    for k, extent in enumerate(index.shape):
        is_beyond = k != axis and op.extents.is_negative(base.shape[k] - extent)
        if is_beyond or op.extents.is_negative(updates.shape[k] - extent):
            seen = f"{text_of(index.shape)} into {text_of(base.shape)} of {text_of(updates.shape)}"
            raise InvalidGraphError(f"an index {seen}; expected it no larger on axis {k}")


def _slices(
    op: Lowering, mode: str, base: Tensor, dim: int, parts: tuple[Tensor, Tensor]
) -> Tensor:
    """A scatter of slices at the positions of a vector."""
    axis, (index, updates) = axis_of(dim, base.rank), parts
    x = base if base.rank else op.reshape(base, (ONE,))
    places = op.reshape(_integers(op, index), (numel_of(index.shape),))
    wanted = (*x.shape[:axis], places.shape[0], *x.shape[axis + 1 :])
    if updates.rank and not op.extents.is_same_shape(updates.shape, wanted):
        raise InvalidGraphError(
            f"slices of shape {text_of(updates.shape)}; expected {text_of(wanted)}"
        )
    updates = op.convert(op.reshape(updates, wanted), base.dtype)
    if mode == "mul":
        return op.reshape(multiplied_along(op, x, axis, places, updates), base.shape)
    order = [axis, *(k for k in range(x.rank) if k != axis)]
    found = _scattered(op, mode, x, ((axis,), [places]), op.permute(updates, order))
    return op.reshape(found, base.shape)


def _scattered(
    op: Lowering,
    mode: str,
    base: Tensor,
    places: tuple[tuple[int, ...], list[Tensor]],
    updates: Tensor,
) -> Tensor:
    """The prim, in a type that updates combine in."""
    dims, indices = places
    wide = base.dtype if mode == "set" else _combined_dtype(base.dtype)
    x, new = op.convert(base, wide), op.convert(updates, wide)
    found = op.prim("scatter", x, *indices, new, dims=dims, mode=mode)
    if mode in ("min", "max") and wide.is_float:
        # A NaN that was there stays, of whichever sign: atomic extrema compare bits.
        found = op.where(op.apply("isnan", x), x, found)
    return op.convert(found, base.dtype)


def _combined_dtype(dtype: DType) -> DType:
    return DType.I32 if dtype in _SMALL else dtype.compute_dtype


def _clamped(op: Lowering, index: Tensor, extent: Expr) -> Tensor:
    least, most = number_of(-extent), number_of(extent - 1)
    return op.apply("minimum", op.apply("maximum", _integers(op, index), least), most)


def _integers(op: Lowering, index: Tensor) -> Tensor:
    if index.dtype.is_float or index.dtype is DType.BOOL:
        raise InvalidGraphError(f"an index of type {index.dtype!r}; expected integers")
    return index if index.dtype in _INDEX_DTYPES else op.convert(index, DType.I64)


def _inside(op: Lowering, base: Tensor, dim: int, index: Tensor) -> Tensor:
    """The index with what is negative moved outside: these operators do not count from the end."""
    x = op.convert(_integers(op, index), DType.I64)
    extent: Number = base.shape[axis_of(dim, base.rank)] if base.rank else 1
    if isinstance(extent, Expr) and extent.is_constant:
        extent = extent.constant
    return op.where(op.apply("lt", x, 0), op.full(extent, DType.I64, x.shape), x)

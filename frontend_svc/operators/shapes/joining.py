"""Joining, repeating and padding of tensors."""

from __future__ import annotations

from frontend_svc.operators.core.extents import axis_of, numel_of, text_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder, as_typed
from frontend_svc.operators.core.promotion import promote
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Number, Tensor
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, as_expr, ceil_div


@decomposes("aten.cat.default", "aten.concat.default")
def cat(builder: PrimsBuilder, tensors: tuple[Tensor, ...], dim: int = 0) -> Tensor:
    """The concatenation of tensors along an axis, in their promoted type."""
    if not tensors:
        raise InvalidGraphError("nothing to join; expected at least one tensor")
    dtype = tensors[0].dtype
    for tensor in tensors[1:]:
        dtype = promote(dtype, tensor.dtype)
    # PyTorch skips empty vectors, whatever the ranks of the other tensors are.
    parts = [builder.convert(t, dtype) for t in tensors if t.shape != (ZERO,)]
    if not parts:
        return builder.convert(tensors[0], dtype)
    rank = parts[0].rank
    if not rank or any(part.rank != rank for part in parts):
        raise InvalidGraphError("tensors with different numbers of axes; expected one number >= 1")
    axis = axis_of(dim, rank)
    for part in parts[1:]:
        _check_alike(builder, parts[0], part, axis)
    return parts[0] if len(parts) == 1 else builder.prim("cat", *parts, dim=axis)


@decomposes("aten.stack.default", "aten._stack.default")
def stack(builder: PrimsBuilder, tensors: tuple[Tensor, ...], dim: int = 0) -> Tensor:
    """Tensors of one shape along a new axis."""
    if not tensors:
        raise InvalidGraphError("nothing to stack; expected at least one tensor")
    shape = tensors[0].shape
    axis = axis_of(dim, len(shape) + 1)
    expected = (*shape[:axis], ONE, *shape[axis:])
    for tensor in tensors:
        if not builder.extents.is_same_shape(tensor.shape, shape):
            seen = f"{text_of(shape)} and {text_of(tensor.shape)}"
            raise InvalidGraphError(f"shapes {seen}; expected one shape")
    return cat(builder, tuple(builder.reshape(tensor, expected) for tensor in tensors), axis)


@decomposes("aten._chunk_cat.default")
def chunk_cat(
    builder: PrimsBuilder, tensors: tuple[Tensor, ...], dim: int, num_chunks: int
) -> Tensor:
    """Tensors split in equal chunks along an axis, the last padded with zeros; chunks joined."""
    if not tensors or num_chunks < 1:
        raise InvalidGraphError(f"{len(tensors)} tensors in {num_chunks} chunks; expected 1 each")
    if not all(x.rank for x in tensors):
        raise InvalidGraphError("a tensor without axes; expected at least one axis")
    parts = tuple(_chunks(builder, x, axis_of(dim, x.rank), num_chunks) for x in tensors)
    return cat(builder, parts, axis_of(dim, tensors[0].rank) + 1)


def _chunks(builder: PrimsBuilder, x: Tensor, axis: int, count: int) -> Tensor:
    """The chunks of an axis on this axis, and all elements of a chunk on the next one."""
    each = ceil_div(x.shape[axis], count)
    missing = builder.extents.simplified(each * count - x.shape[axis])
    if missing is not ZERO:
        low, high = [ZERO] * x.rank, [ZERO] * x.rank
        high[axis] = missing
        x = builder.prim("pad", x, high=tuple(high), low=tuple(low), value=as_typed(0, x.dtype))
    behind = numel_of((each, *x.shape[axis + 1 :]))
    return builder.reshape(x, (*x.shape[:axis], as_expr(count), behind))


@decomposes("aten.repeat.default")
def repeat(builder: PrimsBuilder, self: Tensor, repeats: tuple[Expr, ...]) -> Tensor:
    """The tensor tiled along each axis."""
    extra = len(repeats) - self.rank
    if extra < 0 or any(builder.extents.is_negative(count) for count in repeats):
        raise InvalidGraphError(f"repeats {text_of(repeats)} for {self.rank} axes")
    shape = (*([ONE] * extra), *self.shape)
    split = tuple(size for extent in shape for size in (ONE, extent))
    tiled = tuple(size for pair in zip(repeats, shape, strict=True) for size in pair)
    copies = builder.expand(builder.reshape(self, split), tiled)
    return builder.reshape(copies, tuple(n * e for n, e in zip(repeats, shape, strict=True)))


@decomposes("aten.repeat_interleave.self_int")
def repeat_interleave(
    builder: PrimsBuilder,
    self: Tensor,
    repeats: Expr,
    dim: int | None = None,
    *,
    output_size: Expr | None = None,
) -> Tensor:
    """Each element of an axis repeated in place."""
    if builder.extents.is_negative(repeats):
        raise InvalidGraphError(f"{repeats} repeats; expected 0 or more")
    if dim is None or not self.rank:
        flat = builder.extents.resolved((ONE * -1,), numel_of(self.shape))
        x, axis = builder.reshape(self, flat), 0
    else:
        x, axis = self, axis_of(dim, self.rank)
    before, after = x.shape[: axis + 1], x.shape[axis + 1 :]
    copies = builder.expand(builder.reshape(x, (*before, ONE, *after)), (*before, repeats, *after))
    return builder.reshape(copies, (*x.shape[:axis], x.shape[axis] * repeats, *after))


@decomposes("aten.constant_pad_nd.default")
def constant_pad_nd(
    builder: PrimsBuilder, self: Tensor, pad: tuple[Expr, ...], value: Number = 0
) -> Tensor:
    """Axes padded with a number, or shortened where the padding is negative."""
    if len(pad) % 2 or len(pad) > 2 * self.rank:
        raise InvalidGraphError(f"{len(pad)} paddings for {self.rank} axes; expected pairs")
    if isinstance(value, Expr):
        raise NotDecomposedError("padding with a symbolic size")
    low, high, starts = ([ZERO] * self.rank for _ in range(3))
    limits = list(self.shape)
    for pair in range(len(pad) // 2):
        axis = self.rank - 1 - pair
        low[axis], starts[axis] = _grown(builder, pad[2 * pair])
        high[axis], cut = _grown(builder, pad[2 * pair + 1])
        limits[axis] = limits[axis] - cut
        if builder.extents.is_negative(limits[axis] - starts[axis]):
            raise InvalidGraphError(f"padding {text_of(pad)} of shape {text_of(self.shape)}")
    steps = (ONE,) * self.rank
    x = self
    if any(starts) or tuple(limits) != self.shape:
        x = builder.prim("slice", x, limits=tuple(limits), starts=tuple(starts), steps=steps)
    if all(size is ZERO for size in (*low, *high)):
        return x
    number = _pad_value(value, x)
    return builder.prim("pad", x, high=tuple(high), low=tuple(low), value=number)


def _grown(builder: PrimsBuilder, amount: Expr) -> tuple[Expr, Expr]:
    """(elements added, elements cut) for a padding."""
    return (ZERO, -amount) if builder.extents.is_negative(amount) else (amount, ZERO)


def _pad_value(value: bool | int | float, x: Tensor) -> bool | int | float:
    typed = as_typed(value, x.dtype)
    if isinstance(typed, Expr):
        raise InvalidGraphError("a symbolic padding value")
    return typed


def _check_alike(builder: PrimsBuilder, first: Tensor, other: Tensor, axis: int) -> None:
    pairs = enumerate(zip(first.shape, other.shape, strict=True))
    if not all(k == axis or builder.extents.is_same(a, b) for k, (a, b) in pairs):
        seen = f"{text_of(first.shape)} and {text_of(other.shape)}"
        raise InvalidGraphError(f"shapes {seen}; expected equal extents except on axis {axis}")

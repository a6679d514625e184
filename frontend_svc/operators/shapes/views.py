"""Views: the same elements under another shape or order of axes, by value."""

from __future__ import annotations

from frontend_svc.operators.core.extents import Shape, axes_of, axis_of, numel_of, text_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import decomposes
from frontend_svc.operators.core.values import Tensor
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, Expr


@decomposes(
    "aten.alias.default",
    "aten.alias_copy.default",
    "aten.clone.default",
    "aten.contiguous.default",
    "aten.detach.default",
    "aten.detach_copy.default",
    "aten.lift.default",
    "aten.lift_fresh.default",
    "aten.lift_fresh_copy.default",
    "aten.positive.default",
)
def same(builder: PrimsBuilder, self: Tensor) -> Tensor:
    """The operand: a copy has the same value."""
    return self


@decomposes(
    "aten.view.default",
    "aten._unsafe_view.default",
    "aten.view_copy.default",
    "aten._reshape_copy.default",
)
def view(builder: PrimsBuilder, self: Tensor, size: tuple[Expr, ...]) -> Tensor:
    """The elements in row-major order under another shape."""
    return builder.reshape(self, builder.extents.resolved(size, numel_of(self.shape)))


@decomposes("prims.view_of.default")
def view_of(builder: PrimsBuilder, a: Tensor) -> Tensor:
    """The operand."""
    return a


@decomposes("aten.reshape.default")
def reshape(builder: PrimsBuilder, self: Tensor, shape: tuple[Expr, ...]) -> Tensor:
    """The elements in row-major order under another shape."""
    return view(builder, self, shape)


@decomposes("aten._reshape_alias.default", "aten._reshape_alias_copy.default")
def reshape_alias(
    builder: PrimsBuilder, self: Tensor, size: tuple[Expr, ...], stride: tuple[Expr, ...]
) -> Tensor:
    """The elements in row-major order under another shape."""
    return view(builder, self, size)


@decomposes("aten.flatten.using_ints")
def flatten(builder: PrimsBuilder, self: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Consecutive axes joined to one."""
    if not self.rank:
        return builder.reshape(self, (ONE,))
    first, last = axis_of(start_dim, self.rank), axis_of(end_dim, self.rank)
    if first > last:
        raise InvalidGraphError(f"axes {first} to {last}; expected the first before the last")
    joined = numel_of(self.shape[first : last + 1])
    return builder.reshape(self, (*self.shape[:first], joined, *self.shape[last + 1 :]))


@decomposes("aten.permute.default", "aten.permute_copy.default")
def permute(builder: PrimsBuilder, self: Tensor, dims: tuple[int, ...]) -> Tensor:
    """All axes in another order."""
    axes = axes_of(dims, self.rank)
    if len(axes) != self.rank:
        raise InvalidGraphError(f"{len(axes)} dims for {self.rank} axes; expected one each")
    return builder.permute(self, axes)


@decomposes("aten.transpose.int", "aten.transpose_copy.int")
def transpose(builder: PrimsBuilder, self: Tensor, dim0: int, dim1: int) -> Tensor:
    """Two axes exchanged."""
    first, second = axis_of(dim0, self.rank), axis_of(dim1, self.rank)
    if not self.rank:
        return self
    order = list(range(self.rank))
    order[first], order[second] = second, first
    return builder.permute(self, order)


@decomposes("aten.swapaxes.default")
def swapaxes(builder: PrimsBuilder, self: Tensor, axis0: int, axis1: int) -> Tensor:
    """Two axes exchanged."""
    return transpose(builder, self, axis0, axis1)


@decomposes("aten.t.default", "aten.t_copy.default")
def t(builder: PrimsBuilder, self: Tensor) -> Tensor:
    """A matrix transposed; vectors stay."""
    if self.rank > 2:
        raise InvalidGraphError(f"a tensor with {self.rank} axes; expected at most 2")
    return builder.permute(self, (1, 0)) if self.rank == 2 else self


@decomposes("aten.movedim.intlist")
def movedim(
    builder: PrimsBuilder, self: Tensor, source: tuple[int, ...], destination: tuple[int, ...]
) -> Tensor:
    """Axes moved to other positions; the rest keep their order."""
    moved, axis_order = axes_of(source, self.rank), axes_of(destination, self.rank)
    if len(moved) != len(axis_order):
        raise InvalidGraphError(
            f"{len(moved)} axes for {len(axis_order)} positions; expected equal numbers"
        )
    rest = iter(axis for axis in range(self.rank) if axis not in moved)
    at = dict(zip(axis_order, moved, strict=True))
    return builder.permute(self, [at[p] if p in at else next(rest) for p in range(self.rank)])


@decomposes("aten.unsqueeze.default", "aten.unsqueeze_copy.default")
def unsqueeze(builder: PrimsBuilder, self: Tensor, dim: int) -> Tensor:
    """A new axis of extent 1."""
    axis = axis_of(dim, self.rank + 1)
    return builder.reshape(self, (*self.shape[:axis], ONE, *self.shape[axis:]))


@decomposes("aten.squeeze.default", "aten.squeeze_copy.default")
def squeeze(builder: PrimsBuilder, self: Tensor) -> Tensor:
    """All axes of extent 1 dropped."""
    return squeeze_dims(builder, self, tuple(range(self.rank)))


@decomposes(
    "aten.squeeze.dim", "aten.squeeze.dims", "aten.squeeze_copy.dim", "aten.squeeze_copy.dims"
)
def squeeze_dims(builder: PrimsBuilder, self: Tensor, dim: tuple[int, ...]) -> Tensor:
    """The axes of the dims dropped where their extent is 1."""
    axes = axes_of(dim, self.rank)
    kept = [e for axis, e in enumerate(self.shape) if axis not in axes or e is not ONE]
    return builder.reshape(self, tuple(kept))


@decomposes("aten.expand.default", "aten.expand_copy.default")
def expand(
    builder: PrimsBuilder, self: Tensor, size: tuple[Expr, ...], *, implicit: bool = False
) -> Tensor:
    """Axes of extent 1 repeated; -1 keeps an extent."""
    offset = len(size) - self.rank
    if offset < 0:
        raise InvalidGraphError(f"sizes {text_of(size)} for {self.rank} axes; expected no fewer")
    return builder.expand(self, tuple(_expanded(self.shape, size, offset)))


@decomposes("aten.expand_as.default")
def expand_as(builder: PrimsBuilder, self: Tensor, other: Tensor) -> Tensor:
    """Axes of extent 1 repeated to another tensor's shape."""
    return expand(builder, self, other.shape)


@decomposes("aten.pixel_shuffle.default")
def pixel_shuffle(builder: PrimsBuilder, self: Tensor, upscale_factor: int) -> Tensor:
    """Channels rearranged to squares of pixels."""
    factor = _checked_factor(self, upscale_factor)
    *lead, channels, height, width = self.shape
    split = channels // (factor * factor)
    if not builder.extents.is_same(split * (factor * factor), channels):
        raise InvalidGraphError(f"{channels} channels; expected a multiple of {factor * factor}")
    side, n = ONE * factor, len(lead)
    x = builder.reshape(self, (*lead, split, side, side, height, width))
    x = builder.permute(x, (*range(n), n, n + 3, n + 1, n + 4, n + 2))
    return builder.reshape(x, (*lead, split, height * factor, width * factor))


@decomposes("aten.pixel_unshuffle.default")
def pixel_unshuffle(builder: PrimsBuilder, self: Tensor, downscale_factor: int) -> Tensor:
    """Squares of pixels rearranged to channels."""
    factor = _checked_factor(self, downscale_factor)
    *lead, channels, height, width = self.shape
    rows, columns = height // factor, width // factor
    if not builder.extents.is_same_shape((rows * factor, columns * factor), (height, width)):
        raise InvalidGraphError(f"{height} x {width} pixels; expected multiples of {factor}")
    side, n = ONE * factor, len(lead)
    x = builder.reshape(self, (*lead, channels, rows, side, columns, side))
    x = builder.permute(x, (*range(n), n, n + 2, n + 4, n + 1, n + 3))
    return builder.reshape(x, (*lead, channels * (factor * factor), rows, columns))


def _expanded(shape: Shape, size: Shape, offset: int) -> list[Expr]:
    expected = []
    for axis, extent in enumerate(size):
        if extent == -1 and axis >= offset:
            expected.append(shape[axis - offset])
        elif extent.is_constant and extent.constant < 0:
            raise InvalidGraphError(f"size {extent} of axis {axis}; expected 0 or more, or -1")
        else:
            expected.append(extent)
    return expected


def _checked_factor(x: Tensor, factor: int) -> int:
    if x.rank < 3 or factor < 1:
        raise InvalidGraphError(f"factor {factor} of {x.rank} axes; expected 1 and 3 or more")
    return factor

"""The largest elements of windows that begin at random places, which come as numbers.

Source: aten/src/ATen/native/FractionalMaxPool2d.cpp and FractionalMaxPool3d.cpp of PyTorch.
"""

from __future__ import annotations

from frontend_svc.operators.core.extents import numel_of, text_of
from frontend_svc.operators.core.prims_builder import Lowering
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Tensor
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, as_expr, product_of

_SAMPLE_OF_AXIS = {2: (1, 0), 3: (0, 1, 2)}
"""Which of a channel's random numbers is for which axis, from the outermost."""


@decomposes("aten.fractional_max_pool2d.default", note="extern for symbolic sizes")
def fractional_max_pool2d(
    op: Lowering,
    self: Tensor,
    kernel_size: tuple[int, ...],
    output_size: tuple[int, ...],
    random_samples: Tensor,
) -> tuple[Tensor, Tensor]:
    """The largest elements of windows of the last two axes, and where they lie."""
    return _pooled(op, self, kernel_size, output_size, random_samples, 2)


@decomposes("aten.fractional_max_pool3d.default", note="extern for symbolic sizes")
def fractional_max_pool3d(
    op: Lowering,
    self: Tensor,
    kernel_size: tuple[int, ...],
    output_size: tuple[int, ...],
    random_samples: Tensor,
) -> tuple[Tensor, Tensor]:
    """The largest elements of windows of the last three axes, and where they lie."""
    return _pooled(op, self, kernel_size, output_size, random_samples, 3)


def _pooled(  # the operators' own parameters
    op: Lowering,
    x: Tensor,
    kernel: tuple[int, ...],
    sizes: tuple[int, ...],
    samples: Tensor,
    axes: int,
) -> tuple[Tensor, Tensor]:
    if x.rank not in (axes + 1, axes + 2) or len(kernel) != axes or len(sizes) != axes:
        raise InvalidGraphError(f"windows {kernel} of {text_of(x.shape)}; expected {axes} axes")
    if not x.dtype.is_float or min(*kernel, *sizes) < 1:
        raise InvalidGraphError(f"{sizes} windows {kernel} of {x.dtype!r}; expected 1 or more")
    old = x.shape[-axes:]
    if not all(extent.is_constant for extent in old):
        raise NotDecomposedError("windows at random places of a symbolic axis")
    lead = x.shape[:-axes]
    rows = numel_of(lead)
    random = op.reshape(op.convert(samples, x.dtype), (rows, as_expr(axes)))
    place = op.full(0, DType.I64)
    for axis, which in enumerate(_SAMPLE_OF_AXIS[axes]):
        share = op.slice_axis(random, 1, as_expr(which), as_expr(which + 1))
        extent = old[axis].constant
        first = _firsts(op, share, extent, sizes[axis], kernel[axis])
        reached = op.apply(
            "add", op.reshape(first, (*first.shape, ONE)), op.iota(as_expr(kernel[axis]))
        )
        shape = [rows, *([ONE] * (2 * axes))]
        shape[1 + axis], shape[1 + axes + axis] = as_expr(sizes[axis]), as_expr(kernel[axis])
        place = op.apply("add", op.apply("mul", place, extent), op.reshape(reached, tuple(shape)))
    count, taps = product_of([as_expr(n) for n in sizes]), product_of([as_expr(n) for n in kernel])
    flat = op.reshape(x, (rows, numel_of(old)))
    found = op.prim("gather_along", flat, op.reshape(place, (rows, count * taps)), dim=1)
    windows = op.reshape(op.widened(found), (rows, count, taps))
    best = op.reduce("amax", windows, (2,))
    which_tap = op.reshape(op.reduce("argmax", windows, (2,)), (rows, count, ONE))
    where = op.prim("gather_along", op.reshape(place, (rows, count, taps)), which_tap, dim=2)
    wanted = (*lead, *(as_expr(n) for n in sizes))
    return op.reshape(op.convert(best, x.dtype), wanted), op.reshape(where, wanted)


def _firsts(op: Lowering, share: Tensor, extent: int, count: int, taps: int) -> Tensor:
    """Where the windows of each row begin: (rows, count), i64; the last ends with the axis."""
    if extent < taps:
        raise InvalidGraphError(f"windows of {taps} on {extent} elements; expected no more")
    last = extent - taps
    if count == 1:
        return op.full(last, DType.I64, (share.shape[0], ONE))
    wide = op.widened(share)
    step = op.full(last, wide.dtype)
    alpha = op.apply("div", step, count - 1)
    numbers = op.convert(op.iota(as_expr(count)), wide.dtype)
    reached = op.convert(op.apply("mul", op.apply("add", wide, numbers), alpha), DType.I64)
    begun = op.convert(op.apply("mul", wide, alpha), DType.I64)
    is_last = op.apply("eq", op.iota(as_expr(count)), count - 1)
    return op.where(is_last, last, op.apply("sub", reached, begun))

"""Layer, group, batch and root-mean-square normalization, computed in f32 for narrow floats."""

from __future__ import annotations

from frontend_svc.operators.core.extents import Shape, text_of
from frontend_svc.operators.core.prims_builder import Lowering
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Tensor
from frontend_svc.operators.reductions.statistics import mean_of, moments_of
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr

_EPSILON = {DType.F64: 2.220446049250313e-16, DType.F32: 1.1920928955078125e-07}
"""The computing types' distance from 1 to the next number: PyTorch's default eps."""


@decomposes("aten.native_layer_norm.default")
def native_layer_norm(
    op: Lowering,
    input: Tensor,
    normalized_shape: tuple[Expr, ...],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """(x - mean) / sqrt(variance + eps) over the last axes, and the mean and 1/sqrt used."""
    axes = _trailing_axes(op, input, normalized_shape, (weight, bias))
    centered, mean, variance = moments_of(op, op.widened(input), axes)
    rstd = op.prim("rsqrt", op.apply("add", variance, eps))
    result = _scaled(op, op.apply("mul", centered, rstd), weight, bias)
    dtype = statistics_dtype(op, input)
    return op.convert(result, input.dtype), op.convert(mean, dtype), op.convert(rstd, dtype)


@decomposes("aten._fused_rms_norm.default")
def fused_rms_norm(
    op: Lowering,
    input: Tensor,
    normalized_shape: tuple[Expr, ...],
    weight: Tensor | None,
    eps: float | None,
) -> tuple[Tensor, Tensor]:
    """x / sqrt(mean(x * x) + eps) over the last axes, and the 1/sqrt used."""
    result, rstd = _rms_norm(op, input, normalized_shape, weight, eps)
    return result, op.convert(rstd, statistics_dtype(op, input))


@decomposes("aten.rms_norm.default")
def rms_norm(
    op: Lowering,
    input: Tensor,
    normalized_shape: tuple[Expr, ...],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """x / sqrt(mean(x * x) + eps) over the last axes."""
    return _rms_norm(op, input, normalized_shape, weight, eps)[0]


@decomposes("aten.native_group_norm.default")
def native_group_norm(  # noqa: PLR0913, PLR0917  # the operator's own parameters
    op: Lowering,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    N: Expr,  # noqa: N803  # the operator's own names
    C: Expr,  # noqa: N803
    HxW: Expr,  # noqa: N803
    group: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalization over groups of channels and all pixels; the mean and 1/sqrt used."""
    if group < 1 or input.rank < 2 or not op.extents.is_same(C // group * group, C):
        raise InvalidGraphError(f"{group} groups of {C} channels; expected a divisor")
    grouped = _regrouped(op, input, (N, as_extent(group), C // group, HxW))
    centered, mean, variance = moments_of(op, op.widened(grouped), (2, 3))
    rstd = op.prim("rsqrt", op.apply("add", variance, eps))
    result = op.reshape(op.apply("mul", centered, rstd), input.shape)
    result = _scaled(op, result, _per_channel(op, input, weight), _per_channel(op, input, bias))
    dtype = statistics_dtype(op, input)
    shape = (N, as_extent(group))
    return (
        op.convert(result, input.dtype),
        op.convert(op.reshape(mean, shape), dtype),
        op.convert(op.reshape(rstd, shape), dtype),
    )


@decomposes("aten._native_batch_norm_legit_no_training.default")
def batch_norm_no_training(  # noqa: PLR0913, PLR0917  # the operator's own parameters
    op: Lowering,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalization by the running statistics; on a GPU these are saved, on a CPU nothing."""
    x = op.widened(input)
    mean = op.widened(channel_operand(op, input, running_mean))
    variance = op.widened(channel_operand(op, input, running_var))
    rstd = op.prim("rsqrt", op.apply("add", variance, eps))
    result = op.apply("mul", op.apply("sub", x, mean), op.convert(rstd, x.dtype))
    result = _scaled(op, result, _per_channel(op, input, weight), _per_channel(op, input, bias))
    dtype = statistics_dtype(op, input)
    result = op.convert(result, input.dtype)
    if len(op.stated) > 1 and op.stated[1].shape == running_mean.shape:
        saved_mean = op.reshape(mean, running_mean.shape)
        saved_rstd = op.reshape(rstd, running_var.shape)
        return result, op.convert(saved_mean, dtype), op.convert(saved_rstd, dtype)
    empty = op.full(0.0, dtype, (ZERO,))
    return result, empty, empty


@decomposes("aten.native_batch_norm.default", note="extern in training")
def native_batch_norm(  # noqa: PLR0913, PLR0917  # the operator's own parameters
    op: Lowering,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalization by the running statistics in inference."""
    if training or running_mean is None or running_var is None:
        raise NotDecomposedError("batch normalization in training updates its running statistics")
    return batch_norm_no_training(op, input, weight, bias, running_mean, running_var, momentum, eps)


def as_extent(value: int) -> Expr:
    """An integer as an extent."""
    return ONE * value


def _rms_norm(
    op: Lowering,
    x: Tensor,
    normalized_shape: Shape,
    weight: Tensor | None,
    eps: float | None,
) -> tuple[Tensor, Tensor]:
    if not x.dtype.is_float:
        raise InvalidGraphError(f"a normalization of type {x.dtype!r}; expected a float")
    axes = _trailing_axes(op, x, normalized_shape, (weight,))
    wide = op.widened(x)
    square = mean_of(op, op.prim("mul", wide, wide), axes)
    added = _EPSILON[wide.dtype] if eps is None else eps
    rstd = op.prim("rsqrt", op.apply("add", square, added))
    result = _scaled(op, op.apply("mul", wide, rstd), weight, None)
    return op.convert(result, x.dtype), rstd


def _trailing_axes(
    op: Lowering, x: Tensor, normalized_shape: Shape, parameters: tuple[Tensor | None, ...]
) -> tuple[int, ...]:
    first = x.rank - len(normalized_shape)
    if first < 0 or not normalized_shape or not x.dtype.is_float:
        raise InvalidGraphError(
            f"normalized shape {text_of(normalized_shape)} of a {x.dtype!r} tensor"
            f" {text_of(x.shape)}; expected the last extents of a float tensor"
        )
    if not op.extents.is_same_shape(x.shape[first:], normalized_shape):
        raise InvalidGraphError(
            f"normalized shape {text_of(normalized_shape)}; expected {text_of(x.shape[first:])}"
        )
    for parameter in parameters:
        if parameter is not None and not op.extents.is_same_shape(
            parameter.shape, normalized_shape
        ):
            raise InvalidGraphError(
                f"a weight or bias of shape {text_of(parameter.shape)};"
                f" expected {text_of(normalized_shape)}"
            )
    return tuple(range(first, x.rank))


def _scaled(op: Lowering, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    if weight is not None:
        x = op.apply("mul", x, op.convert(weight, x.dtype))
    return x if bias is None else op.apply("add", x, op.convert(bias, x.dtype))


def _regrouped(op: Lowering, x: Tensor, shape: Shape) -> Tensor:
    if not op.extents.is_same_shape(x.shape[:2], (shape[0], shape[1] * shape[2])):
        raise InvalidGraphError(f"{text_of(x.shape)}; expected {shape[0]} x {shape[1] * shape[2]}")
    return op.reshape(x, op.extents.resolved(shape, _numel(x)))


def _numel(x: Tensor) -> Expr:
    total = ONE
    for extent in x.shape:
        total = total * extent
    return total


def _per_channel(op: Lowering, x: Tensor, parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None else channel_operand(op, x, parameter)


def channel_operand(op: Lowering, x: Tensor, parameter: Tensor) -> Tensor:
    """A vector with one element per channel (axis 1), placed to broadcast over the rest."""
    channels = x.shape[1] if x.rank >= 2 else ZERO
    if parameter.rank != 1 or not op.extents.is_same(parameter.shape[0], channels):
        raise InvalidGraphError(
            f"{text_of(parameter.shape)} for {channels} channels; expected one element each"
        )
    return op.reshape(parameter, (channels, *([ONE] * (x.rank - 2))))


def statistics_dtype(op: Lowering, x: Tensor) -> DType:
    """The type of saved statistics: PyTorch's kernels keep the operand's, or its computing type."""
    stated = op.stated[1].dtype if len(op.stated) > 1 else x.dtype
    return stated if stated in (x.dtype, x.dtype.compute_dtype) else x.dtype

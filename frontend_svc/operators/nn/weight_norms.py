"""Weight normalization: weights as a direction and a length, with their gradients."""

from __future__ import annotations

from frontend_svc.operators.core.extents import axis_of, text_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import decomposes
from frontend_svc.operators.core.values import Tensor
from kernelfarm.errors import InvalidGraphError


@decomposes("aten._weight_norm_interface.default")
def weight_norm(builder: PrimsBuilder, v: Tensor, g: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    """v * g / |v|, and the norms |v| of the slices along an axis."""
    axes = _others(v, dim)
    wide = builder.widened(v)
    norms = builder.prim(
        "sqrt", builder.reduce("sum", builder.prim("mul", wide, wide), axes, keepdim=True)
    )
    factor = builder.apply("div", builder.widened(g), norms)
    kept = builder.stated[1].dtype if len(builder.stated) > 1 else v.dtype
    kept = kept if kept is v.dtype.compute_dtype else v.dtype
    return builder.convert(builder.apply("mul", wide, factor), v.dtype), builder.convert(
        norms, kept
    )


@decomposes("aten._weight_norm_interface_backward.default")
def weight_norm_backward(
    builder: PrimsBuilder,
    grad_w: Tensor,
    saved_v: Tensor,
    saved_g: Tensor,
    saved_norms: Tensor,
    dim: int,
) -> tuple[Tensor, Tensor]:
    """The gradients of the direction and of the length."""
    axes = _others(saved_v, dim)
    grad, v, g, norms = (builder.widened(x) for x in (grad_w, saved_v, saved_g, saved_norms))
    dot = builder.reduce("sum", builder.apply("mul", grad, v), axes, keepdim=True)
    of_length = builder.apply("div", dot, norms)
    share = builder.apply("div", of_length, norms)
    projected = builder.apply("sub", grad, builder.apply("mul", v, share))
    of_direction = builder.apply("mul", builder.apply("div", g, norms), projected)
    return builder.convert(of_direction, saved_v.dtype), builder.convert(of_length, saved_g.dtype)


def _others(v: Tensor, dim: int) -> tuple[int, ...]:
    if not v.rank or not v.dtype.is_float:
        raise InvalidGraphError(f"a weight {v.dtype!r} {text_of(v.shape)}; expected float axes")
    kept = axis_of(dim, v.rank)
    return tuple(axis for axis in range(v.rank) if axis != kept)

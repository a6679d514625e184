"""The kernels of each template for the operands of a step, and the numbers of their launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kernelfarm.dtypes import DType
from kernelfarm.errors import InternalError
from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.algebra.simplify import Bounds
from kernelfarm.ir.graph_ir import Node
from kernelfarm.ir.triton.user_kernel import UserKernel
from kernelfarm.targets import GpuFacts, TargetFacts
from optimizer_svc.analysis.graph_facts import expr_attr
from optimizer_svc.analysis.strided_views import StridedView
from optimizer_svc.analysis.templates import (
    ATTENTION_PARTS,
    DEPTHWISE,
    DEPTHWISE_IMAGE,
    DEPTHWISE_WEIGHT,
    FLASH_ATTENTION,
    FLASH_GRADIENTS,
    FLASH_MASK_GRADIENT,
    NIBBLE_PRODUCT,
    PAGED_ATTENTION_PARTS,
    PAGED_FLASH_ATTENTION,
)
from optimizer_svc.kernels.attention_parts import AttentionForm, attention_parts
from optimizer_svc.kernels.depthwise import depthwise_convolution, weight_gradient
from optimizer_svc.kernels.depthwise_tiles import Window
from optimizer_svc.kernels.flash_attention import FlashForm, flash_attention
from optimizer_svc.kernels.flash_gradients import (
    GradientOperands,
    flash_gradients,
    flash_statistics,
)
from optimizer_svc.kernels.flash_mask_gradient import flash_mask_gradient
from optimizer_svc.kernels.nibble_product import nibble_product


@dataclass(frozen=True, slots=True)
class TemplateStep:
    """A step, where its operands are in memory, and the types of their elements."""

    node: Node
    views: Sequence[StridedView]
    dtypes: Sequence[DType]
    bounds: Bounds


@dataclass(frozen=True, slots=True)
class TemplateLaunch:
    """A launch of a kernel: the numbers and the buffers that it passes.

    `buffers` are positions among the step's operands and, behind them, its results. None stands for
    all of them in order.
    """

    kernel: UserKernel
    sizes: tuple[Expr, ...]
    buffers: tuple[int, ...] | None = None


_Launches = tuple[TemplateLaunch, ...]


def template_launches(step: TemplateStep, target: TargetFacts) -> _Launches:
    """The launches of a step, in their order; `launches_of` says how many there are.

    Raises:
        InternalError: the step has not what its template needs.
    """
    return _TEMPLATES[str(step.node.attr("op"))](step, target)


def _attention_parts(step: TemplateStep, target: TargetFacts) -> _Launches:
    facts, scale = target.split_attention, step.node.attr("scale")
    if facts is None or not isinstance(scale, float):
        raise _incomplete(step)
    parts, rows = step.node.types[0].shape[2].as_int(), step.views[1].shape[2]
    form = AttentionForm(parts, scale, rows)
    if step.node.attr("op") == PAGED_ATTENTION_PARTS:
        form = AttentionForm(parts, scale, expr_attr(step.node, "length"), rows.as_int())
    made = attention_parts(step.views, step.dtypes, form, step.bounds, facts)
    return (TemplateLaunch(made.kernel, made.sizes),)


def _flash_attention(step: TemplateStep, _target: TargetFacts) -> _Launches:
    scale = step.node.attr("scale")
    if not isinstance(scale, float):
        raise _incomplete(step)
    is_paged = step.node.attr("op") == PAGED_FLASH_ATTENTION
    form = FlashForm(
        scale,
        is_causal=step.node.attr("is_causal") is True,
        has_sums=len(step.node.results) > 1,
        keys=expr_attr(step.node, "length") if is_paged else None,
    )
    return (TemplateLaunch(*flash_attention(step.views, step.dtypes, form)),)


def _flash_gradients(step: TemplateStep, _target: TargetFacts) -> _Launches:
    scale = step.node.attr("scale")
    if not isinstance(scale, float):
        raise _incomplete(step)
    query, key, value, output, grad, sums, *masks = step.views
    given = GradientOperands(query, key, value, output, grad, sums, masks[0] if masks else None)
    dtype, is_causal = step.dtypes[0], step.node.attr("is_causal") is True
    count = len(step.views)
    grad_query, grad_key, grad_value, statistics = range(count, count + len(step.node.results))
    read = (0, 1, 2, *range(6, count), 4, statistics)
    own_heads = query.shape[1].as_int() // step.node.types[1].shape[2].as_int()
    return (
        TemplateLaunch(*flash_statistics(given, dtype), (3, 4, 5, grad_query, statistics)),
        TemplateLaunch(
            *flash_gradients(given, dtype, scale, is_causal=is_causal, own_heads=own_heads),
            (*read, grad_query, grad_key, grad_value),
        ),
    )


def _flash_mask_gradient(step: TemplateStep, _target: TargetFacts) -> _Launches:
    (result,) = step.node.types
    scale = step.node.attr("scale")
    if not isinstance(scale, float):
        raise _incomplete(step)
    names = ("query", "key", "value", "grad", "statistics", "mask")
    named = dict(zip(names, step.views, strict=True))
    dtypes = (step.dtypes[0], result.dtype)
    return (TemplateLaunch(*flash_mask_gradient(named, dtypes, scale, result.shape[0].as_int())),)


def _nibble_product(step: TemplateStep, target: TargetFacts) -> _Launches:
    (result,) = step.node.types
    centre = step.node.attr("centre")
    if not isinstance(centre, float):
        raise _incomplete(step)
    names = ["x", "words", "scale", *(["zero"] if step.node.attr("has_zero") else []), "bias"]
    named = dict(zip(names, step.views, strict=False))
    types = dict(zip(names, step.dtypes, strict=False)) | {"out": result.dtype}
    gpu = target.section(GpuFacts)
    made = nibble_product(named, types, result.shape[1], centre, gpu)
    return (TemplateLaunch(made.kernel, made.sizes),)


def _depthwise(step: TemplateStep, target: TargetFacts) -> _Launches:
    (result,) = step.node.types
    facts = target.depthwise_template
    if facts is None:
        raise _incomplete(step)
    named = dict(zip(("image", "weight", "bias"), step.views, strict=False))
    made = depthwise_convolution(
        named,
        result.dtype,
        result.shape,
        _window(step, step.views[1].shape),
        facts.filling_programs,
        is_backwards=step.node.attr("op") == DEPTHWISE_IMAGE,
    )
    return (TemplateLaunch(made.kernel, made.sizes),)


def _depthwise_weight(step: TemplateStep, _target: TargetFacts) -> _Launches:
    (result,) = step.node.types
    programs, *sides, _ = result.shape
    named = dict(zip(("gradient", "image"), step.views, strict=True))
    window = _window(step, sides)
    made = weight_gradient(named, step.dtypes[0], programs.as_int(), window)
    return (TemplateLaunch(made.kernel, made.sizes),)


def _window(step: TemplateStep, sides: Sequence[Expr]) -> Window:
    numbers = step.node.attr("window")
    if not isinstance(numbers, tuple):
        raise _incomplete(step)
    first, second, above, left = (n for n in numbers[:4] if isinstance(n, int))
    return Window((sides[0].as_int(), sides[1].as_int()), (first, second), (above, left))


def _incomplete(step: TemplateStep) -> InternalError:
    return InternalError(f"template {step.node.attr('op')} has not what its kernel needs")


_TEMPLATES: Mapping[str, Callable[[TemplateStep, TargetFacts], _Launches]] = {
    ATTENTION_PARTS: _attention_parts,
    PAGED_ATTENTION_PARTS: _attention_parts,
    FLASH_ATTENTION: _flash_attention,
    PAGED_FLASH_ATTENTION: _flash_attention,
    FLASH_GRADIENTS: _flash_gradients,
    FLASH_MASK_GRADIENT: _flash_mask_gradient,
    NIBBLE_PRODUCT: _nibble_product,
    DEPTHWISE: _depthwise,
    DEPTHWISE_IMAGE: _depthwise,
    DEPTHWISE_WEIGHT: _depthwise_weight,
}

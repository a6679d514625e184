"""What a processor's kernel reads of a depthwise convolution, and whether it is in the right order.

Kernels compute vectors of channels, so the channels of the image and of the result are adjacent in
memory. Where the library computes 16 bits in f32, the image of a convolution is a conversion: the
kernel reads what is converted.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, product_of
from kernelfarm.ir.depthwise import DepthwiseShape, refusal
from kernelfarm.ir.graph_ir import Node, TensorType, contiguous_strides
from kernelfarm.targets import DepthwiseFacts
from optimizer_svc.analysis.depthwise import Depthwise
from optimizer_svc.analysis.graph_facts import GraphFacts, operands
from optimizer_svc.analysis.storages import existing_storages
from optimizer_svc.analysis.strided_views import StridedView, is_same_layout, view_between
from optimizer_svc.analysis.verdicts import Refused

_NARROW = (DType.F16, DType.BF16)
_CHANNELS = 1


@dataclass(frozen=True, slots=True)
class DepthwiseOperands:
    """The image that a kernel reads; `is_ordered`: the channels of the weight are adjacent."""

    image: int
    is_ordered: bool


def depthwise_operands(
    facts: GraphFacts, node: Node, found: Depthwise, known: DepthwiseFacts
) -> DepthwiseOperands | Refused:
    """What a kernel reads of a convolution; why the framework computes it, for the report."""
    image = _narrow_image(facts, found.image, known)
    kind, result = facts.types[image], node.types[0]
    if not all(extent.is_constant for extent in (*kind.shape[1:], *result.shape[1:])):
        return Refused("of images of varying size")
    elements = product_of(kind.shape) + product_of(result.shape)
    shape = DepthwiseShape(
        kind.dtype.value,
        kind.shape[_CHANNELS].constant,
        found.sides,
        found.padding,
        result.shape[-1].constant,
        elements.constant if elements.is_constant else None,
    )
    reason = refusal(shape, known)
    if reason is not None:
        return Refused(reason)
    if not (has_last_channels(result) and _steps(facts, image, _CHANNELS) is ONE):
        return Refused("of images whose channels are first in memory")
    return DepthwiseOperands(image, _steps(facts, found.weight, 0) is ONE)


def has_last_channels(tensor: TensorType) -> bool:
    """True if an image (n, c, h, w) lies in memory as (n, h, w, c)."""
    _, channels, height, width = tensor.shape
    row = width * channels
    last = (height * row, ONE, row, channels)
    return tensor.strides is not None and is_same_layout(tensor.shape, tensor.strides, last)


def _narrow_image(facts: GraphFacts, image: int, known: DepthwiseFacts) -> int:
    """What an image of f32 is converted from, if that is an image of 16 bits in the same order."""
    producer = facts.producers.get(image)
    if producer is None or producer.op != "convert":
        return image
    (source,) = operands(producer)
    dtype = facts.types[source].dtype
    is_known = dtype in _NARROW and dtype.value in known.types
    return source if is_known and _steps(facts, source, _CHANNELS) is ONE else image


def _steps(facts: GraphFacts, value: int, axis: int) -> Expr | None:
    """The elements from one point of an axis to the next one in memory; None if it has none."""
    base = facts.base_of(value)
    tensor = facts.types[base]
    strides = tensor.strides or contiguous_strides(tensor.shape)
    view = view_between(facts, value, StridedView(base, tensor.shape, strides))
    return None if isinstance(view, Refused) else view.strides[axis]


def has_window_order(facts: GraphFacts, weight: int) -> bool:
    """True if a weight (c, 1, down, across) is a whole input that lies as (down, across, c)."""
    base = facts.base_of(weight)
    if not facts.is_storage(base) or facts.numel(base) is not facts.numel(weight):
        return False
    view = view_between(facts, weight, existing_storages(facts)[base].whole())
    if isinstance(view, Refused) or view.offset is not ZERO:
        return False
    channels, _, *sides = facts.types[weight].shape
    inner, *steps = contiguous_strides((*sides, channels))[::-1]
    return (view.strides[0], *view.strides[:1:-1]) == (inner, *steps)

"""Depthwise convolutions: each channel of the result is computed from one channel of the image."""

from __future__ import annotations

from dataclasses import dataclass

from kernelfarm.ir.algebra.expr import ONE
from kernelfarm.ir.graph_ir import Arg, Node, TensorType
from optimizer_svc.analysis.extents import is_empty
from optimizer_svc.analysis.graph_facts import GraphFacts, operands, outputs_read
from optimizer_svc.analysis.verdicts import Refused

CONVOLUTION = "aten.convolution.default"
GRADIENTS = "aten.convolution_backward.default"
_RANK = 4


@dataclass(frozen=True, slots=True)
class Depthwise:
    """A depthwise convolution of images: the values of its operands, and how its window moves.

    `sides`, `strides` and `padding` are (down, across), in pixels.

    Shapes: image (n, c, h, w), weight (c, 1, *sides), bias (c)
    """

    image: int
    weight: int
    bias: int | None
    sides: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int]


def depthwise(facts: GraphFacts, node: Node) -> Depthwise | Refused:
    """The depthwise convolution that a node is; why it is none, for the report."""
    if node.attr("op") != CONVOLUTION:
        return Refused("of other operands")
    values = operands(node)
    return _stated(node, values, tuple(facts.types[value] for value in values), node.types)


def _stated(
    node: Node,
    values: tuple[int, ...],
    kinds: tuple[TensorType, ...],
    results: tuple[TensorType, ...],
) -> Depthwise | Refused:
    window = node.attr("window")
    if not isinstance(window, tuple) or not _is_convolution(kinds, results):
        return Refused("of other operands")
    image, weight = kinds[:2]
    channels = image.shape[1]
    is_depthwise = weight.shape[0] is channels and weight.shape[1] is ONE
    if not is_depthwise or not channels.is_constant or window[-1] != channels.constant:
        return Refused("of several channels of the image, or a varying number")
    if not all(side.is_constant and side.constant > 0 for side in weight.shape[2:]):
        return Refused("with a window of varying size")
    numbers = _moves(window)
    if numbers is None:
        return Refused("with dilation")
    down, across = (side.constant for side in weight.shape[2:])
    bias = values[2] if len(values) > 2 else None
    found = Depthwise(values[0], values[1], bias, (down, across), *numbers)
    return found if _fits(image, found, results[0]) else Refused("of other operands")


@dataclass(frozen=True, slots=True)
class DepthwiseGradients:
    """The gradients of such a convolution: of its image, its weight and its bias.

    `gradient` is that of the result; `convolution` has no bias. A node without a bias has a third
    result that nothing reads.
    """

    gradient: int
    convolution: Depthwise


def depthwise_gradients(facts: GraphFacts, node: Node) -> DepthwiseGradients | Refused:
    """The gradients that a node computes; why they are none, for the report."""
    values = operands(node)
    if node.attr("op") != GRADIENTS or len(values) != 3 or len(node.types) != 3:
        return Refused("of other operands")
    kinds = tuple(facts.types[value] for value in values)
    found = _stated(node, values[1:], kinds[1:], kinds[:1])
    if isinstance(found, Refused):
        return found
    image, weight, bias = node.types
    has_bias = bias.shape == weight.shape[:1]
    wanted = node.types if has_bias else node.types[:2]
    is_whole = (image.shape, weight.shape) == tuple(kind.shape for kind in kinds[1:])
    if not is_whole or {tensor.dtype for tensor in wanted} != {kinds[0].dtype}:
        return Refused("of an image without one")
    if not has_bias and _is_read(facts, node.results[2]):
        return Refused("of other operands")
    return DepthwiseGradients(values[0], found)


def _is_read(facts: GraphFacts, value: int) -> bool:
    return value in facts.consumers or value in outputs_read(facts.graph)


def is_depthwise(facts: GraphFacts, node: Node) -> bool:
    """True if a node is a depthwise convolution."""
    return isinstance(depthwise(facts, node), Depthwise)


def _moves(window: tuple[Arg, ...]) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Strides and padding of a window without dilation."""
    first, second, down, across, *dilations, _ = (n if isinstance(n, int) else 0 for n in window)
    if dilations != [1, 1] or first < 1 or second < 1:
        return None
    return (first, second), (down, across)


def _is_convolution(kinds: tuple[TensorType, ...], results: tuple[TensorType, ...]) -> bool:
    """True if ranks and types are those of a convolution of images: the graph is from outside."""
    if len(kinds) not in (2, 3) or len(results) != 1:
        return False
    tensors = (*kinds[:2], results[0])
    if {tensor.rank for tensor in tensors} != {_RANK}:
        return False
    if len({tensor.dtype for tensor in (*kinds, *results)}) != 1 or not kinds[0].dtype.is_float:
        return False
    if any(is_empty(tensor.shape) for tensor in tensors):
        return False
    return all(bias.shape == kinds[1].shape[:1] for bias in kinds[2:])


def _fits(image: TensorType, found: Depthwise, result: TensorType) -> bool:
    """True if the result has the extents of such a convolution.

    Extents that vary are not compared: the same number may be stated in several ways. Kernels read
    no pixel outside of the image, whatever they are.
    """
    if image.shape[:2] != result.shape[:2]:
        return False
    axes = zip(image.shape[2:], found.sides, found.strides, found.padding, strict=True)
    return all(
        not (extent.is_constant and made.is_constant)
        or made.constant == (extent.constant + 2 * padding - side) // stride + 1
        for (extent, side, stride, padding), made in zip(axes, result.shape[2:], strict=True)
    )

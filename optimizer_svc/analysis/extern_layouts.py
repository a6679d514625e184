"""What the framework's operators do with memory layouts.

An operator with free images takes them channels first or last, and gives its results in the layout
of the images. If the framework gives another one at run time, the client's step copies the result,
so that a plan is never wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kernelfarm.ir.algebra.expr import ONE
from kernelfarm.ir.graph_ir import Node, TensorType
from optimizer_svc.analysis.graph_facts import operands

LAST_AXIS = -1
_IMAGE_RANK = 4

_OPS_OF_ANY_STRIDES = frozenset(
    f"aten.{name}"
    for name in (
        *("mm", "_int_mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "linear"),
        *("convolution", "convolution_backward"),
    )
) | {"mkldnn._convolution_pointwise", "mkldnn._linear_pointwise"}


@dataclass(frozen=True, slots=True)
class ImageOperator:
    """An operator with free images: numbers of its operands and results.

    All images have one layout, and the results of `weight_results` have it, too. A weight may have
    any layout; the operator takes the one that an operand asks for. Without `weight`, the weight is
    packed for the library, which then takes and gives images channels last.
    """

    images: tuple[int, ...]
    weight: int | None
    image_results: tuple[int, ...]
    weight_results: tuple[int, ...] = ()

    @property
    def laid_out(self) -> tuple[int, ...]:
        """The operands that have the layout of the images."""
        return self.images if self.weight is None else (*self.images, self.weight)


IMAGE_OPERATORS = {
    # (input, weight, bias) -> output
    "aten.convolution.default": ImageOperator((0,), 1, (0,)),
    # (grad_output, input, weight) -> gradients of input, weight and bias
    "aten.convolution_backward.default": ImageOperator((0, 1), 2, (0,), (1,)),
    # (input, packed weight, bias) -> output
    "mkldnn._convolution_pointwise.default": ImageOperator((0,), None, (0,)),
    # (input, summand, packed weight, bias) -> output
    "mkldnn._convolution_pointwise.binary": ImageOperator((0, 1), None, (0,)),
}
"""Operators with free images, by name: convolutions over two axes."""


def adjacent_axes(node: Node) -> tuple[int | None, ...]:
    """The axis of each operand of an extern node that must be adjacent; None takes any strides.

    Other operators may rely on a contiguous last axis without checking it, as attention kernels do.
    The captured graph guarantees one by copies, which Prims do not show.
    """
    count = len(operands(node))
    stated = node.attr("adjacent")
    if isinstance(stated, tuple) and len(stated) == count:
        return tuple(axis if isinstance(axis, int) else LAST_AXIS for axis in stated)
    if str(node.attr("op")).rpartition(".")[0] in _OPS_OF_ANY_STRIDES:
        return (None,) * count
    return (LAST_AXIS,) * count


def image_operator(node: Node, types: Mapping[int, TensorType]) -> ImageOperator | None:
    """The free images of a node; None if it has none."""
    found = IMAGE_OPERATORS.get(str(node.attr("op"))) if node.op == "extern" else None
    if found is None or len(node.args) <= max(found.laid_out):
        return None
    values = operands(node)
    ranks = {types[values[number]].rank for number in found.laid_out}
    return found if ranks == {_IMAGE_RANK} else None


def image_values(node: Node, types: Mapping[int, TensorType]) -> Iterator[int]:
    """The images that an extern node takes and gives."""
    operator = image_operator(node, types)
    if operator is None:
        return
    yield from (operands(node)[number] for number in operator.images)
    for number in operator.image_results:
        if number < len(node.results) and types[node.results[number]].rank == _IMAGE_RANK:
            yield node.results[number]


def convolution_kind(image: TensorType, weight: TensorType, result: TensorType) -> str:
    """What the speed of a convolution depends on, beside its size; `ChannelsLastFacts` has it."""
    channels, per_group = image.shape[1], weight.shape[1]
    if per_group is ONE and channels is not ONE:
        return "depthwise"
    if channels is not per_group and channels is not weight.shape[0]:
        return "grouped"
    if channels.is_constant and channels.constant <= _FEW_CHANNELS:
        return "few_channels"
    shrunk = result.shape[-1] + result.shape[-1] - image.shape[-1]
    return "strided" if shrunk.is_constant and shrunk.constant <= 1 else "dense"


_FEW_CHANNELS = 4
"""Images, rather than activations: libraries have kernels of their own for them."""

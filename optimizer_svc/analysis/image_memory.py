"""In which memory images are, and whether their channels are first or last there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kernelfarm.ir.graph_ir import Graph, Ref, TensorType, contiguous_strides, tensor_type_of
from optimizer_svc.analysis.extents import is_empty
from optimizer_svc.analysis.extern_layouts import ImageOperator
from optimizer_svc.analysis.graph_facts import GraphFacts, operands
from optimizer_svc.analysis.index_maps import Index
from optimizer_svc.analysis.memory_orders import (
    IMAGE_RANK,
    Frame,
    is_ambiguous,
    keeps_axes,
    label_of,
    strides_of,
)
from optimizer_svc.analysis.strided_views import StridedView, view_between
from optimizer_svc.analysis.verdicts import Refused

WEIGHT_FRAME: Frame = (0, 1, 2, 3)


@dataclass(frozen=True, slots=True)
class ImageMemory:
    """The memory of an operand: that of a free value, or a layout (True: channels last).

    With neither, its layout is another one, or both. If it is both, operators of the framework take
    it for channels last if its strides are exactly so (`looks_last`).
    """

    free: int | None = None
    is_last: bool | None = None
    looks_last: bool = False


@dataclass(frozen=True, slots=True)
class Images:
    """The images of a graph.

    `fixed` has the strides of values whose layout cannot be chosen; `free` are the values that are
    images in memory, also fixed ones.
    """

    facts: GraphFacts
    frames: Mapping[int, Frame]
    fixed: Mapping[int, Index]
    free: frozenset[int]

    def strides(self, value: int, *, is_last: bool) -> Index:
        """The strides of a free value in a layout."""
        return strides_of(self.facts.types[value].shape, self.frames[value], is_last=is_last)

    def label(self, value: int, strides: Index) -> bool | None:
        """The layout of a value with these strides; None if it is neither, or both."""
        frame = self.frames.get(value)
        shape = self.facts.types[value].shape
        return None if frame is None else label_of(shape, strides, frame)

    def memory(self, value: int) -> ImageMemory:
        """The memory of an operand."""
        base = self.base(value)
        if base in self.free and keeps_axes(self.facts, self.frames, value, base):
            return ImageMemory(free=base)
        if value not in self.frames or base in self.free:
            return ImageMemory()
        tensor = self.facts.types[base]
        stated = self.fixed.get(base) or tensor.strides
        whole = StridedView(base, tensor.shape, stated or contiguous_strides(tensor.shape))
        view = view_between(self.facts, value, whole)
        if isinstance(view, Refused):
            return ImageMemory()
        last = self.strides(value, is_last=True)
        looks_last = view.strides == last != contiguous_strides(view.shape)
        return ImageMemory(None, self.label(value, view.strides), looks_last)

    def base(self, value: int) -> int:
        """The value that is in memory, of which an operand is a view."""
        while value not in self.fixed and self.facts.is_view(value):
            value = operands(self.facts.producers[value])[0]
        return value

    def fits(self, value: int, base: int, *, is_last: bool) -> StridedView | Refused:
        """The operand as a view of a free value in a layout."""
        whole = StridedView(base, self.facts.types[base].shape, self.strides(base, is_last=is_last))
        return view_between(self.facts, value, whole)


def images_of(
    facts: GraphFacts, frames: Mapping[int, Frame], operators: Mapping[int, ImageOperator]
) -> Images:
    """The images of a graph with these free operators, by position."""
    known = {**_weights(facts, operators), **frames}
    fixed = dict(_fixed(facts, operators))
    free = (
        value
        for value in known
        if not facts.is_view(value) and _is_image(facts, value, known[value], fixed.get(value))
    )
    return Images(facts, known, fixed, frozenset(free))


def stored_outputs(graph: Graph) -> Iterator[tuple[int, int, TensorType]]:
    """(position, value, type in memory) of the outputs that are tensors; updates as their input."""
    updates = {update.output: graph.inputs[update.input] for update in graph.updates}
    for position, (arg, tensor) in enumerate(zip(graph.outputs, graph.output_types, strict=True)):
        source = updates.get(position)
        stored = tensor if source is None else tensor_type_of(source)
        if isinstance(arg, Ref) and stored is not None:
            yield position, arg.value, stored


def _weights(facts: GraphFacts, operators: Mapping[int, ImageOperator]) -> dict[int, Frame]:
    """The weights of convolutions, which permute like images."""
    nodes = facts.graph.nodes
    weights = (
        operands(nodes[n])[operator.weight]
        for n, operator in operators.items()
        if operator.weight is not None
    )
    return dict.fromkeys(weights, WEIGHT_FRAME)


def _fixed(
    facts: GraphFacts, operators: Mapping[int, ImageOperator]
) -> Iterator[tuple[int, Index]]:
    for source in facts.graph.inputs:
        tensor = tensor_type_of(source)
        if tensor is not None:
            yield source.value, _strides(tensor)
    for position, node in enumerate(facts.graph.nodes):
        if facts.is_storage(node.results[0] if node.results else -1) and position not in operators:
            yield from ((v, _strides(t)) for v, t in zip(node.results, node.types, strict=True))
    seen: set[int] = set()
    for _, value, tensor in stored_outputs(facts.graph):
        if value not in seen and not facts.is_storage(value):
            yield value, _strides(tensor)
        seen.add(value)
    for node in facts.graph.nodes:
        if node.op == "scatter":
            yield node.results[0], contiguous_strides(node.types[0].shape)


def _is_image(facts: GraphFacts, value: int, frame: Frame, fixed: Index | None) -> bool:
    shape = facts.types[value].shape
    if len(shape) != IMAGE_RANK or is_empty(shape) or is_ambiguous(shape, frame):
        return False
    return fixed is None or label_of(shape, fixed, frame) is not None


def _strides(tensor: TensorType) -> Index:
    return contiguous_strides(tensor.shape) if tensor.strides is None else tensor.strides

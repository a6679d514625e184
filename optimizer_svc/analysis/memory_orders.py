"""Orders of axes in memory, and which axes of a value are batch, channels, height and width.

Images have four axes. A convolution names them; prims that keep axes, and permutations, pass the
names on to the values before and after them. So one word, *channels last*, says how values of
different axes lie in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from kernelfarm.ir.algebra.expr import ONE, Expr
from kernelfarm.ir.graph_ir import Node
from kernelfarm.ir.prims import SCALAR_OPS
from kernelfarm.ir.work_budget import spend
from optimizer_svc.analysis.extern_layouts import image_values
from optimizer_svc.analysis.graph_facts import REDUCE_OPS, GraphFacts, ints_attr, operands
from optimizer_svc.analysis.index_maps import Index
from optimizer_svc.analysis.strided_views import is_same_layout

IMAGE_RANK = 4
Frame = tuple[int, ...]
"""The axes of a value that are batch, channels, height and width."""

_IMAGE: Frame = (0, 1, 2, 3)
_KEEPING_VIEWS = frozenset({"slice", "flip", "window", "permute"})
_KEEPING = SCALAR_OPS | {"pad", "cat", "take"} | _KEEPING_VIEWS | REDUCE_OPS


def strides_of(shape: Index, frame: Frame, *, is_last: bool) -> Index:
    """Strides without gaps, channels last or first."""
    batch, channels, height, width = frame
    order = (batch, height, width, channels) if is_last else frame
    strides = [ONE] * len(shape)
    step: Expr = ONE
    for axis in reversed(order):
        strides[axis] = step
        step = step * shape[axis]
    return tuple(strides)


def label_of(shape: Index, strides: Index, frame: Frame) -> bool | None:
    """Whether strides are channels last (True) or first; None if they are neither, or both."""
    fits = [
        is_same_layout(shape, strides, strides_of(shape, frame, is_last=is_last))
        for is_last in (False, True)
    ]
    return None if fits[0] == fits[1] else fits[1]


def is_ambiguous(shape: Index, frame: Frame) -> bool:
    """True if both layouts have each element at the same address: one channel, or one pixel."""
    first, last = (strides_of(shape, frame, is_last=is_last) for is_last in (False, True))
    return is_same_layout(shape, first, last)


def frames_of(facts: GraphFacts, images: Iterable[int] = ()) -> dict[int, Frame]:
    """The axes of all values that are images of convolutions, or related to them.

    `images` are those of convolutions that prims compute. If two ways to a value disagree, the
    first one that is found counts.
    """
    frames: dict[int, Frame] = {}
    pending: list[int] = []

    def define(value: int, frame: Frame | None) -> None:
        if frame is not None and value not in frames:
            frames[value] = frame
            pending.append(value)

    for node in facts.graph.nodes:
        for value in image_values(node, facts.types):
            define(value, _IMAGE)
    for value in images:
        define(value, _IMAGE)
    while pending:
        value = pending.pop()
        spend(2)
        producer = facts.producers.get(value)
        around = [] if producer is None else [producer]
        around += [facts.graph.nodes[n] for n in facts.consumers.get(value, ())]
        for node in around:
            for other, frame in _related(facts, node, value, frames[value]):
                define(other, frame)
    return frames


def _related(
    facts: GraphFacts, node: Node, value: int, frame: Frame
) -> Iterator[tuple[int, Frame | None]]:
    """The other values of a node that keeps the axes of one of them, with their axes."""
    if node.op not in _KEEPING:
        return
    result, sources = node.results[0], framed_operands(node)
    if value != result and value not in sources:
        return
    if node.op == "permute":
        dims = ints_attr(node, "dims")
        if value == result:
            yield sources[0], tuple(dims[axis] for axis in frame)
        else:
            yield result, tuple(dims.index(axis) for axis in frame)
        return
    if node.op in REDUCE_OPS and min(ints_attr(node, "dims"), default=0) <= max(frame):
        return
    spend(len(sources))
    for other in (result, *sources):
        if facts.types[other].rank > max(frame):
            yield other, frame


def framed_operands(node: Node) -> tuple[int, ...]:
    """The operands that have the axes of the result."""
    return operands(node)[:1] if node.op == "take" else operands(node)


def keeps_axes(facts: GraphFacts, frames: Mapping[int, Frame], value: int, base: int) -> bool:
    """True if the views between an image and the value that is in memory keep the image's axes."""
    while value != base:
        node = facts.producers[value]
        source = operands(node)[0]
        if node.op not in _KEEPING_VIEWS or value not in frames or source not in frames:
            return False
        axes = frames[value]
        if node.op == "permute":
            dims = ints_attr(node, "dims")
            axes = tuple(dims[axis] for axis in axes)
        if axes != frames[source]:
            return False
        value = source
    return True

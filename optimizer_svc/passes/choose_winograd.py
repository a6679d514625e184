"""Decides which convolutions by Winograd's algorithm become kernels: all that a target's tiles fit.

A client writes them into the graph of a frozen model, with transformed weights, where the facts of
its target say that they are faster (`kernelfarm/ir/winograd.py`). The report counts them, and says
why the library computes the model's other packed convolutions.
"""

from __future__ import annotations

from collections import Counter

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import Expr, as_expr
from kernelfarm.ir.graph_ir import Graph, Node, TensorType, contiguous_strides
from kernelfarm.ir.panel_order import panel_order
from kernelfarm.ir.winograd import NUMBERS, WINOGRAD, Convolution, padding_of, refusal, tiles_of
from kernelfarm.ir.work_budget import spend
from kernelfarm.targets import TargetFacts, WinogradFacts
from optimizer_svc.analysis.extents import is_empty
from optimizer_svc.analysis.graph_facts import GraphFacts, graph_facts, operands
from optimizer_svc.analysis.index_maps import Index
from optimizer_svc.ir.contraction_choice import ContractionChoice, WinogradValues

_PACKED = {
    "mkldnn._convolution_pointwise.default": 1,
    "mkldnn._convolution_pointwise.binary": 2,
}
"""The operators of packed convolutions, with the number of the weight among their operands."""
_RANK = 4


def choose_winograd(graph: Graph, target: TargetFacts) -> ContractionChoice:
    """The convolutions that transforms and products compute, and why others are packed.

    Memory holds the transformed images, and the images, which are read 16 times. Weights are read
    where they are, in panels.
    """
    nodes = [n for n in graph.nodes if n.attr("op") == WINOGRAD or n.attr("op") in _PACKED]
    if not nodes:
        return ContractionChoice()
    facts = graph_facts(graph)
    images: dict[int, int] = {}
    values: dict[int, WinogradValues] = {}
    strides: dict[int, Index] = {}
    fresh = 1 + max([*facts.types, *(source.value for source in graph.inputs)])
    notes: Counter[str] = Counter()
    for node in nodes:
        spend(8)
        if node.attr("op") != WINOGRAD:
            notes.update(_why_packed(facts, node, target.winograd))
        elif _fits(facts, node, target):
            made = WinogradValues(*range(fresh, fresh + 3))
            fresh += len(made)
            images[node.results[0]] = operands(node)[0]
            values[node.results[0]] = made
            strides |= _strides(facts, node, made, target)
            notes["by Winograd's algorithm"] += 1
        else:
            notes["by Winograd's algorithm by the framework: of other operands"] += 1
    read = {*images.values(), *(made.transformed for made in values.values())}
    return ContractionChoice(
        frozenset(images),
        frozenset(read),
        images,
        tuple(f"convolutions: {count} {text}" for text, count in notes.items()),
        transformed=values,
        strides=strides,
    )


def _fits(facts: GraphFacts, node: Node, target: TargetFacts) -> bool:
    """True if shapes and types are those of such a convolution: the graph came from outside."""
    kinds = [facts.types[value] for value in operands(node)]
    if len(kinds) not in (2, 3) or len(node.types) != 1 or target.processor is None:
        return False
    (image, weight, *biases), (result,) = kinds, node.types
    ranks = [kind.rank for kind in (image, weight, result)]
    if {kind.dtype for kind in (*kinds, result)} != {DType.F32} or ranks != [_RANK] * 3:
        return False
    extents = (*image.shape, *weight.shape, *result.shape)
    if not all(extent.is_constant for extent in extents) or is_empty(extents):
        return False
    channels = result.shape[1]
    order = panel_order(channels, DType.F32, 8 * target.processor.vector_bytes)
    panels = order.shape(channels.constant, image.shape[1].constant)[:-1]
    is_whole = weight.shape == tuple(map(as_expr, (NUMBERS, panels[0], panels[1], panels[2])))
    are_biases = all(bias.shape == (channels,) for bias in biases)
    is_image = image.shape[0] is result.shape[0]
    return is_whole and are_biases and is_image and _padding(image, result) is not None


def _padding(image: TensorType, result: TensorType) -> int | None:
    before, after = ([extent.constant for extent in kind.shape[2:]] for kind in (image, result))
    return padding_of(before, after)


def _strides(
    facts: GraphFacts, node: Node, made: WinogradValues, target: TargetFacts
) -> dict[int, Index]:
    """Strides with a gap behind each of the 16 numbers of all tiles.

    Kernels read or store all 16 numbers of a tile together. Without gaps they often are in the same
    set of a cache, which holds half of them.
    """
    (images, inner, *_), result = facts.types[operands(node)[0]].shape, node.types[0].shape
    tiles = [as_expr(tiles_of(extent.constant)) for extent in result[2:]]
    count = images * tiles[0] * tiles[1]
    return {
        made.stacked: _spread((as_expr(NUMBERS), images, *tiles, inner), target),
        made.products: _spread((as_expr(NUMBERS), count, result[1]), target),
    }


def _spread(shape: tuple[Expr, ...], target: TargetFacts) -> Index:
    part, *inside = contiguous_strides(shape)
    sets = target.memory.cache_sets or 1
    period = sets * target.memory.line_bytes // DType.F32.itemsize_bytes
    gap = (period // NUMBERS - part.constant) % period
    return (as_expr(part.constant + gap), *inside)


def _why_packed(facts: GraphFacts, node: Node, known: WinogradFacts | None) -> list[str]:
    """Why the client packed a convolution; nothing if a target has no facts about others."""
    values, window = operands(node), node.attr("window")
    number = _PACKED[str(node.attr("op"))]
    if known is None or len(values) <= number or not isinstance(window, tuple):
        return []
    image, weight = facts.types[values[0]], facts.types[values[number]]
    sizes = [extent.constant for extent in weight.shape if extent.is_constant]
    if (image.rank, weight.rank, len(sizes)) != (_RANK, _RANK, _RANK):
        return []
    extents = [extent.constant if extent.is_constant else None for extent in image.shape]
    convolution = Convolution(tuple(extents), tuple(sizes), window, image.dtype.value)
    reason = refusal(convolution, known)
    return [] if reason is None else [f"packed, not by Winograd's algorithm: {reason}"]

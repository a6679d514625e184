"""Decides which convolutions kernels compute in place of the framework's library.

A convolution with a window of one pixel is a product of matrices: the pixels of its images by its
weight. Processors compute it in register tiles, with what follows it.
"""

from __future__ import annotations

from collections import Counter

from kernelfarm.ir.algebra.expr import ONE, Expr
from kernelfarm.ir.graph_ir import Graph, Node, TensorType
from kernelfarm.ir.work_budget import spend
from kernelfarm.targets import ConvolutionFacts, TargetFacts
from optimizer_svc.analysis.extents import is_empty, is_single
from optimizer_svc.analysis.graph_facts import GraphFacts, graph_facts, operands
from optimizer_svc.analysis.verdicts import Refused
from optimizer_svc.ir.contraction_choice import ContractionChoice

CONVOLUTION = "aten.convolution.default"
_RANK = 4
_ONE_PIXEL = (1, 1, 0, 0)
"""Strides and padding of a window that moves over each pixel and over nothing else."""


def choose_convolutions(graph: Graph, target: TargetFacts) -> ContractionChoice:
    """The convolutions of a graph that kernels compute, and why they do not compute the others."""
    nodes = [n for n in graph.nodes if n.op == "extern" and n.attr("op") == CONVOLUTION]
    if not nodes or target.convolutions is None:
        return ContractionChoice()
    facts = graph_facts(graph)
    images: dict[int, int] = {}
    factors: set[int] = set()
    refused: Counter[str] = Counter()
    for node in nodes:
        spend(8)
        verdict = _refused(facts, node, target.convolutions)
        if verdict is None:
            image, weight = operands(node)[:2]
            images[node.results[0]] = image
            factors |= {image, weight}
        else:
            refused[verdict.reason] += 1
    notes = [f"convolutions: {len(images)} of one pixel by kernels"] if images else []
    notes += [f"convolutions: {count} by the framework: {why}" for why, count in refused.items()]
    return ContractionChoice(frozenset(images), frozenset(factors), images, tuple(notes))


def _refused(facts: GraphFacts, node: Node, known: ConvolutionFacts) -> Refused | None:
    """Why the framework computes a convolution; None if kernels do."""
    window = node.attr("window")
    kinds = [facts.types[value] for value in operands(node)]
    if not isinstance(window, tuple) or not _is_convolution(kinds, node.types):
        return Refused("of other operands")
    image, weight = kinds[:2]
    if weight.shape[2:] != (ONE, ONE) or window[-1] != 1:
        return Refused("with a window of several pixels, or of groups")
    if window[: len(_ONE_PIXEL)] != _ONE_PIXEL:
        return Refused("with strides or padding")
    is_alone = is_single((image.shape[0], *image.shape[2:]))
    if image.dtype.value not in (known.single if is_alone else known.one_pixel):
        return Refused(f"of {image.dtype.value}, for which kernels were not timed")
    channels = weight.shape[:2]
    if not all(_is_at_least(extent, known.least_channels) for extent in channels):
        return Refused(f"of fewer than {known.least_channels} channels, or a varying number")
    return None


def _is_at_least(extent: Expr, least: int) -> bool:
    return extent.is_constant and extent.constant >= least


def _is_convolution(kinds: list[TensorType], results: tuple[TensorType, ...]) -> bool:
    """True if operands and result are those of a window of one pixel: the graph is from outside."""
    if len(kinds) not in (2, 3) or len(results) != 1 or kinds[0].rank != _RANK:
        return False
    (image, weight, *biases), (result,) = kinds, results
    if weight.rank != _RANK or len({kind.dtype for kind in (*kinds, result)}) != 1:
        return False
    if is_empty(result.shape) or is_empty(image.shape):
        return False
    return all(bias.shape == weight.shape[:1] for bias in biases)

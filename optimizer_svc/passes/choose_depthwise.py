"""Decides which depthwise convolutions kernels compute in place of the framework's library.

The layouts of images are known here. On a GPU, a template kernel takes images whose channels are
last in memory; on a processor, prims become a kernel that takes such ones. The library computes the
others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from kernelfarm.ir.algebra.expr import as_expr
from kernelfarm.ir.graph_ir import Graph, Node, contiguous_strides
from kernelfarm.ir.work_budget import spend
from kernelfarm.targets import DepthwiseFacts, DepthwiseTemplateFacts, TargetFacts
from optimizer_svc.analysis.depthwise import CONVOLUTION, Depthwise, depthwise
from optimizer_svc.analysis.depthwise_operands import depthwise_operands, has_last_channels
from optimizer_svc.analysis.graph_facts import GraphFacts, graph_facts
from optimizer_svc.analysis.index_maps import Index
from optimizer_svc.analysis.verdicts import Refused
from optimizer_svc.ir.contraction_choice import ContractionChoice


def choose_depthwise(graph: Graph, target: TargetFacts) -> ContractionChoice:
    """The depthwise convolutions that kernels compute, and why they do not compute the others."""
    nodes = [n for n in graph.nodes if n.op == "extern" and n.attr("op") == CONVOLUTION]
    if not nodes or (target.depthwise_template is None and target.depthwise is None):
        return ContractionChoice()
    facts = graph_facts(graph)
    pairs = [(node, depthwise(facts, node)) for node in nodes]
    spend(8 * len(nodes))
    found = {node.results[0]: (node, d) for node, d in pairs if isinstance(d, Depthwise)}
    if target.depthwise is not None:
        return _of_processor(facts, found, target.depthwise)
    assert target.depthwise_template is not None  # one of them is
    return _of_template(facts, found, target.depthwise_template)


_Found = Mapping[int, tuple[Node, Depthwise]]


def _of_template(
    facts: GraphFacts, found: _Found, known: DepthwiseTemplateFacts
) -> ContractionChoice:
    images: dict[int, int] = {}
    refused: Counter[str] = Counter()
    for result, (node, each) in found.items():
        verdict = _refused(facts, node, each, known)
        if verdict is None:
            images[result] = each.image
        else:
            refused[verdict.reason] += 1
    notes = _notes(images, refused, "by a template kernel")
    return ContractionChoice(frozenset(images), images=images, notes=notes)


def _of_processor(facts: GraphFacts, found: _Found, known: DepthwiseFacts) -> ContractionChoice:
    """The convolutions that prims compute. Memory holds their images, and weights in their order.

    A weight whose channels are not adjacent is turned by a kernel in each call.
    """
    images: dict[int, int] = {}
    weights: dict[int, int] = {}
    strides: dict[int, Index] = {}
    refused: Counter[str] = Counter()
    fresh = 1 + max([*facts.types, *(source.value for source in facts.graph.inputs)])
    for result, (node, each) in found.items():
        verdict = depthwise_operands(facts, node, each, known)
        if isinstance(verdict, Refused):
            refused[verdict.reason] += 1
            continue
        images[result], weights[result] = verdict.image, fresh
        if not verdict.is_ordered:
            extents = (*map(as_expr, each.sides), node.types[0].shape[1])
            strides[fresh] = contiguous_strides(extents)
        fresh += 1
    return ContractionChoice(
        frozenset(images),
        frozenset(images.values()),
        images,
        _notes(images, refused, "by kernels"),
        weights=weights,
        strides=strides,
    )


def _notes(images: Mapping[int, int], refused: Counter[str], computed: str) -> tuple[str, ...]:
    notes = [f"convolutions: {len(images)} depthwise {computed}"] if images else []
    notes += [
        f"convolutions: {count} depthwise by the framework: {why}" for why, count in refused.items()
    ]
    return tuple(notes)


def _refused(
    facts: GraphFacts, node: Node, found: Depthwise, known: DepthwiseTemplateFacts
) -> Refused | None:
    """Why the framework computes a convolution; None if the template does."""
    image, result = facts.types[found.image], node.types[0]
    down, across = found.sides
    reasons = {
        f"of {image.dtype.value}, for which kernels were not timed": image.dtype.value
        not in known.types,
        f"of fewer than {known.least_channels} channels": image.shape[1].constant
        < known.least_channels,
        f"with a window of more than {known.most_taps} pixels": down * across > known.most_taps,
        "of images whose channels are first in memory": not has_last_channels(result),
    }
    return next((Refused(reason) for reason, holds in reasons.items() if holds), None)

"""Decides which depthwise convolutions kernels compute in place of the framework's library.

The layouts of images are known here. On a GPU, a template kernel takes images whose channels are
last in memory; the library computes the others.
"""

from __future__ import annotations

from collections import Counter

from kernelfarm.ir.algebra.expr import ONE
from kernelfarm.ir.graph_ir import Graph, Node, TensorType
from kernelfarm.ir.work_budget import spend
from kernelfarm.targets import DepthwiseTemplateFacts, TargetFacts
from optimizer_svc.analysis.depthwise import CONVOLUTION, Depthwise, depthwise
from optimizer_svc.analysis.graph_facts import GraphFacts, graph_facts
from optimizer_svc.analysis.strided_views import is_same_layout
from optimizer_svc.analysis.verdicts import Refused
from optimizer_svc.ir.contraction_choice import ContractionChoice


def choose_depthwise(graph: Graph, target: TargetFacts) -> ContractionChoice:
    """The depthwise convolutions that kernels compute, and why they do not compute the others."""
    nodes = [n for n in graph.nodes if n.op == "extern" and n.attr("op") == CONVOLUTION]
    known = target.depthwise_template
    if not nodes or known is None:
        return ContractionChoice()
    facts = graph_facts(graph)
    images: dict[int, int] = {}
    refused: Counter[str] = Counter()
    for node in nodes:
        spend(8)
        found = depthwise(facts, node)
        if isinstance(found, Refused):
            continue
        verdict = _refused(facts, node, found, known)
        if verdict is None:
            images[node.results[0]] = found.image
        else:
            refused[verdict.reason] += 1
    notes = [f"convolutions: {len(images)} depthwise by a template kernel"] if images else []
    notes += [
        f"convolutions: {count} depthwise by the framework: {why}" for why, count in refused.items()
    ]
    return ContractionChoice(frozenset(images), images=images, notes=tuple(notes))


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


def has_last_channels(tensor: TensorType) -> bool:
    """True if an image (n, c, h, w) lies in memory as (n, h, w, c)."""
    _, channels, height, width = tensor.shape
    row = width * channels
    last = (height * row, ONE, row, channels)
    return tensor.strides is not None and is_same_layout(tensor.shape, tensor.strides, last)

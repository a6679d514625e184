"""Decides which depthwise convolutions kernels compute in place of the framework's library.

The layouts of images are known here. On a GPU, a template kernel takes images whose channels are
last in memory; on a processor, prims become kernels that take such images. The library computes
the others.
"""

from __future__ import annotations

import math
from collections import Counter

from kernelfarm.dtypes import DType
from kernelfarm.ir.graph_ir import Graph, Node, TensorType
from kernelfarm.ir.work_budget import spend
from kernelfarm.targets import DepthwiseTemplateFacts, TargetFacts
from optimizer_svc.analysis.depthwise import (
    CONVOLUTION,
    GRADIENTS,
    Depthwise,
    depthwise,
    depthwise_gradients,
)
from optimizer_svc.analysis.depthwise_operands import has_last_channels
from optimizer_svc.analysis.extents import likely_sizes
from optimizer_svc.analysis.graph_facts import GraphFacts, graph_facts
from optimizer_svc.analysis.verdicts import Refused
from optimizer_svc.ir.contraction_choice import ContractionChoice
from optimizer_svc.ir.depthwise_prims import choose_prims
from optimizer_svc.kernels.depthwise import weight_programs
from optimizer_svc.kernels.depthwise_tiles import MAX_STRIDE, Window


def choose_depthwise(graph: Graph, target: TargetFacts) -> ContractionChoice:
    """The depthwise convolutions and gradients that kernels compute, and why not the others."""
    if target.depthwise is not None:
        return choose_prims(graph, target.depthwise)
    operators = {CONVOLUTION: "depthwise", GRADIENTS: "gradients of depthwise ones"}
    nodes = [n for n in graph.nodes if n.op == "extern" and n.attr("op") in operators]
    known = target.depthwise_template
    if not nodes or known is None:
        return ContractionChoice()
    facts = graph_facts(graph)
    images: dict[int, int] = {}
    parts: dict[int, int] = {}
    notes: Counter[str] = Counter()
    for node in nodes:
        spend(8)
        word = operators[str(node.attr("op"))]
        found, tensors = _found(facts, node)
        if isinstance(found, Refused):
            continue
        verdict = _refused(facts, found, tensors, known)
        if verdict is not None:
            notes[f"{word} by the framework: {verdict.reason}"] += 1
            continue
        images[node.results[0]] = found.image
        if len(node.results) > 1:
            window = Window(found.sides, found.strides, found.padding)
            likely = likely_sizes(graph.symbols)
            count = weight_programs(tensors[0].shape, window, known.weight_programs, likely)
            parts[node.results[0]] = count
        notes[f"{word} by template kernels"] += 1
    return ContractionChoice(
        frozenset(images),
        images=images,
        parts=parts,
        notes=tuple(f"convolutions: {count} {text}" for text, count in notes.items()),
    )


def _found(facts: GraphFacts, node: Node) -> tuple[Depthwise | Refused, tuple[TensorType, ...]]:
    """The convolution of a node, and the images that it computes or whose layout a copy gave."""
    if node.attr("op") == CONVOLUTION:
        return depthwise(facts, node), node.types
    gradients = depthwise_gradients(facts, node)
    if isinstance(gradients, Refused):
        return gradients, ()
    return gradients.convolution, (facts.types[gradients.gradient], node.types[0])


def _refused(
    facts: GraphFacts,
    found: Depthwise,
    tensors: tuple[TensorType, ...],
    known: DepthwiseTemplateFacts,
) -> Refused | None:
    """Why the framework computes a convolution; None if templates do."""
    image = facts.types[found.image]
    taps = math.prod(found.sides)
    is_gradient = len(tensors) > 1
    is_wide = image.dtype is DType.F32
    reasons = {
        f"of {image.dtype.value}, for which kernels were not timed": image.dtype.value
        not in known.types,
        f"of fewer than {known.least_channels} channels": image.shape[1].constant
        < known.least_channels,
        f"with a window of more than {known.most_taps} pixels": taps > known.most_taps,
        f"with a stride of more than {MAX_STRIDE} pixels": max(found.strides) > MAX_STRIDE,
        f"of f32 with a window of fewer than {known.least_wide_taps} pixels": is_wide
        and not is_gradient
        and taps < known.least_wide_taps,
        # The last one is a result, whose layout is that of all images of a step.
        "of images whose channels are first in memory": not has_last_channels(tensors[-1]),
    }
    return next((Refused(reason) for reason, holds in reasons.items() if holds), None)

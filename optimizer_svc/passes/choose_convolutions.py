"""Decides which convolutions kernels compute in place of the framework's library.

A convolution with a window of one pixel is a product of matrices: the pixels of its images by its
weight. Processors compute it in register tiles, GPUs by their instructions for matrices, with what
follows it. So a GPU's kernel neither stores nor reads the convolution's own result. The library is
as fast where nothing follows, as in training, where the result's statistics do.

Where the library has no fast code for 16 bits, it computes the others, and gradients, in f32.
`choose_depthwise` decides later which depthwise ones kernels compute after all, and reports them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from kernelfarm.ir.algebra.expr import ONE, Expr, product_of
from kernelfarm.ir.graph_ir import Arg, Graph, Node, TensorType
from kernelfarm.ir.product_choice import ProductChoice
from kernelfarm.ir.work_budget import spend
from kernelfarm.targets import ConvolutionFacts, TargetFacts
from optimizer_svc.analysis.depthwise import CONVOLUTION, is_depthwise
from optimizer_svc.analysis.extents import is_empty, is_single
from optimizer_svc.analysis.following_points import are_points_next
from optimizer_svc.analysis.graph_facts import GraphFacts, graph_facts, operands, outputs_read
from optimizer_svc.analysis.moved_windows import (
    few_channels,
    moved_window,
    split_taps,
    window_refused,
)
from optimizer_svc.analysis.verdicts import Refused
from optimizer_svc.ir.contraction_choice import ContractionChoice

_GRADIENTS = "aten.convolution_backward.default"
_RANK = 4
# Tensor maps take rows of 16 bytes and their multiples.
_EVEN_CHANNELS = 8
_ONE_PIXEL = (1, 1, 0, 0)
"""Strides and padding of a window that moves over each pixel and over nothing else."""


def choose_convolutions(
    graph: Graph, target: TargetFacts, choice: ProductChoice = ProductChoice.AUTO
) -> ContractionChoice:
    """The convolutions of a graph that kernels compute, and why they do not compute the others.

    On a GPU they are products of matrices, about which a request may choose.
    """
    nodes = [n for n in graph.nodes if n.attr("op") in (CONVOLUTION, _GRADIENTS)]
    if not nodes or target.convolutions is None:
        return ContractionChoice()
    facts = graph_facts(graph)
    images: dict[int, int] = {}
    factors: set[int] = set()
    widened: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    wide_results: set[int] = set()
    rows: dict[int, int] = {}
    weights: dict[int, int] = {}
    splits: dict[int, int] = {}
    returned = frozenset(outputs_read(graph))
    fresh = 1 + max([*facts.types, *(source.value for source in graph.inputs)])
    for node in nodes:
        spend(8)
        verdict = _verdict(facts, node, target.convolutions)
        is_moved = False
        if target.has_matrix_units and verdict is None:
            verdict = _product_refused(facts, node, target.convolutions, choice, returned)
        elif target.has_matrix_units and _has_window(facts, node, target.convolutions):
            verdict = _moved_refused(facts, node, target.convolutions, choice, returned)
            is_moved = verdict is None
        has_depthwise = (target.depthwise or target.depthwise_template) is not None
        is_reported_later = has_depthwise and is_depthwise(facts, node)
        if verdict is None:
            image, weight = operands(node)[:2]
            images[node.results[0]] = image
            if is_moved:
                splits[node.results[0]] = _split_taps(facts, node, target)
                weights[node.results[0]] = fresh + len(rows) + len(weights)
            else:
                factors.add(weight)
            if target.has_matrix_units:
                rows[node.results[0]] = fresh + len(rows) + len(weights)
            else:
                factors.add(image)
        elif _is_widened(facts, node, target.convolutions):
            widened[node.types[0].dtype.value] += not is_reported_later
            wide_results.update(node.results)
        elif node.attr("op") == CONVOLUTION and not is_reported_later:
            refused[verdict.reason] += 1
    counts = {"of one pixel": len(images) - len(weights), "by a window": len(weights)}
    notes = [f"convolutions: {count} {kind} by kernels" for kind, count in counts.items() if count]
    notes += [
        f"convolutions: {count} of {dtype} by the framework in f32, which takes it less time"
        for dtype, count in widened.items()
        if count
    ]
    notes += [f"convolutions: {count} by the framework: {why}" for why, count in refused.items()]
    return ContractionChoice(
        frozenset(images),
        frozenset(factors),
        images,
        tuple(notes),
        widened=frozenset(wide_results),
        rows=rows,
        weights=weights,
        split_taps=splits,
    )


def _verdict(facts: GraphFacts, node: Node, known: ConvolutionFacts) -> Refused | None:
    """Why kernels do not compute a node; None if they do."""
    is_forward = node.attr("op") == CONVOLUTION
    return _refused(facts, node, known) if is_forward else Refused("that are gradients")


def _is_widened(facts: GraphFacts, node: Node, known: ConvolutionFacts) -> bool:
    """True if all that a node reads and gives has one type, for which the library is slow."""
    kinds = [*(facts.types[value] for value in operands(node)), *node.types]
    dtypes = {kind.dtype for kind in kinds}
    return bool(node.types) and len(dtypes) == 1 and kinds[0].dtype.value in known.widened


def _refused(facts: GraphFacts, node: Node, known: ConvolutionFacts) -> Refused | None:
    """Why the framework computes a convolution; None if kernels do."""
    window = node.attr("window")
    kinds = [facts.types[value] for value in operands(node)]
    if not isinstance(window, tuple) or not _is_convolution(kinds, node.types):
        return Refused("of other operands")
    image, weight = kinds[:2]
    refused = _window_refused(window, weight)
    if refused is not None:
        return refused
    if not _keeps_pixels(image, weight, node.types[0]):
        return Refused("of other operands")
    is_alone = is_single((image.shape[0], *image.shape[2:]))
    if image.dtype.value not in (known.single if is_alone else known.one_pixel):
        return Refused(f"of {image.dtype.value}, for which kernels were not timed")
    channels = weight.shape[:2]
    if not all(_is_at_least(extent, known.least_channels) for extent in channels):
        return Refused(f"of fewer than {known.least_channels} channels, or a varying number")
    return None


def _product_refused(
    facts: GraphFacts,
    node: Node,
    known: ConvolutionFacts,
    choice: ProductChoice,
    returned: Collection[int],
) -> Refused | None:
    """Why a GPU's kernels do not compute a convolution of one pixel; None if they do."""
    image, result = facts.types[operands(node)[0]], node.types[0]
    if not all(extent.is_constant for extent in (*image.shape, *result.shape)):
        return Refused("of one pixel, of varying sizes")
    if any(extent.constant % _EVEN_CHANNELS for extent in (image.shape[1], result.shape[1])):
        return Refused(f"of one pixel, whose channels are no multiples of {_EVEN_CHANNELS}")
    pixels = product_of([image.shape[0], *image.shape[2:]]).constant
    if pixels < known.least_pixels and choice is ProductChoice.AUTO:
        return Refused(f"of one pixel, for fewer than {known.least_pixels} pixels")
    return _choice_refused(facts, node, choice, returned, "of one pixel")


def _choice_refused(
    facts: GraphFacts, node: Node, choice: ProductChoice, returned: Collection[int], kind: str
) -> Refused | None:
    """Why the request, or what follows a convolution, leaves it to the library."""
    if choice is ProductChoice.LIBRARY:
        return Refused(f"{kind}, because the request asks for the library")
    if choice is ProductChoice.AUTO and not are_points_next(facts, node.results[0], returned):
        return Refused(f"{kind} with nothing to compute behind them")
    return None


def _has_window(facts: GraphFacts, node: Node, known: ConvolutionFacts) -> bool:
    """True for a convolution by a window that moves over more than each pixel."""
    window, kinds = node.attr("window"), [facts.types[value] for value in operands(node)]
    if not known.windows or node.attr("op") != CONVOLUTION or not isinstance(window, tuple):
        return False
    return _is_convolution(kinds, node.types) and _window_refused(window, kinds[1]) is not None


def _split_taps(facts: GraphFacts, node: Node, target: TargetFacts) -> int:
    """The axes of a chosen convolution's window whose pixels are slices of the sum."""
    image, weight = (facts.types[value] for value in operands(node)[:2])
    window = moved_window(node, weight)
    if isinstance(window, Refused) or target.gpu is None:
        return 0
    if few_channels(window, image, node.types[0]) is not None:
        return 0
    return split_taps(window, weight, node.types[0], target.gpu)


def _moved_refused(
    facts: GraphFacts,
    node: Node,
    known: ConvolutionFacts,
    choice: ProductChoice,
    returned: Collection[int],
) -> Refused | None:
    """Why a GPU's kernels do not compute a convolution by a window; None if they do."""
    kinds = [facts.types[value] for value in operands(node)]
    window = moved_window(node, kinds[1])
    if isinstance(window, Refused):
        return window
    refused = window_refused(window, (kinds[0], kinds[1], node.types[0]), known)
    return refused or _choice_refused(facts, node, choice, returned, "by a window")


def _window_refused(window: tuple[Arg, ...], weight: TensorType) -> Refused | None:
    """Why kernels compute no convolution with a window; None if they do."""
    if weight.shape[2:] != (ONE, ONE) or window[-1] != 1:
        return Refused("with a window of several pixels, or of groups")
    if window[: len(_ONE_PIXEL)] != _ONE_PIXEL:
        return Refused("with strides or padding")
    return None


def _is_at_least(extent: Expr, least: int) -> bool:
    return extent.is_constant and extent.constant >= least


def _is_convolution(kinds: list[TensorType], results: tuple[TensorType, ...]) -> bool:
    """True if ranks and types are those of a convolution of images: the graph is from outside."""
    if len(kinds) not in (2, 3) or len(results) != 1 or kinds[0].rank != _RANK:
        return False
    (image, weight, *biases), (result,) = kinds, results
    if weight.rank != _RANK or len({kind.dtype for kind in (*kinds, result)}) != 1:
        return False
    if result.rank != _RANK or is_empty(result.shape) or is_empty(image.shape):
        return False
    return all(bias.shape == weight.shape[:1] for bias in biases)


def _keeps_pixels(image: TensorType, weight: TensorType, result: TensorType) -> bool:
    """True if the shapes are those of a window of one pixel that moves over each pixel."""
    (images, channels, *pixels), (results, inner) = image.shape, weight.shape[:2]
    return channels is inner and result.shape == (images, results, *pixels)

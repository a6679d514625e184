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
from dataclasses import dataclass, replace
from itertools import count

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
from optimizer_svc.analysis.points_to_store import last_points, points_that_meet
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
    chooser = _Chooser(graph_facts(graph), target, target.convolutions, choice)
    for node in nodes:
        spend(8)
        chooser.add(node)
    return chooser.result()


class _Chooser:
    """The convolutions so far, and the reasons against the others."""

    def __init__(
        self,
        facts: GraphFacts,
        target: TargetFacts,
        known: ConvolutionFacts,
        choice: ProductChoice,
    ) -> None:
        self._facts, self._target, self._known = facts, target, known
        self._choice = choice
        self._returned = frozenset(outputs_read(facts.graph))
        self._images: dict[int, int] = {}
        self._factors: set[int] = set()
        self._widened: Counter[str] = Counter()
        self._wide_results: set[int] = set()
        self._refused: Counter[str] = Counter()
        self._rows: dict[int, int] = {}
        self._weights: dict[int, int] = {}
        self._splits: dict[int, int] = {}
        self._stored: set[int] = set()
        inputs = (source.value for source in facts.graph.inputs)
        self._fresh = count(1 + max([*facts.types, *inputs]))

    def add(self, node: Node) -> None:
        """Decides about a convolution, or about its gradients."""
        verdict = self._decided(node)
        if not isinstance(verdict, Refused):
            self._take(node, verdict)
            return
        facts, target = self._facts, self._target
        has_depthwise = (target.depthwise or target.depthwise_template) is not None
        is_reported_later = has_depthwise and is_depthwise(facts, node)
        if _is_widened(facts, node, self._known):
            self._widened[node.types[0].dtype.value] += not is_reported_later
            self._wide_results.update(node.results)
        elif node.attr("op") == CONVOLUTION and not is_reported_later:
            self._refused[verdict.reason] += 1

    def _decided(self, node: Node) -> _Chosen | Refused:
        """How kernels compute a node; why they do not."""
        refused = _verdict(self._facts, node, self._known)
        if not self._target.has_matrix_units:
            return refused or _Chosen()
        return self._product(node) if refused is None else self._moved(node, refused)

    def result(self) -> ContractionChoice:
        """The choice, with its reasons."""
        images = self._images
        if self._target.has_matrix_units:
            self._stored |= points_that_meet(self._facts, images)
        counts = {
            "of one pixel": len(images) - len(self._weights),
            "by a window": len(self._weights),
        }
        notes = [f"convolutions: {n} {kind} by kernels" for kind, n in counts.items() if n]
        notes += [
            f"convolutions: {n} of {dtype} by the framework in f32, which takes it less time"
            for dtype, n in self._widened.items()
            if n
        ]
        notes += [f"convolutions: {n} by the framework: {why}" for why, n in self._refused.items()]
        return ContractionChoice(
            frozenset(images),
            frozenset(self._factors),
            images,
            tuple(notes),
            widened=frozenset(self._wide_results),
            rows=self._rows,
            weights=self._weights,
            split_taps=self._splits,
            stored=frozenset(self._stored),
        )

    def _take(self, node: Node, chosen: _Chosen) -> None:
        (result,), (image, weight) = node.results, operands(node)[:2]
        self._images[result] = image
        self._stored |= chosen.stored
        if chosen.split_taps is None:
            self._factors.add(weight)
        else:
            self._weights[result] = next(self._fresh)
            self._splits[result] = chosen.split_taps
        if self._target.has_matrix_units:
            self._rows[result] = next(self._fresh)
        else:
            self._factors.add(image)

    def _product(self, node: Node) -> _Chosen | Refused:
        """How a GPU's kernels compute a convolution of one pixel; why they do not."""
        image, result = self._facts.types[operands(node)[0]], node.types[0]
        if not all(extent.is_constant for extent in (*image.shape, *result.shape)):
            return Refused("of one pixel, of varying sizes")
        if any(extent.constant % _EVEN_CHANNELS for extent in (image.shape[1], result.shape[1])):
            return Refused(f"of one pixel, whose channels are no multiples of {_EVEN_CHANNELS}")
        pixels = product_of([image.shape[0], *image.shape[2:]]).constant
        if pixels < self._known.least_pixels and self._choice is ProductChoice.AUTO:
            return Refused(f"of one pixel, for fewer than {self._known.least_pixels} pixels")
        return self._with_points(node, "of one pixel", _Chosen())

    def _moved(self, node: Node, otherwise: Refused) -> _Chosen | Refused:
        """How a GPU's kernels compute a convolution by a window; why they do not."""
        if not _has_window(self._facts, node, self._known):
            return otherwise
        image, weight = (self._facts.types[value] for value in operands(node)[:2])
        window, result = moved_window(node, weight), node.types[0]
        if isinstance(window, Refused):
            return window
        refused = window_refused(window, (image, weight, result), self._known)
        if refused is not None:
            return refused
        is_wide, gpu = few_channels(window, image, result) is None, self._target.gpu
        split = split_taps(window, weight, result, gpu) if is_wide and gpu else 0
        # Alone, the library is as fast, but for few tiles, or images of few channels.
        is_faster = split > 0 or not is_wide
        return self._with_points(node, "by a window", _Chosen(split), is_faster=is_faster)

    def _with_points(
        self, node: Node, kind: str, chosen: _Chosen, *, is_faster: bool = False
    ) -> _Chosen | Refused:
        """The convolution with what follows; why the request, or that, leaves it to the library.

        `is_faster`: a kernel is, even with nothing behind it.
        """
        if self._choice is ProductChoice.LIBRARY:
            return Refused(f"{kind}, because the request asks for the library")
        (result,) = node.results
        ends = last_points(self._facts, result)
        is_faster |= any(end != result for end in ends) or self._choice is ProductChoice.OWN
        if not is_faster and not are_points_next(self._facts, result, self._returned):
            return Refused(f"{kind} with nothing to compute behind them")
        return replace(chosen, stored=ends)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A convolution that kernels compute.

    Memory holds the `stored` values behind it: reductions or the like follow, whose kernels would
    compute them again. `split_taps`: the pixels of so many axes of its window are slices of the
    sum; None without a window.
    """

    split_taps: int | None = None
    stored: frozenset[int] = frozenset()


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


def _has_window(facts: GraphFacts, node: Node, known: ConvolutionFacts) -> bool:
    """True for a convolution by a window that moves over more than each pixel."""
    window, kinds = node.attr("window"), [facts.types[value] for value in operands(node)]
    if not known.windows or node.attr("op") != CONVOLUTION or not isinstance(window, tuple):
        return False
    return _is_convolution(kinds, node.types) and _window_refused(window, kinds[1]) is not None


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

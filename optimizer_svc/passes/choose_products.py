"""Decides which products with few rows kernels compute instead of the framework's library.

A product x (m, k) by a transposed weight w (n, k) with few rows takes about as long as memory takes
to deliver the weight. The target's facts have measured times of the library and of kernels for some
m. Between those, a kernel is expected to take as long as for the next larger m, the library as long
as for the next smaller one.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernelfarm.dtypes import DType
from kernelfarm.ir.graph_ir import Graph, Node, TensorType, contiguous_strides
from kernelfarm.ir.work_budget import spend
from kernelfarm.targets import FewRowFacts, ProductTimes, TargetFacts
from optimizer_svc.analysis.graph_facts import GraphFacts, graph_facts, operands
from optimizer_svc.ir.products import NO_PRODUCTS, Products

PRODUCT = "aten.mm.default"
"""Without scalar arguments, which a Prims graph does not hold."""
_TRANSPOSED = (1, 0)
_RANK = 2
_FACTORS = 2
_NARROW = (DType.F16, DType.BF16)


@dataclass(frozen=True, slots=True)
class _Expected:
    """Expected times of a product, as multiples of the library's time for one row."""

    kernel: float
    library: float

    @property
    def is_kernel_faster(self) -> bool:
        return self.kernel < self.library


def choose_products(graph: Graph, target: TargetFacts) -> Products:
    """The products of a graph that kernels compute, and the times of all that they could."""
    products = [node for node in graph.nodes if node.attr("op") == PRODUCT]
    if target.few_rows is None or not products:
        return NO_PRODUCTS
    facts = graph_facts(graph)
    weights: dict[int, int] = {}
    stored: set[int] = set()
    notes: dict[str, None] = {}
    for node in products:
        spend(8)
        weight = _weight_of(facts, node)
        expected = None if weight is None else _expected(facts, node, weight, target.few_rows)
        if weight is None or expected is None:
            continue
        if expected.is_kernel_faster:
            weights[node.results[0]] = weight
            stored.add(operands(node)[0])
        notes[_note(node, expected)] = None
    return Products(weights, frozenset(stored), target.few_rows.are_tiled, tuple(notes))


def _weight_of(facts: GraphFacts, node: Node) -> int | None:
    """The weight (n, k) with contiguous rows of a product by its transpose; else None."""
    if len(operands(node)) != _FACTORS:
        return None
    x, transposed = operands(node)
    view = facts.producers.get(transposed)
    if view is None or view.op != "permute" or view.attr("dims") != _TRANSPOSED:
        return None
    (weight,) = operands(view)
    kind = facts.types[weight]
    is_row_major = kind.strides == contiguous_strides(kind.shape)
    is_usable = facts.is_storage(weight) and is_row_major
    return weight if is_usable and _is_product(node, facts.types[x], kind) else None


def _is_product(node: Node, x: TensorType, weight: TensorType) -> bool:
    """True if shapes and types are those of a product: the graph came from outside."""
    if len(node.types) != 1 or x.rank != _RANK:
        return False
    (result,) = node.types
    has_one_dtype = x.dtype is weight.dtype is result.dtype
    (rows, inner), (n, k) = x.shape, weight.shape
    return has_one_dtype and inner is k and result.shape == (rows, n)


def _expected(facts: GraphFacts, node: Node, weight: int, known: FewRowFacts) -> _Expected | None:
    """The times of a product; None if its sizes vary, or nothing is known about such products."""
    kind = facts.types[weight]
    times = _times(kind.dtype, known)
    extents = (node.types[0].shape[0], *kind.shape)
    if times is None or not all(extent.is_constant for extent in extents):
        return None
    rows, n, k = (extent.constant for extent in extents)
    if n * k * kind.dtype.itemsize_bytes < times.min_weight_bytes:
        return None
    kernel = [(int(m), time) for m, time in times.kernel if int(m) >= rows]
    library = [(int(m), time) for m, time in times.library if int(m) <= rows]
    return _Expected(min(kernel)[1], max(library)[1]) if kernel and library else None


def _times(dtype: DType, known: FewRowFacts) -> ProductTimes | None:
    if dtype is DType.F32:
        return known.wide
    return known.narrow if dtype in _NARROW else None


def _note(node: Node, expected: _Expected) -> str:
    rows, columns = node.types[0].shape
    chosen = "a kernel" if expected.is_kernel_faster else "the framework"
    return (
        f"product: {rows} x {columns} (node {node.attr('node')}) by {chosen}: expected times are"
        f" {expected.kernel:g} for a kernel, {expected.library:g} for the framework, in its times"
        " for one row"
    )

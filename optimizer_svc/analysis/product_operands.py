"""The operands of a product of matrices, if kernels can compute it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import symbol
from kernelfarm.ir.algebra.simplify import Bounds, simplify
from kernelfarm.ir.graph_ir import Node, TensorType, contiguous_strides
from kernelfarm.ir.loop_ir import Axis
from kernelfarm.ir.panel_order import PANEL_RANK, PanelOrder, find_panel_order
from kernelfarm.ir.work_budget import spend
from optimizer_svc.analysis.graph_facts import GraphFacts, operands
from optimizer_svc.analysis.grouped_nibbles import GroupedNibbles
from optimizer_svc.analysis.index_maps import Index, operand_index, ravel
from optimizer_svc.analysis.integer_weights import IntegerWeight, integer_weight
from optimizer_svc.analysis.verdicts import Refused

PRODUCT, BIASED_PRODUCT = "aten.mm.default", "aten.addmm.default"
BYTES_PRODUCT = "aten._int_mm.default"
"""A product of 8-bit integers, whose sums are i32."""
PRODUCTS = (PRODUCT, BIASED_PRODUCT, BYTES_PRODUCT)
MAX_FEW_ROWS = 64
"""With more rows, the instructions for matrices limit a product, and not memory."""
_TRANSPOSED = (1, 0)
_RANK = 2
_FACTORS = 2


@dataclass(frozen=True, slots=True)
class Product:
    """A product x @ w.T + bias, by the values of its operands; without a bias that is None.

    With `has_columns`, the weight's columns are contiguous in memory: its value is (k, n), not
    (n, k). The sums are computed in `slices`, which a second kernel adds in order. If it
    `is_tiled`, one sum over all rows is computed in tiles by the code generator; else each row has
    a sum of its own. A weight that is a view of panels in memory has an `order`. A kernel computes
    a weight of `integers`. If parts have steps, they read x in their order, which is the value
    `ordered_x`, of shape (blocks, spans, step, m, terms). If the product `has_wide_x`, that is f32,
    in blocks of a cache line, so that successive terms of all parts and rows are neighbours; else
    it is one block. A template kernel multiplies by `nibbles`. A product that `has_bytes` is one of
    8-bit integers in i32; others are summed in f32.

    Shapes: x: (m, k), weight: (n, k) or (k, n), bias: (n)
    """

    x: int
    weight: int
    bias: int | None = None
    has_columns: bool = False
    slices: int = 1
    is_tiled: bool = False
    order: PanelOrder | None = None
    integers: IntegerWeight | None = None
    ordered_x: int | None = None
    has_wide_x: bool = False
    nibbles: GroupedNibbles | None = None
    has_bytes: bool = False


def product_of_node(facts: GraphFacts, node: Node, returned: frozenset[int]) -> Product | Refused:
    """The operands of a product by a contiguous weight, or by one that is computed for it."""
    has_bias = node.attr("op") == BIASED_PRODUCT
    if len(operands(node)) != _FACTORS + has_bias:
        return Refused("of other operands")
    *summands, x, right = operands(node)
    bias = summands[0] if has_bias else None
    weight, has_columns = _weight_of(facts, right)
    kind = facts.types[weight]
    if not _is_product(node, facts.types[x], facts.types[right]):
        return Refused("of other operands")
    refused = None if bias is None else _bias_refuses(node, facts.types[bias])
    if refused is not None:
        return refused
    has_bytes = node.attr("op") == BYTES_PRODUCT
    product = Product(x, weight, bias, has_columns, has_bytes=has_bytes)
    if facts.is_storage(weight):
        is_contiguous = kind.strides == contiguous_strides(kind.shape)
        return product if is_contiguous else Refused("by a matrix that is no contiguous weight")
    order = _order_of(facts, weight, has_columns=has_columns)
    if order is not None:
        return replace(product, order=order)
    return _by_integers(facts, node, product, returned)


def _by_integers(
    facts: GraphFacts, node: Node, product: Product, returned: frozenset[int]
) -> Product | Refused:
    """A product by a weight that is computed for it."""
    integers = _integers(facts, node, operands(node)[-1], returned)
    return integers if isinstance(integers, Refused) else replace(product, integers=integers)


def _order_of(facts: GraphFacts, weight: int, *, has_columns: bool) -> PanelOrder | None:
    """The order of a matrix that is a view of panels in memory; None if it is no such view."""
    shape = facts.types[weight].shape
    axes = [Axis(name, extent) for name, extent in zip(("row", "column"), shape, strict=True)]
    bounds = Bounds.of_extents({axis.name: axis.extent for axis in axes})
    index: Index = tuple(symbol(axis.name) for axis in axes)
    while facts.is_view(weight):
        spend(1)
        view = facts.producers[weight]
        (weight,) = operands(view)
        index = operand_index(view, index, facts.types[weight].shape, bounds)
    kind = facts.types[weight]
    if kind.rank != PANEL_RANK or not facts.is_storage(weight):
        return None
    if kind.strides != contiguous_strides(kind.shape):
        return None
    columns, terms = reversed(axes) if has_columns else axes
    return find_panel_order(simplify(ravel(index, kind.shape), bounds), columns, terms, kind.dtype)


def _integers(
    facts: GraphFacts, node: Node, right: int, returned: frozenset[int]
) -> IntegerWeight | Refused:
    """The form of a weight that prims compute for a product alone."""
    weight, has_columns = _weight_of(facts, right)
    at = facts.positions[node.results[0]]
    if facts.consumers[right] != (at,):
        return Refused("by a computed weight that others read")
    readers = {at} if weight == right else {at, facts.positions[right]}
    return integer_weight(facts, weight, frozenset(readers), returned, has_columns=has_columns)


def _weight_of(facts: GraphFacts, right: int) -> tuple[int, bool]:
    """The value whose transpose or which itself a product reads; true if its columns are there."""
    view = facts.producers.get(right)
    if view is not None and view.op == "permute" and view.attr("dims") == _TRANSPOSED:
        return operands(view)[0], False
    return right, True


def _is_product(node: Node, x: TensorType, right: TensorType) -> bool:
    """True if shapes and types are those of a product: the graph came from outside."""
    if len(node.types) != 1 or (x.rank, right.rank) != (_RANK, _RANK):
        return False
    (result,) = node.types
    has_one_dtype = x.dtype is right.dtype is result.dtype
    if node.attr("op") == BYTES_PRODUCT:
        has_one_dtype = (x.dtype, right.dtype, result.dtype) == (DType.I8, DType.I8, DType.I32)
    (rows, inner), (k, n) = x.shape, right.shape
    return has_one_dtype and inner is k and result.shape == (rows, n)


def _bias_refuses(node: Node, bias: TensorType) -> Refused | None:
    """Why a product does not add a bias as kernels do; None if it does."""
    (result,) = node.types
    if node.attr("is_unscaled") is not True:
        return Refused("that scale the product or what they add")
    if bias.shape != result.shape[1:] or bias.dtype is not result.dtype:
        return Refused("that add no bias of the columns")
    return None

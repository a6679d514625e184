"""Gives products frozen weights in the order in which kernels of a target read them.

Products of one row have a weight whose rows are contiguous. Products in tiles have panels in memory
(`kernelfarm/ir/panel_order.py`), and read a view of them that is the matrix: kernels of the farm
see the order in the view's positions, and copy nothing. No tensor of the framework has such
positions, so the graph has a copy there, as `reshape` has; no kernel computes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from kernelfarm.client.freezing.values import FrozenValues, is_view, value_of
from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import as_expr
from kernelfarm.ir.panel_order import PanelOrder, panel_order
from kernelfarm.targets import TargetFacts

_aten = torch.ops.aten
_PRODUCTS = frozenset({_aten.mm.default, _aten.addmm.default, _aten.linear.default})
_DTYPES = {torch.float32: DType.F32, torch.bfloat16: DType.BF16}


def turn_weight(values: FrozenValues, product: fx.Node, weight: fx.Node) -> None:
    """Gives a product a weight (inner, columns) whose inner axis is contiguous in memory.

    A weight that something else uses, too, stays as it is, as two copies would be in memory.
    """
    value = value_of(weight)
    if value.stride(0) == 1 or len(weight.users) > 1:
        return
    shape = tuple(reversed(value.shape))
    with values.graph.inserting_before(product):
        turned = values.call(turned_matrix, (weight,), values.empty(shape, value.dtype))
        view = _call(values, _aten.t.default, turned)
    values.nodes.add(view)
    product.replace_input_with(weight, view)


def turned_matrix(weight: torch.Tensor) -> torch.Tensor:
    """A matrix with its axes exchanged, row-major."""
    return weight.t().contiguous()


def order_panels(
    values: FrozenValues,
    product: fx.Node,
    weight: fx.Node,
    target: TargetFacts,
    *,
    is_turned: bool,
) -> None:
    """Replaces the weight of a product by a view of panels.

    A weight that several products read stays as it is, as each would have a copy. `is_turned`: the
    weight is (columns, terms).
    """
    order = _order(value_of(weight), target, is_turned=is_turned)
    if order is None or _is_shared(weight):
        return
    value = value_of(weight)
    columns, terms = value.shape if is_turned else reversed(value.shape)
    shape = order.shape(columns, terms)
    panels, lanes, width, lane_terms = shape
    arguments = (weight, order.width, order.lane_terms, is_turned)
    with values.graph.inserting_before(product):
        made = values.call(panels_of_matrix, arguments, values.empty(shape, value.dtype))
        view = _call(values, _aten.permute.default, made, [0, 2, 1, 3])
        view = _call(values, _aten.clone.default, view, memory_format=torch.contiguous_format)
        view = _call(values, _aten.view.default, view, [panels * width, lanes * lane_terms])
        for axis, extent in enumerate((columns, terms)):
            if value_of(view).shape[axis] != extent:
                view = _call(values, _aten.slice.Tensor, view, axis, 0, extent)
        if not is_turned:
            view = _call(values, _aten.t.default, view)
    product.replace_input_with(weight, view)


def panels_of_matrix(
    weight: torch.Tensor, width: int, lane_terms: int, is_turned: bool
) -> torch.Tensor:
    """A product's right factor in panels, with 0 past its end.

    Shapes: weight: (terms, columns), or (columns, terms) if it is turned; the result: (panels,
    lanes, width, lane_terms), row-major.
    """
    matrix = weight if is_turned else weight.t()
    columns, terms = matrix.shape
    panels, lanes, *_ = PanelOrder(width, lane_terms).shape(columns, terms)
    whole = matrix.new_zeros(panels * width, lanes * lane_terms)
    whole[:columns, :terms] = matrix
    return whole.view(panels, width, lanes, lane_terms).transpose(1, 2).contiguous()


def _is_shared(weight: fx.Node) -> bool:
    """True if several products read a matrix, or views of one."""
    while is_view(weight):
        (weight,) = weight.all_input_nodes
    products, pending = 0, [weight]
    while pending:
        users = pending.pop().users
        products += sum(user.target in _PRODUCTS for user in users)
        pending += [user for user in users if is_view(user)]
    return products > 1


def _order(weight: torch.Tensor, target: TargetFacts, *, is_turned: bool) -> PanelOrder | None:
    """The order of a target's tiles; None if it multiplies elements of the type in another form."""
    dtype, llvm = _DTYPES[weight.dtype], target.llvm
    if llvm is None or (dtype is DType.BF16 and llvm.bf16_dots is None):
        return None
    return order_of_tiles(weight.shape[0 if is_turned else 1], dtype, target)


def order_of_tiles(columns: int, dtype: DType, target: TargetFacts) -> PanelOrder | None:
    """The order in which a target's tiles read a factor; None if it is no processor."""
    if target.processor is None:
        return None
    return panel_order(as_expr(columns), dtype, 8 * target.processor.vector_bytes)


def _call(
    values: FrozenValues, operator: Callable[..., Any], *args: Any, **options: Any
) -> fx.Node:
    """A node that each call computes, with its value without data."""
    made = values.graph.call_function(operator, args, options)
    with values.mode:
        made.meta["val"] = operator(*map(value_of, args), **options)
    return made

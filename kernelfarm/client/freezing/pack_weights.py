"""Replaces convolutions and products by oneDNN's operators with packed weights.

oneDNN orders a packed weight for its kernels once; with a plain weight it does so in each call. Its
operators also apply an activation, and a convolution adds another image, before they store a
result. Packed convolutions take and give images channels last. What kernels of a target compute
faster keeps a plain weight; products of one row have one whose rows are contiguous, products in
tiles one in panels, depthwise convolutions one whose channels are adjacent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from kernelfarm.client.capture.graph import PACKED
from kernelfarm.client.capture.sizes import traced_size
from kernelfarm.client.freezing.depthwise_weights import depthwise_by_kernels, order_window
from kernelfarm.client.freezing.frozen_convolutions import (
    FrozenConvolution,
    frozen_convolution,
    have_one_type,
)
from kernelfarm.client.freezing.order_weights import order_panels, turn_weight
from kernelfarm.client.freezing.values import (
    VIEWS_OF_AXES,
    FrozenValues,
    argument,
    sole_user,
    value_of,
)
from kernelfarm.client.pytorch.private.operators import PackedOperators
from kernelfarm.dtypes import DType
from kernelfarm.targets import ConvolutionFacts, FrozenProductFacts, TargetFacts

LEAST_ELEMS = 4096
"""A product with a smaller weight stays as it is: the calls of oneDNN's operators cost more."""

_aten = torch.ops.aten
_DTYPES = {torch.float32: DType.F32, torch.bfloat16: DType.BF16}


class Activation(NamedTuple):
    """An activation as oneDNN's operators name it."""

    name: str = "none"
    numbers: tuple[float, ...] = ()
    algorithm: str = ""


_PLAIN: dict[Any, str] = {
    _aten.relu.default: "relu",
    _aten.sigmoid.default: "sigmoid",
    _aten.tanh.default: "tanh",
    _aten.silu.default: "swish",
    _aten.hardswish.default: "hardswish",
    _aten.hardsigmoid.default: "hardsigmoid",
}


class _Product(NamedTuple):
    """A product with a frozen matrix; `is_turned`: the weight is (columns, inner)."""

    rows: fx.Node
    weight: fx.Node
    bias: fx.Node | None
    is_turned: bool


def pack_weights(
    values: FrozenValues,
    operators: PackedOperators,
    target: TargetFacts,
    chosen: Collection[fx.Node] = frozenset(),
) -> dict[fx.Node, torch.Tensor]:
    """Packs the weights of a graph, but for those that kernels of a target use.

    `chosen` are images that kernels compute; they add others at no cost.
    Returns the new nodes, with the values without data of what they replace.
    """
    replaced: dict[fx.Node, torch.Tensor] = {}
    known = target.convolutions
    plain = set() if known is None else _by_kernels(values, operators.types, known)
    windows: dict[fx.Node, FrozenConvolution] = {}
    if target.depthwise is not None:
        windows = depthwise_by_kernels(values, operators.types, target.depthwise)
    for node in [*values.graph.nodes]:
        if node in plain:
            continue
        if node in windows:
            order_window(values, node, windows[node])
            continue
        convolution = frozen_convolution(values, node, operators.types)
        product = _product(values, node)
        if convolution is not None:
            other = _summand(node, convolution)
            other = None if other in plain or other in chosen else other
            made, before = _pack_convolution(values, operators, node, (convolution, other))
        elif product is not None and _is_in_rows(product, target.frozen_products):
            if not product.is_turned:
                turn_weight(values, node, product.weight)
            continue
        elif product is not None and _is_in_tiles(product, target.frozen_products):
            order_panels(values, node, product.weight, target, is_turned=product.is_turned)
            continue
        elif product is not None and value_of(product.weight).dtype in operators.types:
            made, before = _pack_product(values, operators, node, product)
        else:
            continue
        replaced[made] = before
    return replaced


def packed_convolution_weight(
    pack: Callable[..., torch.Tensor],
    weight: torch.Tensor,
    arguments: tuple[Any, ...],
) -> torch.Tensor:
    """A convolution's weight in oneDNN's order.

    Shapes: weight: (channels, channels of a group, height, width).
    """
    return pack(weight.contiguous(), *arguments)


def packed_matrix(
    pack: Callable[..., torch.Tensor], weight: torch.Tensor, rows: int | None, is_turned: bool
) -> torch.Tensor:
    """A product's right factor in oneDNN's order.

    Shapes: weight: (inner, columns), or (columns, inner) if it is turned.
    """
    return pack((weight if is_turned else weight.t()).contiguous(), rows)


def _by_kernels(
    values: FrozenValues, types: frozenset[torch.dtype], known: ConvolutionFacts
) -> set[fx.Node]:
    """The convolutions that the farm's kernels compute faster, from a plain weight.

    They add another image at no cost. On an AMD EPYC with AVX-512, oneDNN takes up to three times
    as long to add one that has to stay as it is.
    """
    chosen: set[fx.Node] = set()
    for node in values.graph.nodes:
        found = frozen_convolution(values, node, types)
        if found is None or not _is_one_pixel(found, known):
            continue
        images, _, *pixels = value_of(found.image).shape
        extents = (*pixels, *value_of(found.weight).shape[:2], *_known(images))
        is_small = bool(math.prod(extents) < known.packed_multiplies)
        other = _summand(node, found)
        if is_small or (other is not None and other not in chosen):
            chosen.add(node)
    return chosen


def _known(number: int | torch.SymInt) -> tuple[int, ...]:
    """A number of images; nothing if it varies, for a test would add a guard."""
    return (number,) if isinstance(number, int) else ()


def _is_one_pixel(found: FrozenConvolution, known: ConvolutionFacts) -> bool:
    """True for a window of one pixel, of images of known sizes, that kernels compute.

    Their number may vary: then one of them decides.
    """
    image, weight = value_of(found.image), value_of(found.weight)
    return (
        weight.shape[2:] == (1, 1)
        and [*found.stride, *found.padding, found.groups] == [1, 1, 0, 0, 1]
        and min(weight.shape[:2]) >= known.least_channels
        and all(isinstance(extent, int) for extent in image.shape[1:])
        and _is_timed(weight.dtype, image, known)
    )


def _is_timed(dtype: torch.dtype, image: torch.Tensor, known: ConvolutionFacts) -> bool:
    is_single = _known(image.shape[0]) == (1,) and image.shape[2:] == (1, 1)
    names = known.single if is_single else known.one_pixel
    return dtype in _DTYPES and _DTYPES[dtype].value in names


def _product(values: FrozenValues, node: fx.Node) -> _Product | None:
    found = _product_arguments(node)
    if found is None or found.weight not in values:
        return None
    operands = [value_of(n) for n in (found.rows, found.weight, found.bias) if n is not None]
    if not have_one_type(operands, frozenset(_DTYPES)) or operands[1].numel() < LEAST_ELEMS:
        return None
    if found.bias is not None and (operands[2].dim() != 1 or found.bias not in values):
        return None
    columns = operands[1].shape[0 if found.is_turned else 1]
    is_whole = found.bias is None or operands[2].shape[0] == columns
    return found if is_whole and operands[1].dim() == 2 else None


def _is_in_rows(found: _Product, known: FrozenProductFacts) -> bool:
    """True for few rows of a type whose products kernels compute at about the rate of memory."""
    rows, weight = _row_count(found), value_of(found.weight)
    most = dict(known.in_rows).get(_DTYPES[weight.dtype].value, 0)
    if rows is None or rows > most:
        return False
    terms = weight.shape[1 if found.is_turned else 0]
    is_large = weight.numel() * weight.element_size() >= known.row_weight_bytes
    return rows == 1 or (is_large and terms % known.row_terms == 0)


def _is_in_tiles(found: _Product, known: FrozenProductFacts) -> bool:
    """True for rows and columns of which kernels compute products in tiles."""
    rows, weight = _row_count(found), value_of(found.weight)
    columns = weight.shape[0 if found.is_turned else 1]
    is_large = weight.numel() * weight.element_size() >= known.least_weight_bytes
    has_rows = rows is None or rows >= known.least_rows
    timed = known.varying if rows is None else known.in_tiles
    is_timed = _DTYPES[weight.dtype].value in timed
    return is_timed and is_large and has_rows and bool(columns >= known.least_columns)


def _row_count(found: _Product) -> int | None:
    """The number of rows; None if it varies, for a test would add a guard."""
    extents = value_of(found.rows).shape[:-1]
    return math.prod(extents) if all(isinstance(extent, int) for extent in extents) else None


def _product_arguments(node: fx.Node) -> _Product | None:
    args: Any = node.args
    if node.target is _aten.mm.default and not node.kwargs:
        return _Product(args[0], args[1], None, is_turned=False)
    if node.target is _aten.addmm.default and not node.kwargs:
        return _Product(args[1], args[2], args[0], is_turned=False)
    if node.target is _aten.linear.default:
        return _Product(args[0], args[1], argument(node, 2, "bias"), is_turned=True)
    return None


def _pack_convolution(
    values: FrozenValues,
    operators: PackedOperators,
    node: fx.Node,
    summed: tuple[FrozenConvolution, fx.Node | None],
) -> tuple[fx.Node, torch.Tensor]:
    """Packs a convolution, to whose result another image is added, if there is one."""
    graph, (found, other) = values.graph, summed
    # Without sizes, oneDNN may order a weight for kernels that take up to 200 times as long.
    traced = [traced_size(extent) for extent in value_of(found.image).shape]
    sizes = None if None in traced else traced
    geometry = (found.padding, found.stride, found.dilation, found.groups)
    with graph.inserting_before(node):
        weight = _packed(
            values,
            packed_convolution_weight,
            (operators.pack_convolution, found.weight, (*geometry, sizes)),
            found.weight,
        )
    chain = [node]
    if other is not None:
        chain.append(next(iter(node.users)))
    activation, user = _activation_of(chain[-1])
    if user is not None and (other is None or activation.name == "relu"):
        chain.append(user)
    else:
        activation = Activation()
    numbers = list(activation.numbers)
    operands = (weight, found.bias, *geometry)
    with graph.inserting_before(chain[-1]):
        if other is None:
            made = graph.call_function(
                operators.convolution,
                (found.image, *operands, activation.name, numbers, activation.algorithm),
            )
        else:
            unary = "relu" if activation.name == "relu" else None
            made = graph.call_function(
                operators.convolution_sum,
                (found.image, other, *operands, "add", None, unary, numbers, None),
            )
    before: torch.Tensor = value_of(chain[-1])
    with values.mode:
        made.meta["val"] = torch.empty_like(before, memory_format=torch.channels_last)
    _replace(graph, chain, made)
    return made, before


def _pack_product(
    values: FrozenValues, operators: PackedOperators, node: fx.Node, found: _Product
) -> tuple[fx.Node, torch.Tensor]:
    graph = values.graph
    rows = _row_count(found)
    with graph.inserting_before(node):
        weight = _packed(
            values,
            packed_matrix,
            (operators.pack_linear, found.weight, rows, found.is_turned),
            found.weight,
        )
    _bring_activation_before_view(node)
    activation, user = _activation_of(node)
    chain = [node] if user is None else [node, user]
    numbers = list(activation.numbers)
    with graph.inserting_before(chain[-1]):
        made = graph.call_function(
            operators.linear,
            (found.rows, weight, found.bias, activation.name, numbers, activation.algorithm),
        )
    before: torch.Tensor = value_of(chain[-1])
    made.meta["val"] = values.empty(before.shape, before.dtype)
    _replace(graph, chain, made)
    return made, before


def _bring_activation_before_view(node: fx.Node) -> None:
    """Exchanges the only view of a product with the only activation that reads it.

    A layer of more than two axes is a product, whose rows are then viewed as those axes.
    """
    view = sole_user(node)
    if view is None or view.target not in VIEWS_OF_AXES or view.args[0] is not node:
        return
    after = sole_user(view)
    if after is None or _activation(after) is None or after.args[0] is not view:
        return
    after.replace_all_uses_with(view)
    view.replace_input_with(node, after)
    after.replace_input_with(view, node)
    node.append(after)
    after.meta["val"] = value_of(node)


def _packed(
    values: FrozenValues, function: Callable[..., Any], args: tuple[Any, ...], weight: fx.Node
) -> fx.Node:
    """A node for a packed weight; its type is that of the plain weight, row-major."""
    value = value_of(weight)
    made = values.call(function, args, values.empty(value.shape, value.dtype))
    made.meta[PACKED] = True
    return made


def _summand(node: fx.Node, found: FrozenConvolution) -> fx.Node | None:
    """The image that the only user of a convolution adds to it."""
    user = sole_user(node)
    if user is None or user.target is not _aten.add.Tensor or user.kwargs or found.groups != 1:
        return None
    pair: Any = user.args
    others = [item for item in pair if item is not node]
    if len(others) != 1 or not isinstance(others[0], fx.Node):
        return None
    other, own = value_of(others[0]), value_of(node)
    is_alike = isinstance(other, torch.Tensor) and other.dtype is own.dtype
    return others[0] if is_alike and other.shape == own.shape else None


def _activation_of(node: fx.Node) -> tuple[Activation, fx.Node | None]:
    """The activation that the only user of a value applies, and that user."""
    user = sole_user(node)
    found = None if user is None else _activation(user)
    return (Activation(), None) if found is None else (found, user)


def _activation(node: fx.Node) -> Activation | None:
    if node.target in _PLAIN:
        return Activation(_PLAIN[node.target])
    if node.target is _aten.gelu.default:
        return Activation("gelu", (), str(argument(node, 1, "approximate", "none")))
    if node.target is _aten.leaky_relu.default:
        return Activation("leaky_relu", (argument(node, 1, "negative_slope", 0.01),))
    if node.target is _aten.hardtanh.default:
        low, high = argument(node, 1, "min_val", -1), argument(node, 2, "max_val", 1)
        return Activation("hardtanh", (low, high))
    return None


def _replace(graph: fx.Graph, chain: Sequence[fx.Node], made: fx.Node) -> None:
    """Replaces a chain of nodes, of which each is the only user of the one before, by a node."""
    made.meta["stack_trace"] = chain[0].meta.get("stack_trace")
    chain[-1].replace_all_uses_with(made)
    for node in reversed(chain):
        graph.erase_node(node)

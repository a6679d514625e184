"""Divides a traced graph: what is computed once, from parameters, and what each call computes.

The second part is what the farm compiles. Behind the arguments of the traced graph, it takes the
results of the first part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from kernelfarm.client.capture.captured import TracedModule
from kernelfarm.client.capture.graph import FOLDED, PACKED
from kernelfarm.client.capture.short_trace import RecordedModule
from kernelfarm.client.freezing.fold_norms import fold_norms
from kernelfarm.client.freezing.order_windows import order_windows
from kernelfarm.client.freezing.pack_weights import pack_weights
from kernelfarm.client.freezing.spread_layouts import NotFrozenError, spread_layouts
from kernelfarm.client.freezing.use_winograd import use_winograd
from kernelfarm.client.freezing.values import FrozenValues, is_view, value_of
from kernelfarm.client.freezing.widen_convolutions import widen_convolutions
from kernelfarm.client.loaders.by_device import device_support
from kernelfarm.client.loaders.host_target import host_cpu_target
from kernelfarm.client.pytorch.private import detect_fake_mode
from kernelfarm.client.pytorch.private.operators import packed_operators
from kernelfarm.errors import KernelfarmError
from kernelfarm.ir.product_choice import ProductChoice
from kernelfarm.targets import FrozenProductFacts, TargetFacts, target_facts

LEAST_PACKED = 65536
"""Integers of a smaller tensor are computed on once, as those of tables of positions."""
_PACKED_TYPES = frozenset({torch.int8, torch.uint8, torch.int32})
_PACKED_FLOATS = frozenset({torch.float8_e4m3fn, torch.float8_e5m2})
"""On GPUs: processors multiply a stored weight faster, but for single rows."""


@dataclass(frozen=True, slots=True)
class FrozenGraph:
    """What each call computes (`module`), and what is computed once (`fold`).

    `fold` takes the arguments of the traced graph at the positions `parameters`, and returns what
    `module` takes behind the arguments of the traced graph. `kept` are the positions of arguments
    that do not change either, and that calls read as they are.
    """

    module: RecordedModule
    fold: fx.GraphModule
    parameters: tuple[int, ...]
    kept: tuple[int, ...] = ()


def freeze_graph(
    traced: TracedModule,
    parameters: Sequence[int],
    target: str = "",
    products: ProductChoice = ProductChoice.AUTO,
) -> FrozenGraph | None:
    """The graph, divided; None if nothing can be computed once. `traced` is not changed.

    `parameters` are the positions of the arguments that do not change. Weights that are stored as
    integers stay so, on GPUs also those of 8-bit floats. `target` is that of the device that
    computes, by default the one of the parameters. On a GPU, norms are folded and weights of
    convolutions ordered. On a processor with oneDNN, weights are packed; if the library is to
    compute all `products`, theirs are, too.

    Raises:
        NotFrozenError: an operator needs a layout that it would not get.
    """
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    returned = graph.graph_copy(traced.graph, copies)
    graph.output(returned)
    for before, copy in copies.items():
        copy.meta = dict(before.meta)
    arguments = graph.find_nodes(op="placeholder")
    mode = detect_fake_mode([value_of(node) for node in arguments])
    if mode is None:
        return None
    frozen = {arguments[i] for i in parameters}
    packed = {node for node in frozen if _is_packed(value_of(node), target)}
    values = FrozenValues(graph, frozen - packed, mode, packed)
    fold_norms(values)
    operators = packed_operators()
    if is_for_gpu(target) if target else values.gpu is not None:
        spread_layouts(values, order_windows(values, _gpu_facts(target, values.gpu)))
    elif operators is not None:
        facts = target_facts(target or host_cpu_target())
        if products is ProductChoice.LIBRARY:
            facts = replace(facts, frozen_products=FrozenProductFacts(), winograd=None)
        if facts.convolutions is not None:
            widen_convolutions(values, facts.convolutions.widened)
        replaced = use_winograd(values, facts)
        replaced |= pack_weights(values, operators, facts, frozenset(replaced))
        spread_layouts(values, replaced)
    return _divided(values, arguments, parameters, _constants(traced, graph))


def can_be_frozen(target: str) -> bool:
    """True for the target of a processor or of a GPU."""
    facts = target_facts(target)
    return facts.gpu is not None or facts.processor is not None


def is_for_gpu(target: str) -> bool:
    """True for the target of a GPU."""
    return target_facts(target).gpu is not None


def _gpu_facts(target: str, device: torch.device | None) -> TargetFacts | None:
    """The facts of a GPU; None if no known target runs on it, as the compilation reports then."""
    try:
        return target_facts(target or device_support(device or torch.device("cuda")).target)
    except KernelfarmError:
        return None


def _is_packed(value: Any, target: str) -> bool:
    """True for the integers or 8-bit floats of a weight, from which each call computes the weight.

    Computed once, it would take twice to eight times their memory, which limits products of few
    rows.
    """
    if not isinstance(value, torch.Tensor):
        return False
    has_gpu = is_for_gpu(target) if target else value.device.type == "cuda"
    if value.dtype not in _PACKED_TYPES | (_PACKED_FLOATS if has_gpu else frozenset()):
        return False
    return all(isinstance(n, int) for n in value.shape) and value.numel() >= LEAST_PACKED


def _divided(
    values: FrozenValues,
    arguments: Sequence[fx.Node],
    parameters: Sequence[int],
    constants: dict[str, torch.Tensor],
) -> FrozenGraph | None:
    graph = values.graph
    once = _computed_once(values)
    made = [
        node
        for node in once
        if node.op == "call_function" and any(u not in once for u in node.users)
    ]
    if not made:
        return None
    needed = _needed(made)
    used = [node for node in arguments if node in needed]
    fold = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node in needed:
            copies[node] = fold.node_copy(node, copies.__getitem__)
    fold.output(tuple(copies[node] for node in made))
    _take_as_arguments(graph, made, once)
    graph.eliminate_dead_code()
    for node in used:
        if not node.users:
            node.meta[FOLDED] = True
    positions = tuple(arguments.index(node) for node in used)
    kept = tuple(position for position in parameters if arguments[position].users)
    graph.lint()
    return FrozenGraph(
        RecordedModule(graph, constants), fx.GraphModule(dict(constants), fold), positions, kept
    )


def _computed_once(values: FrozenValues) -> dict[fx.Node, None]:
    """The frozen values but for views that calls use: these cost nothing, and hold no memory."""
    once: dict[fx.Node, None] = {}
    for node in reversed(values.graph.nodes):
        if node not in values or node.op == "placeholder":
            continue
        if not is_view(node) or all(user in once for user in node.users):
            once[node] = None
    return dict.fromkeys(node for node in values.graph.nodes if node in once)


def _needed(made: Sequence[fx.Node]) -> set[fx.Node]:
    """The nodes that some nodes are computed from, and these nodes."""
    needed: set[fx.Node] = set()
    pending = [*made]
    while pending:
        node = pending.pop()
        if node not in needed:
            needed.add(node)
            pending += node.all_input_nodes
    return needed


def _take_as_arguments(graph: fx.Graph, made: Sequence[fx.Node], once: dict[fx.Node, None]) -> None:
    last = graph.find_nodes(op="placeholder")[-1]
    for number, node in enumerate(made):
        with graph.inserting_after(last):
            last = graph.placeholder(f"frozen{number}")
        last.meta["val"] = value_of(node)
        last.meta[PACKED] = node.meta.get(PACKED, False)
        for user in [*node.users]:
            if user not in once:
                _replace_in(graph, user, node, last)


def _replace_in(graph: fx.Graph, user: fx.Node, node: fx.Node, argument: fx.Node) -> None:
    """Replaces an operand; what the graph returns is a copy, which its caller may change."""
    if user.op == "output":
        with graph.inserting_before(user):
            copy = graph.call_function(torch.ops.aten.clone.default, (argument,))
        copy.meta["val"] = value_of(node)
        argument = copy
    user.replace_input_with(node, argument)


def _constants(traced: TracedModule, graph: fx.Graph) -> dict[str, torch.Tensor]:
    names = {str(node.target) for node in graph.find_nodes(op="get_attr")}
    return {name: getattr(traced, name) for name in sorted(names)}


__all__ = ["FrozenGraph", "NotFrozenError", "freeze_graph"]

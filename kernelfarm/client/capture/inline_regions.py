"""Replaces calls of nested compile regions by their operators.

`torch.compiler.nested_compile_region` marks layers that a model repeats. Dynamo traces such a layer
once, and its graph calls the layer's graph (`invoke_subgraph`) for each repetition. The farm
compiles whole graphs, so a marked model must have the graph, and the key, of the same model without
marks. `torch.compile` still saves Dynamo's time.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

_INVOKE = torch.ops.higher_order.invoke_subgraph


def inline_regions(module: fx.GraphModule) -> None:
    """Replaces the calls of regions in a Dynamo graph, in place.

    A region that holds modules or tensors of its own stays a call, which no way can trace for the
    farm.
    """
    calls = module.graph.find_nodes(op="call_function", target=_INVOKE)
    inlined = [call for call in calls if _inline(module, call)]
    if inlined:
        module.recompile()


def _inline(module: fx.GraphModule, call: fx.Node) -> bool:
    source, _identifier, *given = call.args
    operands: list[Any] = given
    if not isinstance(source, fx.Node) or any(u.target is not operator.getitem for u in call.users):
        return False
    region = operator.attrgetter(str(source.target))(module)
    inline_regions(region)  # regions may be nested
    arguments = region.graph.find_nodes(op="placeholder")
    if region.graph.find_nodes(op="get_attr") or len(arguments) != len(operands):
        return False
    with module.graph.inserting_before(call):
        values = dict(zip(arguments, operands, strict=True))
        results: Any = module.graph.graph_copy(region.graph, values)
    for user in list(call.users):
        user.replace_all_uses_with(results[user.args[1]])
        module.graph.erase_node(user)
    module.graph.erase_node(call)
    if not source.users:
        module.graph.erase_node(source)
    return True

"""Captured graphs built by hand, and Prims evaluated in NumPy, with extern nodes in torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch.fx.node import map_arg

from frontend_svc.decompose.pipeline import Decomposition, decompose_to_prims
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.capture.graph import capture
from kernelfarm.client.runtime.seeds import draw_seeds
from kernelfarm.ir.graph_ir import (
    Arg,
    Graph,
    Input,
    Node,
    Ref,
    SizeSymbol,
    TensorType,
    seed_nodes,
    uses_of,
)
from kernelfarm.ir.interpret import ExternSite, run_graph
from tests.support.single_operator import to_numpy, to_torch


def one_node_graph(
    op: str,
    inputs: Sequence[TensorType],
    args: Sequence[Arg],
    result: TensorType,
    symbols: Sequence[SizeSymbol] = (),
    **attrs: Arg,
) -> Graph:
    """A graph of one node; `Ref(k)` in the arguments is input k."""
    value = len(inputs)
    node = Node(op, tuple(args), tuple(sorted(attrs.items())), (value,), (result,))
    return Graph(
        "aten",
        tuple(symbols),
        tuple(Input(number, kind) for number, kind in enumerate(inputs)),
        (node,),
        (Ref(value),),
        (result,),
    )


def prim_names(lowered: Decomposition) -> list[str]:
    return [node.op for node in lowered.graph.nodes]


class Compiled:
    """The graphs of a function under `torch.compile`, their Prims, and results in NumPy.

    Torch runs the extern nodes, as the client does.
    """

    def __init__(self, function: Callable[..., Any], *args: Any, **options: Any) -> None:
        self.captured: list[CapturedGraph] = []
        self.lowered: list[Decomposition] = []

        def compiler(module: torch.fx.GraphModule, examples: Any) -> Any:
            captured = capture(module)
            lowered = decompose_to_prims(captured.graph)
            self.captured.append(captured)
            self.lowered.append(lowered)
            return make_boxed_func(lambda *values: run_lowered(captured, lowered, values))

        torch._dynamo.reset()
        backend = aot_autograd(fw_compiler=compiler)
        compiled = torch.compile(function, backend=backend, **options)
        with torch.no_grad():
            self.result = compiled(*args)
            self.eager = function(*args)


def run_lowered(
    captured: CapturedGraph, lowered: Decomposition, values: Sequence[Any]
) -> list[Any]:
    """The outputs of decomposed graphs on torch tensors."""

    def run_extern(site: ExternSite, arrays: list[Any]) -> list[Any]:
        return _run_captured_node(captured, site, [to_torch(array) for array in arrays])

    inputs = []
    for source in captured.sources:
        if isinstance(source, torch.Tensor):
            continue  # a constant is part of the graph
        value = values[source]
        inputs.append(to_numpy(value) if isinstance(value, torch.Tensor) else value)
    # First, as a plan does: extern steps may draw from the same generator.
    drawn = draw_seeds(len(seed_nodes(lowered.graph)), torch.device("cpu"))
    seeds = [int(seed) for seed in drawn]
    results = run_graph(lowered.graph, inputs, run_extern, seeds)
    return [to_torch(result) if hasattr(result, "dtype") else result for result in results]


def _run_captured_node(captured: CapturedGraph, site: ExternSite, tensors: list[Any]) -> list[Any]:
    node = captured.nodes[site.node]
    rest = iter(tensors)

    def position(item: Any) -> Any:
        is_tensor = isinstance(item.meta.get("val"), torch.Tensor)
        return next(rest) if is_tensor else int(item.meta["val"])

    args, kwargs = map_arg((node.args, node.kwargs), position)
    made = node.target(*args, **kwargs)
    results = [made] if isinstance(made, torch.Tensor) else list(made)
    values = captured.graph.nodes[site.node].results
    used = _used_values(captured.graph)
    return [
        to_numpy(result) if value in used else None
        for value, result in zip(values, results, strict=True)
    ]


def _used_values(graph: Graph) -> set[int]:
    used = {value for node in graph.nodes for value in uses_of(node)}
    return used | {output.value for output in graph.outputs if isinstance(output, Ref)}

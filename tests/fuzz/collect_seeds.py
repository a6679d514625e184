"""Builds the corpus of valid messages: `python -m tests.fuzz.collect_seeds` (minutes, needs torch).

Graphs are captured from sample calls of every operator, with static and with symbolic sizes, and
from small whole models. Some of them are compiled, which gives Prims graphs, kernels, plans and
artifacts. Fuzzing itself needs no torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func

from codegen_svc.backends.cpu.backend import BACKEND
from examples.model_zoo import MODELS
from examples.real_inputs import function_h, reference_model
from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.client.capture.graph import capture
from kernelfarm.digest import kernel_key
from kernelfarm.errors import KernelfarmError
from kernelfarm.internal.v1 import loops_pb2
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.targets import target_facts
from kernelfarm.v1 import artifact_pb2, graph_pb2, plan_pb2
from kernelfarm.wire import (
    artifact_to_proto,
    graph_from_proto,
    graph_to_proto,
    kernel_to_proto,
    plan_to_proto,
)
from optimizer_svc.pipeline import optimize
from tests.fuzz.corpus import write_seeds
from tests.support.operator_samples.table import calls
from tests.support.single_operator import captured_graph

CPU = "cpu:x86-64-v3"
MODEL_NAMES = ("llama", "llama-decode", "t5-decoder", "regnet", "lstm")
MAX_BYTES = 24_000
"""Larger messages are no seeds: mutations of small ones run faster."""


def main() -> None:
    """Writes every file of the corpus and prints their sizes."""
    single = list(_operator_graphs())
    several = [graph_to_proto(graph) for graph in _captured()]
    graphs = [graph for graph in single + several if graph.ByteSize() <= MAX_BYTES]
    print("graphs", write_seeds("captured", graphs))
    prims, kernels, plans, artifacts = _made_of(graphs)
    print("prims", write_seeds("prims", _chosen(prims, _operators_of, 2)))
    print("kernels", write_seeds("kernels", _chosen(kernels, _form_of_kernel, 2)))
    print("plans", write_seeds("plans", _chosen(plans, _form_of_plan, 2)))
    print("artifacts", write_seeds("artifacts", artifacts))


def _operator_graphs() -> Iterator[graph_pb2.Graph]:
    """For each operator the two shortest graphs with static and with symbolic sizes."""
    by_op: dict[tuple[str, bool], list[graph_pb2.Graph]] = {}
    tried: Counter[str] = Counter()
    for call in calls():
        tried[call.op] += 1
        if tried[call.op] > 6:
            continue
        for is_symbolic in (False, True):
            try:
                graph = captured_graph(call, is_symbolic=is_symbolic)
            except Exception:
                continue
            by_op.setdefault((call.op, is_symbolic), []).append(graph_to_proto(graph))
    for graphs in by_op.values():
        yield from sorted(graphs, key=lambda graph: graph.ByteSize())[:2]


def _captured() -> Iterator[Graph]:
    yield from _graphs_of(reference_model().model, reference_model().args)
    yield from _graphs_of(function_h().model, function_h().args)
    yield from _graphs_of(_joined, tuple(torch.randn(n + 3, 4) for n in range(6)), dynamic=True)
    yield from _graphs_of(_pieces, (torch.randn(12, 8), torch.randn(7, 8)), dynamic=True)
    yield from _graphs_of(_cached, (torch.randn(9, 4), torch.arange(3), torch.randn(3, 4)))
    for name in MODEL_NAMES:
        source = MODELS[name]()
        yield from _graphs_of(source.model, source.args)


def _joined(*tensors: torch.Tensor) -> torch.Tensor:
    return torch.cat(tensors).relu()


def _pieces(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    both = torch.cat([a[1:-1], b[::2]])
    first, second = both.chunk(2)
    return (
        first.softmax(0),
        second.sum(0),
        both.t().contiguous().view(-1),
        a.unfold(0, 3, 2).mean(2),
    )


def _cached(cache: torch.Tensor, where: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    cache.index_copy_(0, where, new)
    return cache.cumsum(0).sort(1).values


def _graphs_of(model: Callable[..., Any], args: tuple[Any, ...], **options: Any) -> list[Graph]:
    found: list[Graph] = []

    def compiler(module: torch.fx.GraphModule, examples: Any) -> Any:
        found.append(capture(module).graph)
        return make_boxed_func(module.forward)

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(model, backend=aot_autograd(fw_compiler=compiler), **options)(*args)
    return found


def _made_of(
    graphs: Iterable[graph_pb2.Graph],
) -> tuple[
    list[graph_pb2.Graph],
    list[loops_pb2.Kernel],
    list[plan_pb2.Plan],
    list[artifact_pb2.Artifact],
]:
    """Prims graphs, kernels, plans and artifacts of graphs."""
    prims, kernels, plans, artifacts = [], [], [], []
    built = 0
    for number, message in enumerate(graphs):
        try:
            lowered = decompose_to_prims(graph_from_proto(message))
            program = optimize(lowered.graph, target_facts(CPU)).program
        except KernelfarmError as error:
            print("left out:", message.nodes[0].op if message.nodes else "-", error)
            continue
        wire = graph_to_proto(lowered.graph)
        if wire.ByteSize() <= MAX_BYTES:
            prims.append(wire)
        plan = plan_to_proto(program.plan)
        if plan.ByteSize() <= MAX_BYTES:
            plans.append(plan)
        kernels += [kernel_to_proto(kernel) for kernel in program.kernels]
        if number % 40 == 0 and built < 12:
            artifacts += [_artifact(kernel) for kernel in program.kernels[:1]]
            built += 1
    return prims, kernels, plans, artifacts


def _artifact(kernel: Kernel) -> artifact_pb2.Artifact:
    built = BACKEND.build(kernel, target_facts(CPU))[-1]
    message, _ = artifact_to_proto(built, kernel_key(kernel, CPU), CPU, "cpu@0", 1.0)
    return message


def _chosen(messages: list[Any], form: Callable[[Any], Any], most: int) -> list[Any]:
    """The shortest messages of each form, at most `most`."""
    seen: Counter[Any] = Counter()
    kept = []
    for message in sorted(messages, key=lambda m: m.ByteSize()):
        seen[form(message)] += 1
        if seen[form(message)] <= most and message.ByteSize() <= MAX_BYTES:
            kept.append(message)
    return kept


def _operators_of(graph: graph_pb2.Graph) -> Any:
    return frozenset(node.op for node in graph.nodes), bool(graph.symbols)


def _form_of_kernel(kernel: loops_pb2.Kernel) -> Any:
    forms = frozenset(s.WhichOneof("form") for s in kernel.body)
    ops = frozenset(s.compute.op or s.reduce.op or s.scan.op for s in kernel.body)
    return forms, ops, bool(kernel.sizes), bool(kernel.reduction)


def _form_of_plan(plan: plan_pb2.Plan) -> Any:
    forms = frozenset(step.WhichOneof("form") for step in plan.steps)
    outputs = frozenset(output.WhichOneof("form") for output in plan.outputs)
    kinds = frozenset(buffer.kind for buffer in plan.buffers)
    return forms, outputs, kinds, bool(plan.symbols), min(len(plan.steps), 6)


if __name__ == "__main__":
    main()

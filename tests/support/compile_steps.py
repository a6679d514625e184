"""The farm's steps between request and code generation, run and timed in this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import nn

from frontend_svc.decompose.import_aten import import_aten
from frontend_svc.decompose.pipeline import PASSES as FRONTEND_PASSES
from kernelfarm.client.capture.exported import export_model
from kernelfarm.digest import kernel_key, program_keys
from kernelfarm.ir.graph_ir import Arg, Graph, Input, Node, Ref
from kernelfarm.ir.text import print_graph
from kernelfarm.ir.verify import verify_prims
from kernelfarm.targets import target_facts
from kernelfarm.wire import graph_from_proto, graph_to_proto, kernel_to_proto, plan_to_proto
from optimizer_svc.pipeline import PASSES as OPTIMIZER_PASSES
from optimizer_svc.pipeline import given_facts
from optimizer_svc.stages import stage_texts

TARGET = "cpu:x86-64-v3"
BAR_S = 5.0
"""For the largest graph, without capture and code generation."""

ResultT = TypeVar("ResultT")


class _Layer(nn.Module):
    """One decoder layer; the rotary embedding's tables are arguments."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import LlamaConfig  # noqa: PLC0415 (takes seconds)
        from transformers.models.llama import modeling_llama  # noqa: PLC0415

        config = LlamaConfig(
            hidden_size=128,
            intermediate_size=344,
            num_attention_heads=4,
            num_key_value_heads=2,
            attn_implementation="eager",
        )
        self.layer = modeling_llama.LlamaDecoderLayer(config, 0)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Shapes: x: (1, tokens, hidden), cos, sin: (1, tokens, head) -> x's."""
        return self.layer(x, position_embeddings=(cos, sin))


def captured_layer() -> Graph:
    """A graph of one layer: its last three inputs are the activations and the two tables."""
    x, table = torch.randn(1, 64, 128), torch.randn(1, 64, 32)
    with torch.no_grad():
        return export_model(_Layer().eval(), (x, table, table.clone())).captured.graph


def repeated(layer: Graph, count: int) -> Graph:
    """A chain of `count` such layers; each has weights of its own, all share the tables."""
    *weights, x, cos, sin = layer.inputs
    numbers = {source.value: number for number, source in enumerate((x, cos, sin))}
    inputs = [replace(source, value=numbers[source.value]) for source in (x, cos, sin)]
    nodes: list[Node] = []
    fresh = len(inputs)
    for _ in range(count):
        for source in weights:
            numbers[source.value] = fresh
            inputs.append(Input(fresh, source.kind, source.name))
            fresh += 1
        for node in layer.nodes:
            results = tuple(range(fresh, fresh + len(node.results)))
            moved = replace(
                node,
                args=tuple(_moved(arg, numbers) for arg in node.args),
                attrs=tuple((name, _moved(arg, numbers)) for name, arg in node.attrs),
                results=results,
            )
            numbers.update(zip(node.results, results, strict=True))
            nodes.append(moved)
            fresh += len(results)
        (output,) = layer.outputs
        assert isinstance(output, Ref)
        numbers[x.value] = numbers[output.value]
    outputs = (Ref(numbers[x.value]),)
    return replace(layer, inputs=tuple(inputs), nodes=tuple(nodes), outputs=outputs)


def _moved(arg: Arg, numbers: dict[int, int]) -> Arg:
    if isinstance(arg, Ref):
        return Ref(numbers[arg.value])
    return tuple(_moved(item, numbers) for item in arg) if isinstance(arg, tuple) else arg


def timed(graph: Graph, layers: int) -> dict[str, Any]:
    """CPU seconds of each step of frontend and optimizer, in order."""
    clock = Clock()
    compile_timed(graph, clock)
    return {
        "layers": layers,
        "nodes": len(graph.nodes),
        "total_s": sum(clock.seconds.values()),
        "steps_s": clock.seconds,
    }


class Clock:
    """Sums up CPU seconds by step: other load changes them less than wall time."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def run(self, step: str, work: Callable[..., ResultT], *args: Any) -> ResultT:
        """Calls the function, adds its time to the step, and returns its result."""
        began = time.process_time()
        result = work(*args)
        self.seconds[step] = self.seconds.get(step, 0.0) + time.process_time() - began
        return result


def compile_timed(graph: Graph, clock: Clock) -> None:
    """Runs all steps of frontend and optimizer on a graph."""
    wire = graph_to_proto(graph)
    graph = clock.run("decode", graph_from_proto, wire)
    clock.run("program key", program_keys, graph, (TARGET,), ())
    lowered = clock.run("import", import_aten, graph).graph
    for step in FRONTEND_PASSES:
        lowered = clock.run(step.name, step.rewrite, lowered, graph).graph
    clock.run("print", print_graph, graph)
    message = clock.run("between services", graph_to_proto, lowered)
    lowered = clock.run("between services", graph_from_proto, message)
    clock.run("verify", verify_prims, lowered)
    facts = given_facts(lowered, target_facts(TARGET))
    for step in OPTIMIZER_PASSES:
        facts[step.gives] = clock.run(step.name, step.run, *(facts[name] for name in step.needs))
    program = facts["program"]
    clock.run("print", stage_texts, facts["graph"], program, facts["report"])
    clock.run("between services", plan_to_proto, program.plan)
    for kernel in program.kernels:
        clock.run("between services", kernel_to_proto, kernel)
        clock.run("kernel keys", kernel_key, kernel, TARGET)

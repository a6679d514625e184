"""Farm-side compile time of graphs that grow: transformers of 2 to 180 layers, pass by pass.

One decoder layer of a small Llama is captured once and repeated, each time with weights of its own;
180 layers are 13,000 nodes. What the farm does between the request and codegen is run and
timed here in one process: decoding, keys, import and decomposition, all passes of the optimizer.

Usage: python -m benchmarks.compile_time [--layers N ...] [--profile FILE] [--json FILE]
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
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
from kernelfarm.service.collector import collect_rarely
from kernelfarm.targets import target_facts
from kernelfarm.wire import graph_from_proto, graph_to_proto, kernel_to_proto, plan_to_proto
from optimizer_svc.pipeline import PASSES as OPTIMIZER_PASSES
from optimizer_svc.stages import stage_texts

LAYERS = (2, 20, 90, 180)
TARGET = "cpu:x86-64-v3"
BAR_S = 5.0
"""For the largest graph, capture and codegen apart."""

ResultT = TypeVar("ResultT")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, nargs="*", default=list(LAYERS))
    parser.add_argument("--profile", type=Path, help="cProfile's text for the largest graph")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    layer = captured_layer()
    collect_rarely()
    rows = [timed(repeated(layer, count), count) for count in options.layers]
    print_rows(rows)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    if options.profile:
        options.profile.write_text(profile_of(repeated(layer, max(options.layers))))
    return 0 if rows[-1]["total_s"] < BAR_S else 1


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
    """The layer that many times in a row; each has weights of its own, all share the tables."""
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
    """CPU seconds of each step of the farm's rooms, in order."""
    clock = _Clock()
    compile_timed(graph, clock)
    return {
        "layers": layers,
        "nodes": len(graph.nodes),
        "total_s": sum(clock.seconds.values()),
        "steps_s": clock.seconds,
    }


class _Clock:
    """CPU seconds by step: a busy machine does not change them much."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def run(self, step: str, work: Callable[..., ResultT], *args: Any) -> ResultT:
        """What the work returns; its time is added to the step's."""
        began = time.process_time()
        result = work(*args)
        self.seconds[step] = self.seconds.get(step, 0.0) + time.process_time() - began
        return result


def compile_timed(graph: Graph, clock: _Clock) -> None:
    """Everything that the frontend and the optimizer do with a graph."""
    wire = graph_to_proto(graph)
    graph = clock.run("decode", graph_from_proto, wire)
    clock.run("program key", program_keys, graph, (TARGET,), ())
    lowered = clock.run("import", import_aten, graph).graph
    for step in FRONTEND_PASSES:
        lowered = clock.run(step.name, step.rewrite, lowered, graph).graph
    clock.run("print", print_graph, graph)
    message = clock.run("between services", graph_to_proto, lowered)
    facts: dict[str, Any] = {"graph": clock.run("between services", graph_from_proto, message)}
    clock.run("verify", verify_prims, facts["graph"])
    facts["target"] = target_facts(TARGET)
    for step in OPTIMIZER_PASSES:
        facts[step.gives] = clock.run(step.name, step.run, *(facts[name] for name in step.needs))
    program = facts["program"]
    clock.run("print", stage_texts, facts["graph"], program, facts["report"])
    clock.run("between services", plan_to_proto, program.plan)
    for kernel in program.kernels:
        clock.run("between services", kernel_to_proto, kernel)
        clock.run("kernel keys", kernel_key, kernel, TARGET)


def profile_of(graph: Graph) -> str:
    """cProfile's table of one compilation, by own time."""
    profiler = cProfile.Profile()
    profiler.runcall(compile_timed, graph, _Clock())
    lines: list[str] = []
    stats = pstats.Stats(profiler, stream=_Lines(lines))  # type: ignore[arg-type]
    stats.strip_dirs().sort_stats("tottime").print_stats(60)
    return "".join(lines)


class _Lines:
    """A stream that keeps what is written."""

    def __init__(self, lines: list[str]) -> None:
        self.write = lines.append


def print_rows(rows: list[dict[str, Any]]) -> None:
    """The table, a column for each graph."""
    steps = list(rows[-1]["steps_s"])
    print(f"{'step':<34}" + "".join(f"{row['nodes']:>8} n" for row in rows))
    for step in steps:
        print(f"{step:<34}" + "".join(f"{row['steps_s'].get(step, 0):>10.3f}" for row in rows))
    print(f"{'total s':<34}" + "".join(f"{row['total_s']:>10.3f}" for row in rows))
    per_node = [1e6 * row["total_s"] / row["nodes"] for row in rows]
    print(f"{'us a node':<34}" + "".join(f"{us:>10.0f}" for us in per_node))
    print(f"bar: {BAR_S:.0f} s for the largest")


if __name__ == "__main__":
    sys.exit(main())

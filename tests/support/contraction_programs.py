"""Graphs of contractions that kernels compute on some processors, and how functions run there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.targets import TargetFacts
from tests.support.in_process_compiler import Counts, compile_here
from tests.support.traced_graphs import capturing

_TEXTS = Path(__file__).parent / "ir_texts"
ONE_PIXEL = (_TEXTS / "one_pixel_convolution.graph").read_text(encoding="utf-8")
BATCHED = (_TEXTS / "batched_product.graph").read_text(encoding="utf-8")
DEPTHWISE = (_TEXTS / "depthwise_convolution.graph").read_text(encoding="utf-8")
WINOGRAD = (_TEXTS / "winograd_convolution.graph").read_text(encoding="utf-8")


def grouped_convolution(window: str = "[2, 2, 2, 1, 2, 2, 2]", weight: str = "64, 32") -> str:
    """A convolution of two groups by 3 x 3 pixels with strides, padding and dilation."""
    members = 9 * int(weight.split(", ")[1])
    return f"""\
graph prims 1
%0: bf16[2, 64, 9, 12]@[6912, 1, 768, 64] = input "x"
%1: bf16[{weight}, 3, 3]@[{members}, 9, 3, 1] = input "w"
%2: bf16[2, 64, 5, 5]@[1600, 1, 320, 64] = extern(%0, %1; is_contraction=true, node=0, \
op="aten.convolution.default", window={window}) from [0]
%3: bf16[2, 64, 5, 5] = abs(%2) from [1]
return %3: bf16[2, 64, 5, 5]@[1600, 1, 320, 64]
"""


def run(
    facts: TargetFacts, counts: Counts, function: Callable[..., Tensor], *args: Any
) -> tuple[Tensor, Graph]:
    """The result of a function by the programs of a target, and its graph as prims."""
    graphs: list[Graph] = []

    def compiled(captured: CapturedGraph, _: fx.GraphModule) -> Callable[..., object]:
        graphs.append(decompose_to_prims(captured.graph).graph)
        program = compile_here(captured, counts, facts)
        return lambda *given: program(list(given))

    torch._dynamo.reset()
    with torch.no_grad():
        result = torch.compile(function, backend=capturing(compiled), dynamic=False)(*args)
    (graph,) = graphs
    return result, graph

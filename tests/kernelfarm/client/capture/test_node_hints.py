"""Hints that a model states reach the captured graph, also through gradients, and traces' keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import fx

import kernelfarm
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.capture.exported import export_model
from kernelfarm.client.traces.digest import graph_parts
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.graph_ir import Graph
from tests.support.traced_graphs import recording, traced, traced_one


@pytest.fixture(autouse=True)
def _without_traces() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _hints(graph: Graph) -> dict[str, list[str]]:
    """The hints of each operator that has some, by its name."""
    found: dict[str, list[str]] = {}
    for stated in graph.kernel_hints:
        found.setdefault(graph.nodes[stated.node].op, []).append(str(stated.hint))
    return found


def _model(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    with kernelfarm.hints("num_warps=8, async"):
        y = torch.softmax(y, -1)
        with kernelfarm.hints("num_warps=4, waves_per_eu=2"):
            y = y.cos()
    return y.exp()


def test_operations_of_a_block_have_its_hints_and_inner_blocks_replace_equal_names() -> None:
    with torch.no_grad():
        captured = traced_one(_model, torch.randn(4, 8))

    assert _hints(captured.graph) == {
        "aten._softmax.default": ["async", "num_warps=8"],
        "aten.cos.default": ["async", "num_warps=4", "waves_per_eu=2"],
    }


def test_the_gradient_of_a_hinted_operation_has_its_hints() -> None:
    found: list[CapturedGraph] = []
    step = torch.compile(_model, backend=recording(found))
    step(torch.randn(4, 8, requires_grad=True)).sum().backward()

    forward, backward = (_hints(captured.graph) for captured in found)
    assert forward["aten._softmax.default"] == ["async", "num_warps=8"]
    assert backward["aten._softmax_backward_data.default"] == ["async", "num_warps=8"]


def test_an_exported_model_keeps_its_hints() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return _model(x)

    exported = export_model(Model(), (torch.randn(4, 8),))
    assert _hints(exported.captured.graph)["aten.cos.default"] == [
        "async",
        "num_warps=4",
        "waves_per_eu=2",
    ]


def test_hints_compute_nothing_in_eager() -> None:
    x = torch.randn(4, 8)

    assert torch.equal(_model(x), torch.softmax(x.sin(), -1).cos().exp())


def test_a_hint_of_another_form_is_refused_in_eager_and_while_compiling() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        with kernelfarm.hints("warps: 8"):
            return x.sin()

    with pytest.raises(InvalidGraphError, match="hint 'warps: 8'; expected NAME or NAME=NUMBER"):
        model(torch.ones(2))
    with torch.no_grad(), pytest.raises(Exception, match="hint 'warps: 8'; expected NAME"):
        traced(model, torch.ones(2))


def _parts(function: Callable[..., Any]) -> dict[str, str]:
    """The parts of the digest of a function's trace."""
    found: list[dict[str, str]] = []

    def backend(gm: fx.GraphModule, inputs: Any) -> Any:
        found.append(graph_parts(gm)[0])
        return gm.forward

    torch._dynamo.reset()
    torch.compile(function, backend=backend)(torch.ones(4))
    return found[0]


def test_traces_of_other_hints_have_other_digests() -> None:
    def of(text: str) -> Callable[[torch.Tensor], torch.Tensor]:
        def model(x: torch.Tensor) -> torch.Tensor:
            with kernelfarm.hints(text):
                return x.sin()

        return model

    def plain(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    functions = [plain, *(of(text) for text in ("num_warps=8", "num_warps=4", "async"))]
    assert len({_parts(function)["graph"] for function in functions}) == len(functions)
    assert _parts(of("num_warps=8")) == _parts(of("num_warps=8"))

"""What is recorded as a CUDA graph, and what says why it is not; recordings need a GPU."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from kernelfarm.client import counters
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.capture.graph import capture
from kernelfarm.client.capture.input_order import InputOrder
from kernelfarm.client.capture.tracing import traced
from kernelfarm.client.loaders.by_device import device_support
from kernelfarm.client.programs.cuda_graphs import CudaGraphs, GraphUse, TracedFacts, TrainingStep
from kernelfarm.client.programs.recordable import obstacle, written_arguments
from kernelfarm.client.programs.traced_facts import RecordedUse, static_inputs
from kernelfarm.client.pytorch.private import make_boxed_func
from kernelfarm.client.runtime.program import BoundProgram
from kernelfarm.client.settings import client_settings
from kernelfarm.errors import CallerError
from kernelfarm.ir.algebra.expr import as_expr
from kernelfarm.ir.program_ir import ExternCall, Plan

GPU = torch.device("cuda:0")
PREFIX = "cuda_graphs."


@pytest.fixture(autouse=True)
def _counted_anew() -> None:
    counters.reset()


def counted() -> dict[str, int]:
    """The counters of CUDA graphs."""
    found = counters.snapshot()
    return {name[len(PREFIX) :]: n for name, n in found.items() if name.startswith(PREFIX)}


class Model(nn.Module):
    """Weights, a buffer that it changes, and two arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(6, 4)
        self.register_buffer("cache", torch.zeros(5, 4))

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """Adds to the cache and returns all of it."""
        self.cache.add_(self.project(x) * scale)
        return self.cache.sin()


def externs_of(function: Callable[..., Any], *args: torch.Tensor) -> BoundProgram:
    """A program for a GPU whose steps are all operators of a function, in order."""
    captured = dataclasses.replace(capture(make_fx(function)(*args)), device=GPU)
    steps = tuple(
        ExternCall(number, node.op, (), (), is_contraction=False)
        for number, node in enumerate(captured.graph.nodes)
    )
    return program_of(captured, steps)


def program_of(captured: CapturedGraph, steps: tuple[ExternCall, ...] = ()) -> BoundProgram:
    plan = Plan("cuda:sm_90a", (), (), as_expr(0), (), steps, ())
    return BoundProgram(plan, (), captured, device_support(torch.device("cpu")).loader)


def reason(program: BoundProgram, *args: Any, static: tuple[int, ...] = ()) -> tuple[str, str]:
    found = obstacle(program, static, args)
    return ("", "") if found is None else (found.kind, found.text)


@pytest.mark.parametrize(
    "how",
    [
        {"mode": "reduce-overhead"},
        {"options": {"cuda_graphs": True}},
        {"options": {"cuda_graphs": True, "mode": "swap"}},
        {"options": {"cuda_graphs": "yes", "strict": True}},
    ],
)
def test_a_cpu_runs_as_without_the_option_and_says_so(
    how: dict[str, Any], endpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kernelfarm.client")
    model = Model().eval()
    expected = Model().eval()
    expected.load_state_dict(model.state_dict())
    fast = torch.compile(model, backend="kernelfarm", **how)
    with torch.no_grad():
        for seed in range(3):
            x, scale = torch.full((5, 6), seed / 4), torch.tensor(0.5)
            torch.testing.assert_close(fast(x, scale), expected(x, scale))
            torch.testing.assert_close(model.cache, expected.cache)
    is_eager = how.get("options", {}).get("mode") == "swap"  # the program may come too late
    assert counted() == {"not_recorded.device": 1} or (is_eager and not counted())
    lines = [record.getMessage() for record in caplog.records if "CUDA graph" in record.msg]
    assert all("it runs on cpu, and only GPUs have CUDA graphs" in line for line in lines)
    assert len(lines) == len(counted())


def test_training_on_a_cpu_runs_as_without_the_option(endpoint: str) -> None:
    model, x = nn.Linear(4, 3), torch.ones(2, 4)
    fast = torch.compile(model, backend="kernelfarm", mode="reduce-overhead")
    for _ in range(3):
        expected = torch.autograd.grad(model(x).square().sum(), model.parameters())
        found = torch.autograd.grad(fast(x).square().sum(), model.parameters())
        torch.testing.assert_close(found, expected)
    assert counted() == {"not_recorded.device": 2}


def test_other_modes_of_torch_are_refused_with_those_that_there_are() -> None:
    fast = torch.compile(torch.sin, backend="kernelfarm", mode="max-autotune")
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        fast(torch.ones(3))
    assert isinstance(caught.value.inner_exception, CallerError)
    expected = "mode 'max-autotune'; expected one of wait, swap, strict, reduce-overhead"
    assert str(caught.value.inner_exception) == expected


def test_the_environment_turns_recording_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not client_settings().cuda_graphs
    monkeypatch.setenv("KERNELFARM_CUDA_GRAPHS", "1")
    assert client_settings().cuda_graphs
    with pytest.raises(CallerError, match=r"KERNELFARM_CUDA_GRAPHS: expected true or false"):
        client_settings(cuda_graphs="maybe")


def test_a_dynamo_graph_and_its_trace_have_the_same_static_inputs() -> None:
    facts: dict[GraphUse, TracedFacts] = {}
    of_graph: list[tuple[int, ...]] = []

    def compiler(use: GraphUse) -> Callable[..., Any]:
        def compile_graph(graph: Any, _: Any) -> Any:
            facts[use] = RecordedUse(use).facts(graph)
            return make_boxed_func(graph.forward)

        return compile_graph

    def backend(gm: torch.fx.GraphModule, args: Any) -> Any:
        order = InputOrder(gm)
        of_graph.append(static_inputs(order.module))
        compilers = map(compiler, (GraphUse.FORWARD, GraphUse.INFERENCE, GraphUse.BACKWARD))
        return order.called_as_before(traced(order.module, order.of(args), *compilers))

    fast = torch.compile(Model(), backend=backend)
    with torch.no_grad():
        fast(torch.ones(5, 6), torch.ones(()))
    fast(torch.ones(5, 6), torch.ones(())).sum().backward()
    # Arguments in the order of their uses: two weights after x, scale, then the cache.
    assert facts[GraphUse.INFERENCE].static == facts[GraphUse.FORWARD].static == of_graph[0]
    assert of_graph[0] == of_graph[1] and len(of_graph[0]) == 3
    saved = facts[GraphUse.BACKWARD].static
    assert saved == tuple(range(len(saved))) and saved
    assert "self.cache.sin()" in str(facts[GraphUse.INFERENCE].origins[0])


def test_constants_of_a_frozen_graph_keep_their_memory() -> None:
    """They are arguments behind those of Dynamo's graph."""
    before, made = torch.fx.Graph(), torch.fx.Graph()
    for graph, names in ((before, ("x", "w")), (made, ("x", "w", "frozen0", "frozen1"))):
        for name in names:
            graph.placeholder(name)
        graph.output(())
    module = torch.fx.GraphModule({}, before)
    weight = module.graph.find_nodes(op="placeholder")[1]
    weight.meta["tensor_dict"] = {"_dynamo_static_input_type": "unguarded"}
    use = RecordedUse(GraphUse.INFERENCE)
    assert use.facts_of_recorded(made, module).static == (1, 2, 3)
    assert use.facts_of_recorded(before, module).static == (1,)


def test_a_program_of_kernels_and_products_is_recorded() -> None:
    program = externs_of(lambda x: (x @ x).sin(), torch.ones(3, 3))
    assert reason(program, 7) == ("", "")


def test_a_tensor_on_the_cpu_is_an_obstacle() -> None:
    program = externs_of(lambda x: x.sin(), torch.ones(3))
    kind, text = reason(program, 7, torch.ones(3))
    assert kind == "cpu_tensor" and text.startswith("argument 1 is on cpu")


def test_an_argument_that_is_neither_tensor_nor_integer_is_an_obstacle() -> None:
    program = externs_of(lambda x: x.sin(), torch.ones(3))
    assert reason(program, None) == (
        "argument",
        "argument 0 is a NoneType; expected tensors and integers",
    )


def test_changed_arguments_must_be_static() -> None:
    found: list[CapturedGraph] = []

    def keep(graph: torch.fx.GraphModule, _: Any) -> Any:
        found.append(capture(graph))
        return make_boxed_func(graph.forward)

    with torch.no_grad():
        torch.compile(Model(), backend=lambda gm, args: traced(gm, args, keep))(
            torch.ones(5, 6), torch.ones(())
        )
    program = program_of(dataclasses.replace(found[0], device=GPU))
    (cache,) = written_arguments(program)
    assert reason(program, static=(cache,)) == ("", "")
    kind, text = reason(program)
    assert kind == "mutated_input"
    assert f"it changes argument {cache}" in text and "mark_static_address" in text


@pytest.mark.parametrize(("dtype", "kind"), [(torch.bool, "operator"), (torch.int64, "")])
def test_writes_through_a_mask_need_the_host(dtype: torch.dtype, kind: str) -> None:
    at = torch.zeros(4, dtype=dtype)
    program = externs_of(lambda x, v, at: x.index_put((at,), v), torch.ones(4), torch.ones(()), at)
    found, text = reason(program)
    assert found == kind
    assert not kind or text == "aten.index_put.default needs the host while it runs"


def test_a_mask_as_value_needs_no_host() -> None:
    masks, at = torch.zeros(4, dtype=torch.bool), torch.zeros(2, dtype=torch.int64)
    program = externs_of(lambda x, v: x.index_put((at,), v), masks, masks[:2])
    assert reason(program) == ("", "")


def test_a_call_that_is_not_recorded_clears_its_arguments_and_ends_the_recorded_step() -> None:
    step = TrainingStep(is_recorded=True)
    forward = CudaGraphs(TracedFacts(GraphUse.FORWARD, step=step))
    args = [torch.ones(3)]
    (result,) = forward.unrecorded(lambda args: [args[0] * 2], args)
    assert torch.equal(result, torch.full((3,), 2.0))
    assert args == [] and not step.is_recorded
    args = [torch.ones(3)]
    eager = CudaGraphs(TracedFacts(GraphUse.BACKWARD, step=step)).around(lambda args: [args[0] + 1])
    assert torch.equal(eager(args)[0], result) and args == []


def test_dynamo_drops_recordings_without_a_gpu() -> None:
    torch.compile(torch.sin, backend="kernelfarm", mode="reduce-overhead")
    torch._dynamo.reset()

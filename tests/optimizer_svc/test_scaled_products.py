"""Products of 8-bit floats by the framework's library, which checks the layouts of its operands."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.ir.program_ir import ExternCall, Launch, Program
from kernelfarm.ir.verify import verify_program
from kernelfarm.targets import target_facts
from optimizer_svc.pipeline import optimize
from tests.support.traced_graphs import recording

M, N, K, GROUP = 32, 256, 512, 128


def program_of(layer: Callable[..., Tensor], *args: Tensor) -> Program:
    found: list[CapturedGraph] = []
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(layer, backend=recording(found, runs=False), dynamic=False)(*args)
    (captured,) = found
    graph = decompose_to_prims(captured.graph).graph
    program = optimize(graph, target_facts("cuda:sm_90a")).program
    verify_program(program)
    return program


def strides_of(program: Program) -> list[tuple[int, ...]]:
    """The strides of the operands of the only extern step."""
    (step,) = [step for step in program.plan.steps if isinstance(step, ExternCall)]
    assert step.op == "aten._scaled_mm.default"
    return [tuple(stride.as_int() for stride in arg.strides) for arg in step.args]


def rows_of_float8(x: Tensor) -> tuple[Tensor, Tensor]:
    wide = x.float()
    scale = wide.abs().amax(-1, keepdim=True).clamp(min=1e-8) / 448
    return (wide / scale).to(torch.float8_e4m3fn), scale


def test_the_columns_of_a_stored_weight_are_read_where_they_are() -> None:
    """CUDA's library takes no other layout."""

    def layer(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
        rows, by = rows_of_float8(x)
        y = torch._scaled_mm(rows, weight.t(), scale_a=by, scale_b=scale, out_dtype=torch.bfloat16)
        return y.relu()

    weight = torch.randn(N, K).to(torch.float8_e4m3fn)
    program = program_of(layer, torch.randn(M, K).bfloat16(), weight, torch.ones(1, N))
    assert strides_of(program)[:2] == [(K, 1), (1, K)]
    launched = [type(step) for step in program.plan.steps]
    assert launched == [Launch, ExternCall, Launch]


def test_a_weight_that_is_computed_has_its_columns_in_memory() -> None:
    """Its rows are elements (k, n) of another order, so it is stored for the product alone."""

    def layer(x: Tensor, weight: Tensor, one: Tensor) -> Tensor:
        right = (weight * 2).to(torch.float8_e4m3fn).t().contiguous().t()
        return torch._scaled_mm(x, right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

    x = torch.randn(M, K).to(torch.float8_e4m3fn)
    program = program_of(layer, x, torch.randn(K, N), torch.ones(()))
    assert strides_of(program)[:2] == [(K, 1), (1, K)]
    assert [type(step) for step in program.plan.steps] == [Launch, ExternCall]


def test_scales_have_the_layout_that_the_model_gave_them() -> None:
    """Those of blocks of 128 terms of x lie column by column."""

    def layer(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
        rows, by = rows_of_float8(x.unflatten(1, (-1, GROUP)))
        by = by.squeeze(-1).t().contiguous().t()
        return torch._scaled_mm(
            rows.flatten(1), weight.t(), scale_a=by, scale_b=scale.t(), out_dtype=torch.bfloat16
        )

    weight = torch.randn(N, K).to(torch.float8_e4m3fn)
    scale = torch.ones(N // GROUP, K // GROUP)
    program = program_of(layer, torch.randn(M, K).bfloat16(), weight, scale)
    assert strides_of(program) == [(K, 1), (1, K), (1, M), (1, K // GROUP)]

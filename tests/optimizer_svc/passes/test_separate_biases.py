"""Biases of convolutions become prims where the target's library adds them apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.client.loaders.host_target import host_cpu_target
from kernelfarm.client.runtime.extern_node import ExternNode
from kernelfarm.ir.program_ir import ExternCall, Launch, Program
from kernelfarm.targets import target_facts
from optimizer_svc.pipeline import optimize
from tests.support.goldens import assert_golden
from tests.support.in_process_compiler import Counts, compile_here
from tests.support.optimizer_passes import before_and_after
from tests.support.traced_graphs import traced_one

GPU = target_facts("cuda:sm_90a")
HOST = replace(target_facts(host_cpu_target()), adds_biases_apart=True, convolutions=None)
"""This machine's processor, as if its library computed all convolutions and added biases apart."""

CONVOLUTION_AND_EXP = """\
graph prims 1
%0: bf16[2, 3, 8, 8]@[192, 64, 8, 1] = input "x"
%1: bf16[4, 3, 1, 1]@[3, 1, 1, 1] = input "weight"
%2: bf16[4]@[1] = input "bias"
%3: bf16[2, 4, 8, 8]@[256, 64, 8, 1] = extern(%0, %1, %2; is_contraction=true, node=0, op="aten.convolution.default") from [0]
%4: bf16[2, 256]@[256, 1] = reshape(%3; shape=[{2}, {256}]) from [1]
%5: f32[2, 256] = convert(%4; dtype=f32) from [2]
%6: f32[2, 256] = exp(%5) from [2]
return %6: f32[2, 256]@[256, 1]
"""


@pytest.mark.golden
def test_a_bias_becomes_a_sum_that_is_rounded_like_eager_s() -> None:
    assert_golden(
        before_and_after("separate-biases", CONVOLUTION_AND_EXP, "cuda:sm_90a"),
        """\
-- before separate-biases: graph
graph prims 1
%0: bf16[2, 3, 8, 8]@[192, 64, 8, 1] = input "x"
%1: bf16[4, 3, 1, 1]@[3, 1, 1, 1] = input "weight"
%2: bf16[4]@[1] = input "bias"
%3: bf16[2, 4, 8, 8]@[256, 64, 8, 1] = extern(%0, %1, %2; is_contraction=true, node=0, op="aten.convolution.default") from [0]
%4: bf16[2, 256]@[256, 1] = reshape(%3; shape=[{2}, {256}]) from [1]
%5: f32[2, 256] = convert(%4; dtype=f32) from [2]
%6: f32[2, 256] = exp(%5) from [2]
return %6: f32[2, 256]@[256, 1]
-- after: graph
graph prims 1
%0: bf16[2, 3, 8, 8]@[192, 64, 8, 1] = input "x"
%1: bf16[4, 3, 1, 1]@[3, 1, 1, 1] = input "weight"
%2: bf16[4]@[1] = input "bias"
%7: bf16[2, 4, 8, 8]@[256, 64, 8, 1] = extern(%0, %1; is_contraction=true, node=0, op="aten.convolution.default") from [0]
%8: f32[4] = convert(%2; dtype=f32) from [0]
%9: f32[2, 4, 8, 8] = broadcast_in_dim(%8; dims=[1], shape=[{2}, {4}, {8}, {8}]) from [0]
%10: f32[2, 4, 8, 8] = convert(%7; dtype=f32) from [0]
%11: f32[2, 4, 8, 8] = add(%10, %9) from [0]
%3: bf16[2, 4, 8, 8] = convert(%11; dtype=bf16) from [0]
%4: bf16[2, 256]@[256, 1] = reshape(%3; shape=[{2}, {256}]) from [1]
%5: f32[2, 256] = convert(%4; dtype=f32) from [2]
%6: f32[2, 256] = exp(%5) from [2]
return %6: f32[2, 256]@[256, 1]
""",
    )


@pytest.mark.golden
def test_a_processor_s_library_adds_the_bias_itself() -> None:
    assert_golden(
        before_and_after("separate-biases", CONVOLUTION_AND_EXP),
        """\
-- before separate-biases: graph
graph prims 1
%0: bf16[2, 3, 8, 8]@[192, 64, 8, 1] = input "x"
%1: bf16[4, 3, 1, 1]@[3, 1, 1, 1] = input "weight"
%2: bf16[4]@[1] = input "bias"
%3: bf16[2, 4, 8, 8]@[256, 64, 8, 1] = extern(%0, %1, %2; is_contraction=true, node=0, op="aten.convolution.default") from [0]
%4: bf16[2, 256]@[256, 1] = reshape(%3; shape=[{2}, {256}]) from [1]
%5: f32[2, 256] = convert(%4; dtype=f32) from [2]
%6: f32[2, 256] = exp(%5) from [2]
return %6: f32[2, 256]@[256, 1]
-- after: graph
the same
""",
    )


def _program(function: Callable[..., torch.Tensor], *args: torch.Tensor) -> Program:
    with torch.no_grad():
        captured = traced_one(function, *args)
    return optimize(decompose_to_prims(captured.graph).graph, GPU).program


def _tensors_of_convolutions(program: Program) -> list[int]:
    return [len(step.args) for step in program.plan.steps if isinstance(step, ExternCall)]


def test_a_result_that_no_kernel_reads_keeps_its_bias() -> None:
    """A kernel for the sum alone would read and write as much as the library's."""
    image = torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    chain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.ReLU())
    chain = chain.to(memory_format=torch.channels_last)
    assert _tensors_of_convolutions(_program(chain, image)) == [3, 2]


def test_the_sum_is_fused_with_what_reads_it() -> None:
    image = torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU()).to(memory_format=torch.channels_last)
    program = _program(model, image)
    assert _tensors_of_convolutions(program) == [2]
    assert sum(isinstance(step, Launch) for step in program.plan.steps) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("is_transposed", [False, True], ids=["plain", "transposed"])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_programs_without_the_bias_of_a_convolution_run(
    axes: int, is_transposed: bool, dtype: torch.dtype
) -> None:
    names = {False: functional.conv1d, True: functional.conv_transpose1d}
    if axes > 1:
        names = {
            False: (functional.conv2d, functional.conv3d)[axes - 2],
            True: (functional.conv_transpose2d, functional.conv_transpose3d)[axes - 2],
        }

    def function(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return names[is_transposed](x, weight, bias).tanh()

    torch.manual_seed(0)
    sizes = (3,) * axes
    args = tuple(
        torch.randn(shape).to(dtype) for shape in ((2, 4, *(5,) * axes), (4, 4, *sizes), (4,))
    )
    counts = Counts()
    captured = traced_one(function, *args)
    runner = compile_here(captured, counts, HOST)
    (result,) = runner(list(args))
    expected = function(*(a.double() for a in args))
    torch.testing.assert_close(result.double(), expected, **_tolerance(dtype))
    assert counts.externs == ["aten.convolution.default"]
    assert counts.launches == 1


def _tolerance(dtype: torch.dtype) -> dict[str, float]:
    """Two roundings of the sum, which is below 64, and tanh's slope of at most 1."""
    eps = torch.finfo(dtype).eps
    return {"rtol": 4 * eps, "atol": 64 * eps}


def test_varying_sizes_keep_the_sum_fused() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU())
    image = torch.randn(2, 3, 8, 8)
    torch._dynamo.mark_dynamic(image, 0)
    program = _program(model, image)
    assert _tensors_of_convolutions(program) == [2]


def test_a_step_of_another_operator_cannot_lack_a_tensor() -> None:
    def product(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.addmm(bias, x, y)

    captured = traced_one(product, torch.randn(2, 3), torch.randn(3, 4), torch.randn(4))
    assert not ExternNode(captured.nodes[0], {}).has_bias

"""Products of few rows by weights of 8-bit floats: their numbers in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, fx

from codegen_svc.backends.cuda.backend import BACKEND as CUDA
from codegen_svc.emitters.triton.product_tiling import product_tiling
from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.ir.contractions import find_contraction
from kernelfarm.ir.product_choice import ProductChoice
from kernelfarm.ir.program_ir import BufferKind, Launch, Program
from kernelfarm.targets import target_facts
from optimizer_svc.pipeline import optimize
from tests.support.integer_weights import FLOAT8_FORMS, GROUP, operands
from tests.support.single_operator import to_numpy
from tests.support.traced_graphs import capturing, traced_one
from tests.support.triton_cases import interpreter_case
from tests.support.triton_interpreter import Case, run_interpreted

TARGET = target_facts("cuda:sm_90a")
N, K = 3 * GROUP // 2, 2 * GROUP
"""One block of scales is cut off."""
ROWS = (1, 3, 17)
NAN_AT = (5, 77)
Arguments = tuple[Tensor, ...]


def arguments(name: str, rows: int) -> Arguments:
    """Operands of a form, in f16: Triton's interpreter truncates to bf16.

    The weight has all values that are numbers, and one that is not.
    """
    torch.manual_seed(rows)
    x, weight, scale = operands(FLOAT8_FORMS[name], rows, N, K)
    patterns = torch.arange(256, dtype=torch.uint8).view(weight.dtype)
    numbers = patterns[patterns.float().isfinite()]
    weight[7, : len(numbers)] = numbers
    weight[NAN_AT] = float("nan")
    return x.half(), weight, scale.half() if scale.dtype is torch.bfloat16 else scale


def launch(name: str, args: Arguments) -> Case:
    """The launch of a form's only kernel, with the tiling for an H100."""
    cases: list[Case] = []

    def compiled(captured: CapturedGraph, gm: fx.GraphModule) -> Callable[..., object]:
        program = optimize(
            decompose_to_prims(captured.graph).graph, TARGET, ProductChoice.OWN
        ).program

        def run(*given: Tensor) -> object:
            read = [given[source] for source in captured.sources if isinstance(source, int)]
            cases.append(case_of(program, read))
            return gm.forward(*given)

        return run

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(FLOAT8_FORMS[name].layer, backend=capturing(compiled), dynamic=False)(*args)
    (case,) = cases
    return case


def case_of(program: Program, inputs: Sequence[Tensor]) -> Case:
    """The launch of a program's only kernel."""
    (step,), (kernel,) = program.plan.steps, program.kernels
    assert isinstance(step, Launch)
    found = {buffer.name: buffer for buffer in program.plan.buffers}
    arrays: dict[str, Any] = {}
    for param, name in zip(kernel.params, step.buffers, strict=True):
        if found[name].kind is BufferKind.INPUT:
            array = to_numpy(inputs[found[name].position]).reshape(-1)
            arrays[param.name] = array.view(np.uint8) if array.itemsize == 1 else array
        else:
            arrays[param.name] = np.zeros(param.size_elems.as_int(), np.float16)
    product = find_contraction(kernel)
    tiling = None if product is None else product_tiling(kernel, product, TARGET, 32)
    return interpreter_case(kernel, arrays, {}, tiling)


@pytest.fixture(scope="module")
def interpreted() -> dict[tuple[str, int], Tensor]:
    keys = [(name, rows) for name in FLOAT8_FORMS for rows in ROWS]
    results = run_interpreted([launch(name, arguments(name, rows)) for name, rows in keys])
    found = {}
    for key, result in zip(keys, results, strict=True):
        assert not isinstance(result, str), result
        found[key] = torch.from_numpy(result[-1]).reshape(key[1], N)
    return found


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", FLOAT8_FORMS)
def test_products_are_as_exact_as_eager(
    name: str, rows: int, interpreted: dict[tuple[str, int], Tensor]
) -> None:
    layer, args = FLOAT8_FORMS[name].layer, arguments(name, rows)
    exact = layer(*(a.double() for a in args))
    is_number = torch.arange(N) != NAN_AT[0]
    assert torch.equal(exact.isfinite().all(0), is_number)
    ours, eager = (found[:, is_number] for found in (interpreted[name, rows], layer(*args)))
    errors = [(y.double() - exact[:, is_number]).abs().max().item() for y in (ours, eager)]
    assert errors[0] <= 1.05 * errors[1]
    assert interpreted[name, rows][:, NAN_AT[0]].isnan().all()


@pytest.mark.parametrize(("rows", "form"), [(1, "looped"), (16, "product")])
def test_a_chip_with_the_instruction_widens_the_weight_by_it_alone(rows: int, form: str) -> None:
    with torch.no_grad():
        args = operands(FLOAT8_FORMS["float8-blocks"], rows, 2048, 2048)
        graph = traced_one(FLOAT8_FORMS["float8-blocks"].layer, *args).graph
    program = optimize(decompose_to_prims(graph).graph, TARGET).program
    (kernel,) = program.kernels
    aligned = CUDA.build(kernel, TARGET)[0]
    assert dict(aligned.launch.extras)["form"] == form
    assert aligned.launch.spills == 0
    (ptx,) = (stage.content.decode() for stage in aligned.stages if stage.name == "ptx")
    assert "cvt.rn.f16x2.e4m3x2" in ptx
    assert "0f43F00000" not in ptx  # 480.0, with which NaN is compared without the instruction

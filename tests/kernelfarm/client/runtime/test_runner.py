"""Plans written by hand, run on real memory; kernels are interpreted."""

from __future__ import annotations

import threading

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from kernelfarm.client.capture.graph import capture
from kernelfarm.client.runtime import extern_node
from kernelfarm.client.runtime.runner import PlanRunner
from kernelfarm.ir.algebra.expr import as_expr
from kernelfarm.ir.program_ir import (
    BufferKind,
    ExternCall,
    Launch,
    Plan,
)
from tests.kernelfarm.client.runtime.handmade_plans import (
    args_of,
    buffer,
    dynamic_exp,
    exp_mm_neg,
    pointwise,
    program,
    view,
)


def test_kernels_and_extern_steps_give_what_eager_gives():
    function, args, captured, plan, kernels = exp_mm_neg()
    runner = PlanRunner(program(captured, plan, kernels)[0])
    for _ in range(3):
        (result,) = runner(args)
        torch.testing.assert_close(result, function(*args))
        assert result.stride() == (5, 1)


def test_inputs_of_other_strides_are_copied_into_those_of_the_plan():
    function, (x, w), captured, plan, kernels = exp_mm_neg()
    runner = PlanRunner(program(captured, plan, kernels)[0])
    (result,) = runner((x.t().contiguous().t(), w))
    torch.testing.assert_close(result, function(x, w))


def test_a_result_that_lies_otherwise_only_on_axes_of_one_element_is_not_copied(monkeypatch):
    def function(x, w):
        return x @ w

    x, w = torch.randn(1, 3), torch.randn(3, 5)
    captured = capture(make_fx(function)(x, w))
    plan = Plan(
        "cpu:test",
        (),
        (
            buffer("in0", BufferKind.INPUT, 3, position=0),
            buffer("in1", BufferKind.INPUT, 15, position=1),
            buffer("ext0", BufferKind.EXTERN, 5),
        ),
        as_expr(0),
        (),
        (
            ExternCall(
                0,
                "aten.mm.default",
                (view("in0", (1, 3), (3, 1)), view("in1", (3, 5), (5, 1))),
                (view("ext0", (1, 5), (7, 1)),),
                is_contraction=True,
            ),
        ),
        (view("ext0", (1, 5), (7, 1)),),
    )
    made = []

    def product(*tensors):
        made.append(torch.mm(*tensors))
        return made[-1]

    monkeypatch.setitem(extern_node.DIRECT_CALLS, torch.ops.aten.mm.default, product)
    (result,) = PlanRunner(program(captured, plan, [])[0])((x, w))
    assert torch.equal(result, function(x, w)) and result.stride() == (5, 1)
    assert result.data_ptr() == made[0].data_ptr()


def test_a_call_within_a_step_of_the_same_program_has_a_state_of_its_own(monkeypatch):
    function, (x, w), captured, plan, kernels = exp_mm_neg()
    runner = PlanRunner(program(captured, plan, kernels)[0])
    inner = []

    def product(*tensors):
        if not inner:
            inner.append(None)
            inner[0] = runner((x + 1, w))[0]
        return torch.mm(*tensors)

    monkeypatch.setitem(extern_node.DIRECT_CALLS, torch.ops.aten.mm.default, product)
    runner = PlanRunner(program(captured, plan, kernels)[0])
    torch.testing.assert_close(runner((x, w))[0], function(x, w))
    torch.testing.assert_close(inner[0], function(x + 1, w))


def test_calls_with_another_number_of_threads_have_a_state_of_their_own():
    function, (x, w), captured, plan, kernels = exp_mm_neg()
    loaded, loader = program(captured, plan, kernels)
    contexts = iter([*range(40), 0, 1])
    loader.context = lambda: next(contexts)
    runner = PlanRunner(loaded)
    for _ in range(42):
        torch.testing.assert_close(runner((x, w))[0], function(x, w))


def test_an_index_out_of_bounds_is_an_index_error():
    _, args, captured, plan, kernels = exp_mm_neg()
    loaded, loader = program(captured, plan, kernels)
    runner = PlanRunner(loaded)
    loader.statuses["fused_neg"] = 1
    with pytest.raises(IndexError, match="fused_neg"):
        runner(args)
    loader.statuses.clear()
    assert len(runner(args)) == 1


def test_outputs_get_the_strides_of_the_trace():
    captured = capture(make_fx(lambda x: x.t().exp())(torch.randn(2, 3)))
    plan = Plan(
        "cpu:test",
        (),
        (
            buffer("in0", BufferKind.INPUT, 6, position=0),
            buffer("out0", BufferKind.OUTPUT, 6, position=0),
        ),
        as_expr(0),
        ("fused_exp",),
        (Launch(0, ("in0", "out0")),),
        (view("out0", (3, 2), (1, 3)),),
    )
    runner = PlanRunner(program(captured, plan, [pointwise("fused_exp", "exp", 6)])[0])
    x = torch.randn(2, 3)
    (result,) = runner((x,))
    torch.testing.assert_close(result, x.t().exp())
    assert result.stride() == x.t().exp().stride() == (1, 3)


def test_a_dynamic_plan_serves_many_sizes():
    captured, plan, kernels = dynamic_exp()
    runner = PlanRunner(program(captured, plan, kernels)[0])
    for rows in (2, 7, 7, 19, *range(20, 100)):
        x = torch.randn(rows, 3)
        result, twice = runner(args_of(captured, x))
        torch.testing.assert_close(result, x.exp())
        assert twice == 2 * rows


def test_prepared_calls_serve_one_size_each():
    captured, plan, kernels = dynamic_exp()
    runner = PlanRunner(program(captured, plan, kernels)[0])
    few, many = (args_of(captured, torch.randn(rows, 3)) for rows in (2, 9))
    calls = [runner.prepare(args) for args in (few, many)]
    assert runner.sizes(few) != runner.sizes(many)
    for call, args in zip(calls, (few, many), strict=True):
        x = next(arg for arg in args if isinstance(arg, torch.Tensor))
        torch.testing.assert_close(call(args)[0], x.exp())


def test_threads_run_one_program_at_once_without_disturbing_each_other():
    function, (x, w), captured, plan, kernels = exp_mm_neg()
    runner = PlanRunner(program(captured, plan, kernels)[0])
    wrong: list[int] = []

    def work(number: int) -> None:
        mine = x + number
        expected, size = function(mine, w), mine.exp() @ w.abs()  # what the sums are made of
        for _ in range(20):
            if bool(((runner((mine, w))[0] - expected).abs() > 1e-5 * size).any()):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong

"""What memory calls of a program hold, when they drop it, and what they copy."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from kernelfarm.client.capture.captured import CapturedGraph, ModuleOutput
from kernelfarm.client.capture.graph import capture
from kernelfarm.client.pytorch.kept_memory import keep_freed_memory
from kernelfarm.client.runtime import arena, extern_node
from kernelfarm.client.runtime.layout import Layout
from kernelfarm.client.runtime.runner import PlanRunner
from kernelfarm.ir.algebra.expr import as_expr
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.program_ir import (
    BufferKind,
    ExternCall,
    Launch,
    Plan,
)
from tests.kernelfarm.client.runtime.handmade_plans import (
    buffer,
    exp_mm_neg,
    pointwise,
    program,
    view,
)
from tests.support.allocations import peak_of


def test_a_call_keeps_no_tensor_of_its_caller():
    function, (x, w), captured, plan, kernels = exp_mm_neg()
    runner = PlanRunner(program(captured, plan, kernels)[0])
    given = x.clone()
    (result,) = runner((given, w))
    gone = [weakref.ref(given), weakref.ref(result)]
    torch.testing.assert_close(result, function(x, w))
    del given, result
    assert [reference() for reference in gone] == [None, None]


def test_a_large_extern_result_is_dropped_after_its_last_use(monkeypatch):
    def function(x, w):
        return ((x @ w) @ w) @ w

    x, w = torch.randn(64, 64), torch.randn(64, 64)
    captured = capture(make_fx(function)(x, w))
    whole = view("in0", (64, 64), (64, 1))
    steps, read = [], whole
    for number in range(3):
        made = view(f"ext{number}", (64, 64), (64, 1))
        args = (read, view("in1", (64, 64), (64, 1)))
        steps.append(ExternCall(number, "aten.mm.default", args, (made,), is_contraction=True))
        read = made
    inputs = [buffer(f"in{n}", BufferKind.INPUT, 4096, position=n) for n in range(2)]
    products = [buffer(f"ext{n}", BufferKind.EXTERN, 4096) for n in range(3)]
    plan = Plan("cpu:test", (), (*inputs, *products), as_expr(0), (), tuple(steps), (read,))
    made_before, alive = [], []

    def product(*tensors):
        alive.append(sum(reference() is not None for reference in made_before))
        result = torch.mm(*tensors)
        made_before.append(weakref.ref(result))
        return result

    monkeypatch.setitem(extern_node.DIRECT_CALLS, torch.ops.aten.mm.default, product)
    (result,) = PlanRunner(program(captured, plan, [])[0])((x, w))
    torch.testing.assert_close(result, function(x, w))
    assert alive == [0, 1, 1]


def test_a_large_output_is_made_before_the_first_step_that_uses_it():
    def function(x, w):
        return -(x.exp() @ w)

    x, w = torch.randn(64, 64), torch.randn(64, 64)
    captured = capture(make_fx(function)(x, w))
    square = ((64, 64), (64, 1))
    product = ExternCall(
        1, "aten.mm.default", (view("tmp0", *square), view("in1", *square)),
        (view("ext0", *square),), is_contraction=True,
    )  # fmt: skip
    plan = Plan(
        "cpu:test",
        (),
        (
            buffer("in0", BufferKind.INPUT, 4096, position=0),
            buffer("in1", BufferKind.INPUT, 4096, position=1),
            buffer("tmp0", BufferKind.TEMPORARY, 4096, offset_bytes=as_expr(0)),
            buffer("ext0", BufferKind.EXTERN, 4096),
            buffer("out0", BufferKind.OUTPUT, 4096, position=0),
        ),
        as_expr(4 * 4096),
        ("fused_exp", "fused_neg"),
        (Launch(0, ("in0", "tmp0")), product, Launch(1, ("ext0", "out0"))),
        (view("out0", *square),),
    )
    kernels = [pointwise("fused_exp", "exp", 4096), pointwise("fused_neg", "neg", 4096)]
    bound, _ = program(captured, plan, kernels)
    assert list(Layout(bound, {}, {}).late.values()) == [2]
    runner = PlanRunner(bound)
    kept = [runner((x, w))[0] for _ in range(3)]
    for result in kept:
        torch.testing.assert_close(result, function(x, w))
    assert len({result.data_ptr() for result in kept}) == 3


def test_a_backward_call_empties_its_arguments_and_drops_inputs_after_their_last_use(monkeypatch):
    def function(x, w):
        return (x @ w) @ w

    captured = capture(make_fx(function)(torch.randn(64, 64), torch.randn(64, 64)))
    views = {n: view(n, (64, 64), (64, 1)) for n in ("in0", "in1", "ext0", "ext1")}
    steps = tuple(
        ExternCall(n, "aten.mm.default", (views[read], views["in1"]), (views[made],), True)
        for n, read, made in ((0, "in0", "ext0"), (1, "ext0", "ext1"))
    )
    inputs = [buffer(f"in{n}", BufferKind.INPUT, 4096, position=n) for n in range(2)]
    products = [buffer(f"ext{n}", BufferKind.EXTERN, 4096) for n in range(2)]
    plan = Plan("cpu:test", (), (*inputs, *products), as_expr(0), (), steps, (views["ext1"],))
    args = [torch.randn(64, 64), torch.randn(64, 64)]
    expected = function(*args)
    saved = weakref.ref(args[0])
    alive = []

    def product(*tensors):
        alive.append(saved() is not None)
        return torch.mm(*tensors)

    monkeypatch.setitem(extern_node.DIRECT_CALLS, torch.ops.aten.mm.default, product)
    runner = PlanRunner(program(captured, plan, [])[0], drops_arguments=True)
    (result,) = runner(args)
    torch.testing.assert_close(result, expected)
    assert (args, alive) == ([], [True, False])


def test_a_backward_call_drops_views_of_inputs_and_keeps_arguments_that_it_returns(monkeypatch):
    def function(x, w):
        return x.t() @ w, w

    captured = capture(make_fx(function)(torch.randn(64, 64), torch.randn(64, 64)))
    inputs = [buffer(f"in{n}", BufferKind.INPUT, 4096, position=n) for n in range(2)]
    products = [buffer(f"ext{n}", BufferKind.EXTERN, 4096) for n in range(2)]
    whole = {n: view(n, (64, 64), (64, 1)) for n in ("in1", "ext0", "ext1")}
    transposed = view("in0", (64, 64), (1, 64))
    steps = tuple(
        ExternCall(1, "aten.mm.default", (read, whole["in1"]), (whole[made],), True)
        for read, made in ((transposed, "ext0"), (whole["ext0"], "ext1"))
    )
    plan = Plan("cpu:test", (), (*inputs, *products), as_expr(0), (), steps, (whole["ext1"],))
    x, w = torch.randn(64, 64), torch.randn(64, 64)
    expected = x.t() @ w @ w
    args = [x, w]
    del x
    views: list[weakref.ref] = []
    alive = []

    def product(*tensors):
        views.append(weakref.ref(tensors[0]))
        alive.append(views[0]() is not None)
        return torch.mm(*tensors)

    monkeypatch.setitem(extern_node.DIRECT_CALLS, torch.ops.aten.mm.default, product)
    runner = PlanRunner(program(captured, plan, [])[0], drops_arguments=True)
    result, returned = runner(args)
    torch.testing.assert_close(result, expected)
    assert returned is w
    assert alive == [True, False]
    assert args[0] is None


def chain_with_a_temporary(is_apart: bool) -> tuple[Callable, CapturedGraph, Plan, list[Kernel]]:
    """exp in a kernel, then two products; all results have 1 MiB."""

    def function(x, w):
        return (x.exp() @ w) @ w

    captured = capture(make_fx(function)(torch.zeros(512, 512), torch.zeros(512, 512)))
    size = 512 * 512
    whole = {n: view(n, (512, 512), (512, 1)) for n in ("in1", "tmp0", "ext0", "ext1")}
    buffers = (
        *(buffer(f"in{n}", BufferKind.INPUT, size, position=n) for n in range(2)),
        buffer("tmp0", BufferKind.TEMPORARY, size, offset_bytes=as_expr(0), is_apart=is_apart),
        *(buffer(f"ext{n}", BufferKind.EXTERN, size) for n in range(2)),
    )
    steps = (
        Launch(0, ("in0", "tmp0")),
        *(
            ExternCall(n, "aten.mm.default", (whole[read], whole["in1"]), (whole[made],), True)
            for n, read, made in ((1, "tmp0", "ext0"), (2, "ext0", "ext1"))
        ),
    )
    arena_bytes = as_expr(4 * size)
    plan = Plan("cpu:test", (), buffers, arena_bytes, ("fused_exp",), steps, (whole["ext1"],))
    return function, captured, plan, [pointwise("fused_exp", "exp", size)]


@pytest.mark.parametrize("is_apart", [False, True])
def test_a_temporary_that_is_apart_has_memory_from_its_first_to_its_last_use(is_apart):
    function, captured, plan, kernels = chain_with_a_temporary(is_apart)
    runner = PlanRunner(program(captured, plan, kernels)[0])
    x, w = torch.randn(512, 512), torch.randn(512, 512) / 16
    torch.testing.assert_close(runner((x, w))[0], function(x, w), rtol=1e-4, atol=1e-4)
    arena.release()
    peak = peak_of(lambda: runner((x, w)))
    assert (peak >> 20) == (2 if is_apart else 3)


def test_a_result_in_a_temporary_that_is_apart_is_not_overwritten_by_the_next_call():
    _, captured, plan, kernels = chain_with_a_temporary(is_apart=True)
    plan = dataclasses.replace(plan, outputs=(view("tmp0", (512, 512), (512, 1)),))
    runner = PlanRunner(program(captured, plan, kernels)[0])
    x, w = torch.randn(512, 512), torch.zeros(512, 512)
    first = runner((x, w))[0]
    runner((x + 1, w))
    torch.testing.assert_close(first, x.exp())


def test_the_c_library_is_asked_to_keep_the_memory_of_large_calls():
    keep_freed_memory.cache_clear()
    _, _, captured, plan, kernels = exp_mm_neg()
    PlanRunner(program(captured, plan, kernels)[0])
    assert keep_freed_memory.cache_info().currsize == 0
    _, captured, plan, kernels = chain_with_a_temporary(is_apart=True)  # 3 MiB beside the arena
    PlanRunner(program(captured, plan, kernels)[0])
    assert keep_freed_memory.cache_info().currsize == 1


def test_results_are_not_overwritten_by_the_next_call():
    function, (x, w), captured, plan, kernels = exp_mm_neg()
    # The program gives the temporary and the extern result away as well.
    outputs = (*plan.outputs, view("tmp0", (4, 3), (3, 1)), view("ext0", (5, 4), (1, 5)))
    graph = captured.graph
    graph = dataclasses.replace(
        graph, outputs=graph.outputs * 3, output_types=(graph.output_types[0], None, None)
    )
    handed_out = tuple(ModuleOutput(number) for number in range(3))
    captured = dataclasses.replace(captured, graph=graph, module_outputs=handed_out)
    runner = PlanRunner(program(captured, dataclasses.replace(plan, outputs=outputs), kernels)[0])
    first = runner((x, w))
    runner((x + 1, w))
    for result, expected in zip(first, (function(x, w), x.exp(), (x.exp() @ w).t()), strict=True):
        torch.testing.assert_close(result, expected)


def test_a_prepared_call_gives_the_same_and_holds_no_memory(monkeypatch):
    function, (x, w), captured, plan, kernels = exp_mm_neg()
    # The product is stored in the arena: the step that does so and its state refer to each other.
    stored = buffer("ext0", BufferKind.TEMPORARY, 20, offset_bytes=as_expr(128))
    buffers = tuple(stored if b.name == "ext0" else b for b in plan.buffers)
    plan = dataclasses.replace(plan, buffers=buffers, arena_bytes=as_expr(256))
    seen = []

    def product(a, b):
        seen.append(weakref.ref(a.untyped_storage()))  # the arena, of which `a` is a part
        made = torch.mm(a, b)
        seen.append(weakref.ref(made))
        return made

    monkeypatch.setitem(extern_node.DIRECT_CALLS, torch.ops.aten.mm.default, product)
    call = PlanRunner(program(captured, plan, kernels)[0]).prepare((x, w))
    gc.disable()
    try:
        for _ in range(3):
            torch.testing.assert_close(call([x, w])[0], function(x, w))
        assert len(seen) == 6 and all(reference() is None for reference in seen)
    finally:
        gc.enable()


def test_temporaries_share_one_block_between_calls():
    _, args, captured, plan, kernels = exp_mm_neg()
    arena.release()
    runner = PlanRunner(program(captured, plan, kernels)[0])
    runner(args)
    position = (torch.device("cpu"), 0)
    blocks = arena.blocks_of(position)
    (block,) = blocks
    runner(args)
    assert arena.take(blocks, position[0], 128) is block


def test_an_extern_result_that_aliases_its_argument_is_copied():
    def function(x):
        return torch.ops.aten.unfold.default(x.exp(), 0, 2, 1)

    x = torch.randn(4)
    captured = capture(make_fx(function)(x))
    plan = Plan(
        "cpu:test",
        (),
        (
            buffer("in0", BufferKind.INPUT, 4, position=0),
            buffer("tmp0", BufferKind.TEMPORARY, 4, offset_bytes=as_expr(0)),
            buffer("ext0", BufferKind.EXTERN, 4),
        ),
        as_expr(64),
        ("fused_exp",),
        (
            Launch(0, ("in0", "tmp0")),
            ExternCall(
                1,
                "aten.unfold.default",
                (view("tmp0", (4,), (1,)),),
                (view("ext0", (3, 2), (1, 1)),),
                is_contraction=False,
            ),
        ),
        (view("ext0", (3, 2), (1, 1)),),
    )
    runner = PlanRunner(program(captured, plan, [pointwise("fused_exp", "exp", 4)])[0])
    (first,) = runner((x,))
    runner((x + 1,))
    torch.testing.assert_close(first, function(x))


def test_constants_are_handed_to_kernels_and_copied_when_returned():
    table = torch.tensor([1.0, 2.0, 3.0])
    captured = capture(make_fx(lambda x: (x * 1, table.exp()))(torch.randn(3)))
    graph = captured.graph
    number = len(graph.inputs) - 1
    plan = Plan(
        "cpu:test",
        (),
        (
            buffer("in0", BufferKind.INPUT, 3, position=0),
            buffer("const0", BufferKind.CONSTANT, 3, position=0),
            buffer("out0", BufferKind.OUTPUT, 3, position=0),
        ),
        as_expr(0),
        ("fused_exp",),
        (Launch(0, ("const0", "out0")),),
        (view("const0", (3,), (1,)), view("out0", (3,), (1,))),
    )
    assert number == 1
    runner = PlanRunner(program(captured, plan, [pointwise("fused_exp", "exp", 3)])[0])
    copy, result = runner((torch.randn(3),))
    torch.testing.assert_close(result, table.exp())
    assert torch.equal(copy, table) and copy.data_ptr() != table.data_ptr()

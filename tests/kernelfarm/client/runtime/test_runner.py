"""Plans written by hand, run on real memory; kernels are interpreted."""

from __future__ import annotations

import dataclasses
import gc
import threading
import weakref
from collections.abc import Callable

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from kernelfarm.client.capture.captured import CapturedGraph, ModuleOutput
from kernelfarm.client.capture.graph import capture
from kernelfarm.client.loaders.variants import LoadedVariant
from kernelfarm.client.pytorch.kept_memory import keep_freed_memory
from kernelfarm.client.runtime import arena, extern_node
from kernelfarm.client.runtime.layout import Layout
from kernelfarm.client.runtime.program import BoundProgram
from kernelfarm.client.runtime.runner import PlanRunner
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import Expr, as_expr, symbol
from kernelfarm.ir.artifact import GuardAtom, GuardOp, GuardSubject, LaunchFacts
from kernelfarm.ir.graph_ir import SizeSymbol
from kernelfarm.ir.loop_ir import Access, Axis, Compute, Kernel, Load, Param, Store
from kernelfarm.ir.program_ir import (
    Buffer,
    BufferKind,
    ExternCall,
    Launch,
    Plan,
    SymbolSource,
    TensorView,
)
from tests.kernelfarm.client.runtime.interpreted_loader import InterpretedLoader
from tests.support.allocations import peak_of
from tests.support.traced_graphs import traced_one

F32 = DType.F32


def exprs(*values: int | Expr) -> tuple[Expr, ...]:
    return tuple(as_expr(value) for value in values)


def pointwise(name: str, op: str, size: int | Expr) -> Kernel:
    """out0[i] = op(in0[i])"""
    elems, index = as_expr(size), symbol("d0")
    return Kernel(
        name,
        (Param("in0", F32, elems, Access.READ), Param("out0", F32, elems, Access.WRITE)),
        tuple(SizeSymbol(s, 0, None) for s in sorted(elems.symbols)),
        (Axis("d0", elems),),
        (),
        (Load("in0", index), Compute(op, (0,), F32), Store("out0", index, 1)),
    )


def buffer(name: str, kind: BufferKind, size: int | Expr, **more) -> Buffer:
    return Buffer(name, kind, F32, as_expr(size), **more)


def view(name: str, sizes: tuple, strides: tuple, offset: int = 0) -> TensorView:
    return TensorView(name, F32, exprs(*sizes), exprs(*strides), as_expr(offset))


def program(
    captured: CapturedGraph, plan: Plan, kernels: list[Kernel]
) -> tuple[BoundProgram, InterpretedLoader]:
    loader = InterpretedLoader({kernel.name: kernel for kernel in kernels})
    loaded = tuple(
        (LoadedVariant((), loader.load(name.encode(), LaunchFacts(name))),)
        for name in plan.kernel_names
    )
    return BoundProgram(plan, loaded, captured, loader), loader


def exp_mm_neg():
    """exp in a kernel, mm by torch, neg in a kernel; the product is transposed on its way."""

    def function(x, w):
        return -(x.exp() @ w)

    x, w = torch.randn(4, 3), torch.randn(3, 5)
    captured = capture(make_fx(function)(x, w))
    plan = Plan(
        "cpu:test",
        (),
        (
            buffer("in0", BufferKind.INPUT, 12, position=0),
            buffer("in1", BufferKind.INPUT, 15, position=1),
            buffer("tmp0", BufferKind.TEMPORARY, 12, offset_bytes=as_expr(64)),
            buffer("ext0", BufferKind.EXTERN, 20),
            buffer("out0", BufferKind.OUTPUT, 20, position=0),
        ),
        as_expr(128),
        ("fused_exp", "fused_neg"),
        (
            Launch(0, ("in0", "tmp0")),
            ExternCall(
                1,
                "aten.mm.default",
                (view("tmp0", (4, 3), (3, 1)), view("in1", (3, 5), (5, 1))),
                (view("ext0", (4, 5), (5, 1)),),
                is_contraction=True,
            ),
            Launch(1, ("ext0", "out0")),
        ),
        (view("out0", (4, 5), (5, 1)),),
    )
    kernels = [pointwise("fused_exp", "exp", 12), pointwise("fused_neg", "neg", 20)]
    return function, (x, w), captured, plan, kernels


def test_kernels_and_extern_steps_give_what_eager_gives():
    function, args, captured, plan, kernels = exp_mm_neg()
    runner = PlanRunner(program(captured, plan, kernels)[0])
    for _ in range(3):
        (result,) = runner(args)
        torch.testing.assert_close(result, function(*args))
        assert result.stride() == (5, 1)


def test_an_extern_step_of_another_operator_is_refused():
    _, _, captured, plan, kernels = exp_mm_neg()
    step = dataclasses.replace(plan.steps[1], op="aten.bmm.default")
    forged = dataclasses.replace(plan, steps=(plan.steps[0], step, plan.steps[2]))
    with pytest.raises(InvalidGraphError, match=r"aten.bmm.default for node 1, which is aten.mm"):
        PlanRunner(program(captured, forged, kernels)[0])


def test_an_extern_step_with_a_missing_tensor_is_refused():
    _, _, captured, plan, kernels = exp_mm_neg()
    step = dataclasses.replace(plan.steps[1], args=plan.steps[1].args[:1])
    forged = dataclasses.replace(plan, steps=(plan.steps[0], step, plan.steps[2]))
    with pytest.raises(InvalidGraphError, match=r"1 tensors for aten.mm.default, which takes 2"):
        PlanRunner(program(captured, forged, kernels)[0])


def _temporary(**changes: int) -> Callable[[Plan], tuple[Buffer, ...]]:
    exprs = {name: as_expr(value) for name, value in changes.items()}

    def buffers(plan: Plan) -> tuple[Buffer, ...]:
        changed = dataclasses.replace(plan.buffers[2], **exprs)
        return (*plan.buffers[:2], changed, *plan.buffers[3:])

    return buffers


def _larger_input(plan: Plan) -> tuple[Buffer, ...]:
    return (dataclasses.replace(plan.buffers[0], size_elems=as_expr(13)), *plan.buffers[1:])


def _two_temporaries(plan: Plan) -> tuple[Buffer, ...]:
    """One that is apart lies before the other, whose bytes the arena of the client lacks."""
    apart = buffer("tmp1", BufferKind.TEMPORARY, 4, offset_bytes=as_expr(0), is_apart=True)
    return (*plan.buffers, apart)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"outputs": ()}, "0 outputs; the captured graph has 1"),
        ({"arena_bytes": as_expr(64)}, "expected it inside"),
        ({"arena_bytes": as_expr(-64)}, "expected it inside"),
        ({"buffers": _temporary(offset_bytes=-64)}, "at bytes -64 to -16 of an arena of 128"),
        ({"buffers": _temporary(offset_bytes=65)}, "aligned to 64"),
        ({"buffers": _temporary(size_elems=17)}, "at bytes 64 to 132"),
        ({"buffers": _temporary(size_elems=-1)}, "expected it inside"),
        ({"buffers": _two_temporaries}, "expected it inside"),
        ({"steps": (Launch(0, ("in0", "nowhere")),)}, "nowhere"),
        ({"steps": (Launch(7, ("in0", "tmp0")),)}, "kernel 7 of 2"),
        ({"outputs": (view("out0", (4, 5), (6, 1)),)}, "ends at element 23"),
        ({"buffers": _larger_input}, "the input spans 12"),
        ({"outputs": (view("out0", (4, 5), (5, 1), 1),)}, "ends at element 21"),
        ({"outputs": (view("in0", (4, 3), (3, 1)),)}, "which it does not update"),
    ],
)
def test_a_plan_that_points_beyond_what_exists_is_refused(change, message):
    _, _, captured, plan, kernels = exp_mm_neg()
    made = {key: value(plan) if callable(value) else value for key, value in change.items()}
    forged = dataclasses.replace(plan, **made)
    with pytest.raises(InvalidGraphError, match=message):
        PlanRunner(program(captured, forged, kernels)[0])


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


def dynamic_exp():
    x = torch.randn(7, 3)
    torch._dynamo.mark_dynamic(x, 0)
    captured = traced_one(lambda x: (x.exp(), x.shape[0] * 2), x)
    # The plan's names are its own: it may stem from another client's graph.
    rows = symbol("s0")
    position = next(n for n, s in enumerate(captured.graph.inputs) if not isinstance(s.kind, str))
    plan = Plan(
        "cpu:test",
        (SymbolSource("s0", position, 0),),
        (
            buffer("in0", BufferKind.INPUT, rows * 3, position=position),
            buffer("out0", BufferKind.OUTPUT, rows * 3, position=0),
        ),
        as_expr(0),
        ("fused_exp",),
        (Launch(0, ("in0", "out0"), (rows,)),),
        (view("out0", (rows, 3), (3, 1)), rows * 2),
    )
    return captured, plan, [pointwise("fused_exp", "exp", rows * 3)]


def test_a_dynamic_plan_serves_many_sizes():
    captured, plan, kernels = dynamic_exp()
    runner = PlanRunner(program(captured, plan, kernels)[0])
    for rows in (2, 7, 7, 19, *range(20, 100)):
        x = torch.randn(rows, 3)
        result, twice = runner(_args(captured, x))
        torch.testing.assert_close(result, x.exp())
        assert twice == 2 * rows


def _args(captured: CapturedGraph, x: torch.Tensor) -> list:
    return [x.shape[0] if isinstance(s.kind, str) else x for s in captured.graph.inputs]


def test_the_first_variant_whose_guard_holds_is_launched():
    captured, plan, _ = dynamic_exp()
    rows = symbol("s0")
    loader = InterpretedLoader(
        {name: pointwise(name, "exp", rows * 3) for name in ("even", "aligned", "general")}
    )

    def load(name):
        return loader.load(name.encode(), LaunchFacts(name))

    even = GuardAtom(GuardSubject.SYMBOL, "s0", GuardOp.DIVISIBLE, 2)
    small = GuardAtom(GuardSubject.PARAM_EXTENT, 1, GuardOp.LT, 1000)
    aligned = GuardAtom(GuardSubject.PARAM_ADDRESS, 0, GuardOp.DIVISIBLE, 64)
    variants = (
        LoadedVariant((even, small), load("even")),
        LoadedVariant((aligned,), load("aligned")),
        LoadedVariant((), load("general")),
    )
    runner = PlanRunner(BoundProgram(plan, (variants,), captured, loader))
    memory = torch.randn(10_000)
    for rows_here, offset in ((4, 0), (5, 0), (5, 1), (400, 0)):
        x = memory[offset : offset + rows_here * 3].view(rows_here, 3)
        torch.testing.assert_close(runner(_args(captured, x))[0], x.exp())
    assert loader.launches == ["even", "aligned", "general", "aligned"]


@pytest.mark.parametrize("align", [(GuardOp.DIVISIBLE, 16), (GuardOp.DIVISIBLE, 12)])
def test_the_result_of_an_extern_step_is_checked_at_each_launch(align, monkeypatch):
    """A multiple of 12 is no alignment, so that each address is looked at."""
    function, (x, w), captured, plan, kernels = exp_mm_neg()
    loaded, loader = program(captured, plan, kernels)
    loader.kernels = {**loader.kernels, "special": kernels[1]}
    guard = tuple(GuardAtom(GuardSubject.PARAM_ADDRESS, at, *align) for at in (0, 1))
    special = LoadedVariant(guard, loader.load(b"special", LaunchFacts("special")))
    kernels_of = (loaded.kernels[0], (special, *loaded.kernels[1]))
    memory, addresses = torch.empty(20 + 48), []

    def product(a, b):
        offset = 4 * len(addresses) // 3
        made = memory[offset : offset + 20].view(4, 5).copy_(a @ b)
        addresses.append(made.data_ptr())
        return made

    monkeypatch.setitem(extern_node.DIRECT_CALLS, torch.ops.aten.mm.default, product)
    runner = PlanRunner(dataclasses.replace(loaded, kernels=kernels_of))
    expected = []
    for _ in range(24):
        (result,) = runner((x, w))
        torch.testing.assert_close(result, function(x, w))
        holds = all(at % align[1] == 0 for at in (addresses[-1], result.data_ptr()))
        expected.append("special" if holds else "fused_neg")
    assert loader.launches[1::2] == expected
    assert "fused_neg" in expected


def test_variants_follow_arguments_whose_alignment_changes():
    captured, plan, kernels = dynamic_exp()
    loaded, loader = program(captured, plan, kernels)
    loader.kernels = {**loader.kernels, "aligned": kernels[0]}
    guard = (GuardAtom(GuardSubject.PARAM_ADDRESS, 0, GuardOp.DIVISIBLE, 16),)
    aligned = LoadedVariant(guard, loader.load(b"aligned", LaunchFacts("aligned")))
    runner = PlanRunner(dataclasses.replace(loaded, kernels=((aligned, *loaded.kernels[0]),)))
    memory, offsets = torch.randn(64), (0, 0, 1, 2, 2, 4, 3, 0, 8, 1)
    for offset in offsets:
        x = memory[offset : offset + 15].view(5, 3)
        torch.testing.assert_close(runner(_args(captured, x))[0], x.exp())
    assert loader.launches == ["fused_exp" if offset % 4 else "aligned" for offset in offsets]


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


def test_prepared_calls_serve_one_size_each():
    captured, plan, kernels = dynamic_exp()
    runner = PlanRunner(program(captured, plan, kernels)[0])
    few, many = (_args(captured, torch.randn(rows, 3)) for rows in (2, 9))
    calls = [runner.prepare(args) for args in (few, many)]
    assert runner.sizes(few) != runner.sizes(many)
    for call, args in zip(calls, (few, many), strict=True):
        x = next(arg for arg in args if isinstance(arg, torch.Tensor))
        torch.testing.assert_close(call(args)[0], x.exp())


def test_a_kernel_without_a_general_variant_is_refused():
    captured, plan, kernels = dynamic_exp()
    loaded, _ = program(captured, plan, kernels)
    guard = (GuardAtom(GuardSubject.SYMBOL, "s0", GuardOp.LT, 5),)
    guarded = dataclasses.replace(
        loaded, kernels=((LoadedVariant(guard, loaded.kernels[0][0].kernel),),)
    )
    runner = PlanRunner(guarded)
    x = torch.randn(9, 3)
    with pytest.raises(InvalidGraphError, match="general variant"):
        runner(_args(captured, x))


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

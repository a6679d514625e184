"""Which variant of a kernel is launched: the first one whose guard holds."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from kernelfarm.client.loaders.variants import LoadedVariant, bind_variants
from kernelfarm.client.runtime import extern_node
from kernelfarm.client.runtime.program import BoundProgram
from kernelfarm.client.runtime.runner import PlanRunner
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import symbol
from kernelfarm.ir.artifact import GuardAtom, GuardOp, GuardSubject, LaunchFacts
from tests.kernelfarm.client.runtime.handmade_plans import (
    args_of,
    dynamic_exp,
    exp_mm_neg,
    pointwise,
    program,
)
from tests.kernelfarm.client.runtime.interpreted_loader import InterpretedLoader


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
        torch.testing.assert_close(runner(args_of(captured, x))[0], x.exp())
    assert loader.launches == ["even", "aligned", "general", "aligned"]


def test_the_length_of_a_buffer_may_have_to_be_a_multiple():
    captured, plan, _ = dynamic_exp()
    loader = InterpretedLoader(
        {name: pointwise(name, "exp", symbol("s0") * 3) for name in ("even", "general")}
    )
    even = GuardAtom(GuardSubject.PARAM_EXTENT, 1, GuardOp.DIVISIBLE, 16)
    variants = (
        LoadedVariant((even,), loader.load(b"even", LaunchFacts("even"))),
        LoadedVariant((), loader.load(b"general", LaunchFacts("general"))),
    )
    runner = PlanRunner(BoundProgram(plan, (variants,), captured, loader))
    for rows in (16, 8, 32, 17):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(runner(args_of(captured, x))[0], x.exp())
    assert loader.launches == ["even", "general", "even", "general"]


def test_variants_that_would_never_be_launched_are_not_bound():
    _, _, kernels = dynamic_exp()
    loader = InterpretedLoader({name: kernels[0] for name in ("even", "aligned", "general")})
    size = GuardAtom(GuardSubject.SYMBOL, "s0", GuardOp.DIVISIBLE, 2)
    address = GuardAtom(GuardSubject.PARAM_ADDRESS, 0, GuardOp.DIVISIBLE, 16)
    variants = tuple(
        LoadedVariant(guard, loader.load(name.encode(), LaunchFacts(name)))
        for name, guard in (("even", (address, size)), ("aligned", (address,)), ("general", ()))
    )
    for rows in (4, 5):
        bound = bind_variants(variants, (3 * rows, 3 * rows), (rows,))
        assert [choice.guard for choice in bound] == [(address,), ()]


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
        torch.testing.assert_close(runner(args_of(captured, x))[0], x.exp())
    assert loader.launches == ["fused_exp" if offset % 4 else "aligned" for offset in offsets]


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
        runner(args_of(captured, x))

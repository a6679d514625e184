"""Kernels get the hints of the operations that they compute; the report says what became of each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.hints import KernelHint, NodeHint, read_hints
from kernelfarm.ir.interpret import run_program
from kernelfarm.ir.product_choice import ProductChoice
from kernelfarm.ir.text import parse_graph
from kernelfarm.targets import target_facts
from optimizer_svc.pipeline import OptimizeResult, optimize
from tests.support.goldens import assert_golden
from tests.support.optimizer_passes import before_and_after

_TEXT = """graph prims 1
%0: f32[4096, 512] = input "x"
%1: f32[4096] = sum(%0; dims=[1]) from [0]
%2: f32[4096] = neg(%1) from [1]
%3: f32[4096] = exp(%2) from [2]
return %3: f32[4096]@[1]
"""


def _graph(**hints: str) -> Graph:
    """A sum and what follows; `hints` are for `sum`, `neg`, `exp` and a removed operation."""
    nodes = {"sum": 0, "neg": 1, "exp": 2, "removed": 3}
    found = [
        NodeHint(nodes[name], hint) for name, text in hints.items() for hint in read_hints(text)
    ]
    found.sort(key=lambda hint: (hint.node, hint.hint.name))
    ops = ("aten.sum.dim_IntList", "aten.neg.default", "aten.exp.default", "aten.alias.default")
    return replace(parse_graph(_TEXT), kernel_hints=tuple(found), origin_ops=ops)


def _optimized(target: str, **hints: str) -> OptimizeResult:
    return optimize(_graph(**hints), target_facts(target))


def _report(made: OptimizeResult) -> list[str]:
    lines = dict(made.stages)["report"].splitlines()
    return [line for line in lines if line.startswith("hint ")]


@pytest.mark.golden
def test_a_kernel_of_several_operations_has_the_hints_that_fit() -> None:
    text = _TEXT.replace(
        "return", "hint 0 async=3\nhint 1 num_warps=2\nhint 2 waves_per_eu\nreturn"
    )
    assert_golden(
        before_and_after("apply-hints", text, "cuda:sm_90a"),
        """\
-- before apply-hints: built
kernel fused_sum_neg_exp_NAME
# captured node 0: sum
# captured node 1: neg
# captured node 2: exp
param in in0: f32[2097152]
param out out0: f32[4096]
for d0 in 4096
reduce r0 in 512
  %0: f32 = load in0[512*d0 + r0]
  %1: f32 = sum %0
  %2: f32 = neg %1
  %3: f32 = exp %2
  store out0[d0] = %3
step: launch 0(%0, %3)
-- after: built
kernel fused_sum_neg_exp_NAME
# captured node 0: sum
# captured node 1: neg
# captured node 2: exp
param in in0: f32[2097152]
param out out0: f32[4096]
for d0 in 4096
reduce r0 in 512
hint async=3
hint num_warps=2
  %0: f32 = load in0[512*d0 + r0]
  %1: f32 = sum %0
  %2: f32 = neg %1
  %3: f32 = exp %2
  store out0[d0] = %3
step: launch 0(%0, %3)
note: hint waves_per_eu of operation (2) is ignored: cuda:sm_90a has no such hint; expected one of async, num_warps, passes, shared_memory
""",
    )


def test_the_report_says_of_each_hint_whether_a_kernel_has_it() -> None:
    made = _optimized(
        "cuda:sm_90a", sum="async=3", neg="num_warps=2", exp="num_warps=4", removed="num_warps=2"
    )

    (kernel,) = made.program.kernels
    assert kernel.hints == (KernelHint("async", 3), KernelHint("num_warps", 2))
    assert sorted(_report(made)) == [
        f"hint async=3 of aten.sum.dim_IntList (0): kernel {kernel.name} has it",
        "hint num_warps=2 of aten.alias (3) is ignored: no step computes it: it was removed, or"
        " equals another operation",
        f"hint num_warps=2 of aten.neg (1): kernel {kernel.name} has it",
        "hint num_warps=4 of aten.exp (2) is ignored: an earlier operation of the kernel states"
        " num_warps=2",
    ]


@pytest.mark.parametrize("hint", ["multibuffer", "multibuffer=1"])
def test_a_kernel_for_ascend_has_the_hint_of_its_buffers(hint: str) -> None:
    made = _optimized("ascend:910b", sum=hint)

    assert [str(found) for kernel in made.program.kernels for found in kernel.hints] == [hint]


@pytest.mark.parametrize(
    ("target", "hint", "problem"),
    [
        ("cuda:sm_90a", "waves_per_eu=2", "cuda:sm_90a has no such hint; expected one of async,"),
        ("cuda:sm_90a", "num_warps=3", "expected one of 1, 2, 4, 8, 16, 32"),
        ("cuda:sm_90a", "num_warps", "expected one of 1, 2, 4"),
        ("cuda:sm_90a", "num_warps=64", "expected one of 1, 2, 4"),
        ("cuda:sm_90a", "async=9", "expected 2 to 8 stages"),
        ("rocm:gfx942", "num_warps=32", "expected one of 1, 2, 4, 8, 16"),
        ("rocm:gfx942", "waves_per_eu=9", "expected one of 1, 2, 3, 4, 5, 6, 7, 8"),
        ("rocm:gfx942", "async=3", "rocm:gfx942 has no such hint"),
        ("rocm:gfx942", "kpack=2", "the kernel computes no product of matrices in tiles"),
        ("rocm:gfx950", "kpack=2", "Triton 3.9 sets 1 for this chip"),
        ("rocm:gfx942", "buffer_ops=2", "expected one of 0, 1"),
        ("rocm:gfx942", "flat_work_group_size=2000", "expected 64 to 1024"),
        ("rocm:gfx942", "schedule_hint", "Triton 3.9 reads it nowhere"),
        ("rocm:gfx942", "allow_flush_denorm", "it changes results"),
        ("cpu:x86-64-v3", "num_warps=2", "cpu:x86-64-v3 has no such hint; it has none"),
        ("ascend:910b", "num_warps=2", "ascend:910b has no such hint; expected one of dot_pad"),
        ("ascend:910b", "multibuffer=3", "expected one of 1, 2"),
        ("ascend:910b", "dot_pad_only_k", "the kernel computes no product of matrices in tiles"),
    ],
)
def test_a_hint_that_does_not_fit_is_ignored_and_the_kernel_is_the_same(
    target: str, hint: str, problem: str
) -> None:
    made, plain = _optimized(target, sum=hint), _optimized(target)

    assert made.program == plain.program
    (line,) = _report(made)
    assert line.startswith(f"hint {hint} of aten.sum.dim_IntList (0) is ignored: {problem}")


@pytest.mark.parametrize(
    ("hint", "outcome"),
    [
        ("dot_pad_only_k", "kernel fused_mul_sum_"),
        ("dot_pad_only_k=2", "expected no number"),
        ("multibuffer=1", "kernel fused_mul_sum_"),
    ],
)
def test_a_product_for_ascend_has_the_hints_of_its_operands(hint: str, outcome: str) -> None:
    graph = parse_graph(f"""graph prims 1
%0: f16[64, 128]@[128, 1] = input "x"
%1: f16[32, 128]@[128, 1] = input "w"
%2: f16[128, 32] = permute(%1; dims=[1, 0])
%3: f16[64, 32]@[32, 1] = extern(%0, %2; is_contraction=true, node=0, op="aten.mm.default") from [0]
hint 0 {hint}
return %3: f16[64, 32]@[32, 1]
""")
    ascend = target_facts("ascend:910b")
    (line,) = _report(optimize(graph, ascend, ProductChoice.OWN))
    assert outcome in line
    (line,) = _report(optimize(graph, ascend))
    assert line.endswith("is ignored: the framework computes it")


def test_a_pipeline_needs_a_reduction() -> None:
    graph = replace(
        parse_graph(
            'graph prims 1\n%0: f32[8] = input "x"\n%1: f32[8] = exp(%0) from [0]\n'
            "return %1: f32[8]@[1]\n"
        ),
        kernel_hints=(NodeHint(0, KernelHint("async")),),
    )

    (line,) = _report(optimize(graph, target_facts("cuda:sm_90a")))
    assert line.endswith("ignored: the kernel reduces nothing, so it has no loop over loads")


def test_the_framework_follows_no_hints() -> None:
    text = (
        'graph prims 1\n%0: f32[8] = input "x"\n%1: f32[8]@[1] = extern(%0; is_contraction=false,'
        ' node=0, op="aten.special.default") from [0]\nreturn %1: f32[8]@[1]\n'
    )
    graph = replace(parse_graph(text), kernel_hints=(NodeHint(0, KernelHint("num_warps", 2)),))

    (line,) = _report(optimize(graph, target_facts("cuda:sm_90a")))
    assert line == "hint num_warps=2 of operation (0) is ignored: the framework computes it"


def test_equal_kernels_with_other_hints_are_other_kernels_of_the_same_meaning() -> None:
    text = """graph prims 1
%0: f32[64, 64] = input "x"
%1: f32[64] = sum(%0; dims=[1]) from [0]
%2: f32[64] = sum(%0; dims=[0]) from [1]
%3: f32[1, 64] = reshape(%2; shape=[1, 64]) from [1]
%4: f32[64, 64] = broadcast_in_dim(%3; dims=[0, 1], shape=[64, 64]) from [2]
%5: f32[64] = sum(%4; dims=[1]) from [2]
return %1: f32[64]@[1], %5: f32[64]@[1]
"""
    plain = parse_graph(text)
    hinted = replace(plain, kernel_hints=(NodeHint(0, KernelHint("num_warps", 2)),))
    made = [optimize(graph, target_facts("cuda:sm_90a")).program for graph in (plain, hinted)]

    assert [sum(bool(kernel.hints) for kernel in program.kernels) for program in made] == [0, 1]
    x = np.arange(64 * 64, dtype=np.float32).reshape(64, 64) % 7
    results = [run_program(program, [x]) for program in made]
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)

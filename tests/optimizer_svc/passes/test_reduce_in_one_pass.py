"""One pass over a row or two: which kernels qualify, their meaning, and the target's choice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.interpret import run_graph, run_kernel, run_program
from kernelfarm.ir.loop_ir import GUIDES, Kernel, Reduce
from kernelfarm.ir.text import parse_kernel
from kernelfarm.ir.verify import verify_kernel, verify_program
from kernelfarm.targets import TargetFacts, TwoPassLimits, all_targets, target_facts
from optimizer_svc.kernels.guided_sums import find_guided_sums, in_one_pass
from optimizer_svc.pipeline import OptimizeResult, optimize
from tests.support.examples import examples
from tests.support.goldens import assert_golden
from tests.support.loop_kernels.guided import LAYOUTS, statistic
from tests.support.optimizer_passes import SOFTMAX, before_and_after
from tests.support.single_operator import Call, lowered

LONG_ROWS = SOFTMAX.replace("8", "65536")


@pytest.mark.golden
def test_the_long_rows_of_a_softmax_are_read_once_on_a_gpu() -> None:
    assert_golden(
        before_and_after("reduce-in-one-pass", LONG_ROWS, "cuda:sm_90a"),
        """\
-- before reduce-in-one-pass: built
kernel fused_amax_sub_exp_sum_NAME
# captured node 0: amax, exp, sub, sum, div
size s0 from 2
param in in0: f32[65536*s0]
param out out0: f32[65536*s0]
for d0 in s0
reduce r0 in 65536
  %0: f32 = load in0[65536*d0 + r0]
  %1: f32 = amax %0
  %2: f32 = sub %0, %1
  %3: f32 = exp %2
  %4: f32 = sum %3
  %5: f32 = div %3, %4
  store out0[65536*d0 + r0] = %5
step: launch 0(%0, %7; s0)
-- after: built
kernel fused_amax_sub_exp_softmax_sum_NAME
# captured node 0: amax, exp, sub, sum, div
size s0 from 2
param in in0: f32[65536*s0]
param out out0: f32[65536*s0]
for d0 in s0
reduce r0 in 65536
  %0: f32 = load in0[65536*d0 + r0]
  %1: f32 = amax %0
  %2: f32 = sub %0, %1
  %3: f32 = exp %2
  %4: f32 = softmax_sum %0
  %5: f32 = div %3, %4
  store out0[65536*d0 + r0] = %5
step: launch 0(%0, %7; s0)
note: kernel fused_amax_sub_exp_softmax_sum_NAME: amax and softmax_sum in one pass: rows of 65536 elements, more than 8192
""",
    )


@pytest.mark.golden
def test_short_rows_are_read_twice_with_the_reason_in_a_note() -> None:
    assert_golden(
        before_and_after("reduce-in-one-pass", SOFTMAX, "cuda:sm_90a"),
        """\
-- before reduce-in-one-pass: built
kernel fused_amax_sub_exp_sum_NAME
# captured node 0: amax, exp, sub, sum, div
size s0 from 2
param in in0: f32[8*s0]
param out out0: f32[8*s0]
for d0 in s0
reduce r0 in 8
  %0: f32 = load in0[8*d0 + r0]
  %1: f32 = amax %0
  %2: f32 = sub %0, %1
  %3: f32 = exp %2
  %4: f32 = sum %3
  %5: f32 = div %3, %4
  store out0[8*d0 + r0] = %5
step: launch 0(%0, %7; s0)
-- after: built
the same, and
note: kernel fused_amax_sub_exp_sum_NAME: amax and softmax_sum in two passes: rows of 8 elements, at most 8192
""",
    )


ROW_SUMS = """\
graph prims 1
%0: f32[4, 65536]@[65536, 1] = input "x"
%1: f32[4] = sum(%0; dims=[1])
return %1: f32[4]@[1]
"""


@pytest.mark.golden
def test_a_sum_without_a_maximum_or_mean_stays() -> None:
    assert_golden(
        before_and_after("reduce-in-one-pass", ROW_SUMS, "cuda:sm_90a"),
        """\
-- before reduce-in-one-pass: built
kernel fused_sum_NAME
param in in0: f32[262144]
param out out0: f32[1024]
for d0 in 1024
reduce r0 in 256
  %0: f32 = load in0[256*d0 + r0]
  %1: f32 = sum %0
  store out0[d0] = %1
kernel fused_sum_NAME
param in in0: f32[1024]
param out out0: f32[4]
for d0 in 4
reduce r0 in 256
  %0: f32 = load in0[256*d0 + r0]
  %1: f32 = sum %0
  store out0[d0] = %1
step: launch 0(%0, %3)
step: launch 1(%3, %1)
-- after: built
the same
""",
    )


ROWS = 5
ALWAYS = TwoPassLimits(rows=0, columns=0, varying=True)


def in_one_pass_always(target: str = "cpu:x86-64-v3") -> TargetFacts:
    """A chip on which one pass is better for rows of any length."""
    return replace(target_facts(target), max_two_pass_elems=tuple((op, ALWAYS) for op in GUIDES))


def rewritten(kernel: Kernel) -> Kernel:
    made = in_one_pass(kernel, find_guided_sums(kernel))
    verify_kernel(made)
    return made


def reductions(kernel: Kernel) -> list[str]:
    return [s.op for s in kernel.body if isinstance(s, Reduce)]


CALLS = {
    "softmax": (Call("aten._softmax.default", (torch.empty(4, 300), 1, False)), "softmax_sum"),
    "half softmax": (
        Call("aten._softmax.default", (torch.empty(4, 300, dtype=torch.half), 1, False)),
        "softmax_sum",
    ),
    "log softmax": (
        Call("aten._log_softmax.default", (torch.empty(4, 300), 0, False)),
        "softmax_sum",
    ),
    "safe softmax": (Call("aten._safe_softmax.default", (torch.empty(4, 300), 1)), "softmax_sum"),
    "logsumexp": (Call("aten.logsumexp.default", (torch.empty(4, 300), (1,))), "softmax_sum"),
    "variance": (
        Call("aten.var.correction", (torch.empty(4, 300), (1,)), {"correction": 1}),
        "welford_m2",
    ),
    "layer norm of a power of two": (
        Call("aten.native_layer_norm.default", (torch.empty(4, 256), (256,), None, None, 1e-5)),
        "welford_m2",
    ),
    "group norm": (
        Call(
            "aten.native_group_norm.default",
            (torch.empty(2, 8, 5, 7), None, None, 2, 8, 35, 4, 1e-5),
        ),
        "welford_m2",
    ),
}
ODD = ("plain", "-inf", "inf", "nan")


def drawn(call: Call, kind: str) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    (tensor,) = call.tensors()
    x = (random.normal(size=tuple(tensor.shape)) * 2 + 3).astype(tensor.numpy().dtype)
    if kind == "-inf":
        x[0] = -np.inf
        x[..., ::3] = -np.inf
    elif kind != "plain":
        x.reshape(-1)[[3, 77]] = float(kind)
    return [x]


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("is_symbolic", [False, True], ids=["static", "symbolic"])
def test_operators_become_one_pass_and_keep_their_meaning(name: str, is_symbolic: bool) -> None:
    call, op = CALLS[name]
    graph = lowered(call, is_symbolic=is_symbolic).graph
    program = optimize(graph, in_one_pass_always()).program
    verify_program(program)
    found = [r for kernel in program.kernels for r in reductions(kernel)]
    assert op in found
    assert set(found) <= {op, "amax", "sum"} - ({"sum"} if op == "softmax_sum" else set())
    for kind in ODD:
        arrays = drawn(call, kind)
        with np.errstate(all="ignore"):
            got, reference = run_program(program, arrays), run_graph(graph, arrays)
        for ours, theirs in zip(map(np.asarray, got), map(np.asarray, reference), strict=True):
            # The sum rounds in f32 in another order. A result of f16 is rounded once more.
            rtol = 2e-3 if ours.dtype == np.float16 else 1e-5
            np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=1e-6, err_msg=kind)


@given(
    op=st.sampled_from(tuple(GUIDES)),
    layout=st.sampled_from(tuple(LAYOUTS)),
    width=st.integers(0, 40),
    odd=st.lists(st.sampled_from((np.nan, np.inf, -np.inf, 0.0, 3e38)), max_size=6),
    seed=st.integers(0, 2**32 - 1),
    center=st.sampled_from((0.0, 30.0, 1e4)),
)
@settings(max_examples=examples(100), deadline=None)
def test_a_rewritten_kernel_keeps_its_meaning_and_is_no_less_exact(
    op: str, layout: str, width: int, odd: list[float], seed: int, center: float
) -> None:
    before = statistic(op, "f32", layout, passes=2)
    after = rewritten(before)
    assert reductions(after) == [GUIDES[op], op]
    random = np.random.default_rng(seed)
    count = ROWS * width * (3 if layout == "split" else 1)
    x = (random.normal(size=count) + center).astype(np.float32)
    if count:
        x[random.integers(0, count, len(odd))] = np.array(odd, np.float32)
    results = {}
    for name, kernel in (("before", before), ("after", after)):
        outs = {position: np.full(ROWS, 7, np.float32) for position in ("out0", "out1")}
        with np.errstate(all="ignore"):
            run_kernel(kernel, {"in0": x, **outs}, {"rows": ROWS, "width": width})
        results[name] = outs
    exact = {position: np.zeros(ROWS) for position in ("out0", "out1")}
    with np.errstate(all="ignore"):
        wide = statistic(op, "f64", layout, passes=2)
        run_kernel(wide, {"in0": x.astype(float), **exact}, {"rows": ROWS, "width": width})
        np.testing.assert_array_equal(results["after"]["out0"], results["before"]["out0"])
        is_plain = np.isfinite(results["before"]["out1"])
        np.testing.assert_array_equal(np.isnan(results["after"]["out1"][is_plain]), False)
        errors = [
            np.abs(results[name]["out1"][is_plain].astype(float) - exact["out1"][is_plain])
            for name in ("after", "before")
        ]
        unit = np.spacing(np.abs(exact["out1"][is_plain]).astype(np.float32))
    assert (errors[0] <= errors[1] + unit).all()


def near(summed: str, count: str = "12.0") -> Kernel:
    """A sum (%9) beside maxima of in0 (%2) and in1 (%3) and the mean (%6) of in0 (%0)."""
    return parse_kernel(
        "kernel near\nparam in in0: f32[60]\nparam in in1: f32[60]\nparam out out0: f32[5]\n"
        "for d0 in 5\nreduce r0 in 12\n  %0: f32 = load in0[12*d0 + r0]\n"
        "  %1: f32 = load in1[12*d0 + r0]\n  %2: f32 = amax %0\n  %3: f32 = amax %1\n"
        f"  %4: f32 = sum %0\n  %5: f32 = {count}\n  %6: f32 = div %4, %5\n"
        f"{summed}  %9: f32 = sum %8\n  store out0[d0] = %9\n"
    )


LOOK_ALIKES = {
    "another's maximum": near("  %7: f32 = sub %0, %3\n  %8: f32 = exp %7\n"),
    "negated": near("  %7: f32 = sub %2, %0\n  %8: f32 = exp %7\n"),
    "powers of 2": near("  %7: f32 = sub %0, %2\n  %8: f32 = exp2 %7\n"),
    "another count": near("  %7: f32 = sub %0, %6\n  %8: f32 = mul %7, %7\n", "11.0"),
    "another's mean": near("  %7: f32 = sub %1, %6\n  %8: f32 = mul %7, %7\n"),
    "no square": near("  %7: f32 = sub %0, %6\n  %8: f32 = mul %7, %0\n"),
}


@pytest.mark.parametrize("kernel", LOOK_ALIKES.values(), ids=LOOK_ALIKES)
def test_sums_of_a_similar_form_stay(kernel: Kernel) -> None:
    verify_kernel(kernel)
    assert find_guided_sums(kernel) == ()


def softmax(width: int) -> Graph:
    return lowered(Call("aten._softmax.default", (torch.empty(4, width), 1, False))).graph


def notes(optimized: OptimizeResult) -> list[str]:
    report = dict(optimized.stages)["report"]
    return [
        line for line in report.splitlines() if " in one pass: " in line or "two passes" in line
    ]


@pytest.mark.parametrize("target", ["cuda:sm_90a", "rocm:gfx942", "ascend:910b"])
def test_rows_within_the_target_s_limit_keep_two_passes_and_longer_rows_do_not(target: str) -> None:
    facts = target_facts(target)
    held = facts.two_passes("softmax_sum").rows
    assert held is not None
    for width, words in ((held, "two passes"), (held + 1, "one pass")):
        optimized = optimize(softmax(width), facts)
        (note,) = notes(optimized)
        assert f"amax and softmax_sum in {words}: rows of {width} elements" in note
        (kernel,) = optimized.program.kernels
        assert ("softmax_sum" in reductions(kernel)) == (words == "one pass")
        assert note.startswith(f"kernel {kernel.name}: ")


@pytest.mark.parametrize("target", sorted(all_targets()))
def test_every_target_states_its_limits(target: str) -> None:
    facts = target_facts(target)
    assert [op for op, _ in facts.max_two_pass_elems] == sorted(GUIDES)


def test_rows_of_varying_length_are_one_pass_on_accelerators() -> None:
    call, _ = CALLS["softmax"]
    graph = lowered(call, is_symbolic=True).graph
    (note,) = notes(optimize(graph, target_facts("cuda:sm_90a")))
    assert "one pass: rows of varying length without a limit" in note
    (note,) = notes(optimize(graph, target_facts("cpu:x86-64-v3")))
    assert "two passes: on cpu:x86-64-v3 rows of any length" in note

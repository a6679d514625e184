"""Terms of sums that kernels skip: those of hidden scores, and those whose factor is 0."""

from __future__ import annotations

import numpy as np
import pytest

from codegen_svc.emitters.llvm.skipped_terms import needed_if
from codegen_svc.emitters.llvm.vector_sums import vector_sums
from kernelfarm.ir.loop_ir import Compute
from kernelfarm.ir.text import parse_kernel
from tests.support.compiled_kernels import built, run, run_targets, stage_text

ROWS, KEYS, WIDTH = 3, 21, 48
SCORES = f"""\
kernel scores
param in in0: f32[{ROWS * WIDTH}]
param in in1: f32[{ROWS * KEYS * WIDTH}]
param in in2: f32[{KEYS}]
param out out0: f32[{ROWS * KEYS}]
for d0 in {ROWS}
for d1 in {KEYS}
reduce r0 in {WIDTH}
  %0: f32 = load in0[{WIDTH}*d0 + r0]
  %1: f32 = load in1[{KEYS * WIDTH}*d0 + {WIDTH}*d1 + r0]
  %2: f32 = mul %0, %1
  %3: f32 = sum %2
  %4: f32 = load in2[d1]
  %5: f32 = -inf
  %6: bool = ne %4, %5
  %7: f32 = add %3, %4
  %8: f32 = where %6, %7, %5
  store out0[{KEYS}*d0 + d1] = %8
"""
VALUES = f"""\
kernel means
param in in0: f32[{ROWS * KEYS}]
param in in1: f32[{ROWS * KEYS * WIDTH}]
param out out0: f32[{ROWS * WIDTH}]
for d0 in {ROWS}
for d1 in {WIDTH}
reduce r0 in {KEYS}
  %0: f32 = load in0[{KEYS}*d0 + r0]
  %1: f32 = load in1[{KEYS * WIDTH}*d0 + {WIDTH}*r0 + d1]
  %2: f32 = mul %0, %1
  %3: f32 = 0.0
  %4: bool = ne %0, %3
  %5: f32 = where %4, %2, %3
  %6: f32 = sum %5
  store out0[{WIDTH}*d0 + d1] = %6
"""
SEEN = {
    "all": np.ones(KEYS, bool),
    "none": np.zeros(KEYS, bool),
    "first": np.arange(KEYS) < 10,
    "last": np.arange(KEYS) >= 10,
    "some": np.arange(KEYS) % 3 == 1,
}


def drawn(count: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(count).astype(np.float32)


@pytest.mark.parametrize("target", run_targets())
@pytest.mark.parametrize("name", SEEN)
def test_scores_of_hidden_keys_are_not_summed(name: str, target: str) -> None:
    kernel, seen = parse_kernel(SCORES), SEEN[name]
    query, keys = drawn(ROWS * WIDTH), drawn(ROWS * KEYS * WIDTH)
    keys.reshape(ROWS, KEYS, WIDTH)[:, ~seen] = np.nan
    mask = np.where(seen, np.float32(0.5), np.float32(-np.inf))
    out = np.zeros(ROWS * KEYS, np.float32)
    assert run(kernel, {"in0": query, "in1": keys, "in2": mask, "out0": out}, target=target) == 0
    wide = keys.reshape(ROWS, KEYS, WIDTH).astype(np.float64)
    exact = np.einsum("rw,rkw->rk", query.reshape(ROWS, WIDTH), wide) + 0.5
    expected = np.where(seen, exact, -np.inf)
    np.testing.assert_allclose(out.reshape(ROWS, KEYS), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", run_targets())
@pytest.mark.parametrize("name", SEEN)
def test_values_whose_factor_is_0_are_not_added(name: str, target: str) -> None:
    kernel, seen = parse_kernel(VALUES), SEEN[name]
    shares = np.where(seen, drawn(ROWS * KEYS).reshape(ROWS, KEYS), np.float32(0))
    values = drawn(ROWS * KEYS * WIDTH)
    values.reshape(ROWS, KEYS, WIDTH)[:, ~seen] = np.nan
    out = np.zeros(ROWS * WIDTH, np.float32)
    given = {"in0": shares.reshape(-1), "in1": values, "out0": out}
    assert run(kernel, given, target=target) == 0
    wide = np.nan_to_num(values.reshape(ROWS, KEYS, WIDTH).astype(np.float64))
    exact = np.einsum("rk,rkw->rw", shares, wide)
    np.testing.assert_allclose(out.reshape(ROWS, WIDTH), exact, rtol=1e-5, atol=1e-5)


def test_the_next_row_is_asked_for() -> None:
    """Each point that is needed asks for its lines of the next row."""
    for text in (SCORES, VALUES):
        code = stage_text(built(parse_kernel(text), "cpu:x86-64-v4-amd"), "llir")
        assert code.count("call void @llvm.prefetch") > 1


def skips(text: str) -> bool:
    """True if the code of a kernel has a way around its terms."""
    code = stage_text(built(parse_kernel(text), "cpu:x86-64-v4-amd"), "llir")
    return "needed.else" in code or "any.else" in code


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        (SCORES, "where %6, %7, %5", "where %6, %5, %7"),
        (SCORES, "%5: f32 = -inf", "%5: f32 = 0.0"),
        (SCORES, "ne %4, %5", "ne %3, %5"),
        (VALUES, "where %4, %2, %3", "where %4, %3, %2"),
        (VALUES, "ne %0, %3", "lt %0, %3"),
        (VALUES, "ne %0, %3", "ne %2, %3"),
        (VALUES, "%3: f32 = 0.0", "%3: f32 = 1.0"),
        (VALUES, "mul %0, %1", "add %0, %1"),
    ],
)
def test_other_conditions_skip_nothing(text: str, old: str, new: str) -> None:
    assert skips(text)
    assert old in text
    assert not skips(text.replace(old, new))


def test_units_of_several_results_compute_all() -> None:
    """One of their results may be needed."""
    text = SCORES.replace("param out out0", f"param out out1: f32[{ROWS * KEYS}]\nparam out out0")
    text += "  %10: f32 = mul %0, %1\n  %11: f32 = sum %10\n  %12: f32 = where %6, %11, %5\n"
    kernel = parse_kernel(f"{text}  store out1[{KEYS}*d0 + d1] = %12\n")
    found = vector_sums(kernel, 512)
    assert found is not None
    condition = needed_if(kernel)
    assert condition is not None
    assert isinstance(kernel.body[condition], Compute)
    assert found.division.unit_results > 1
    assert found.needed_if is None

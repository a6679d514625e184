"""Guided reductions: their meaning compared with PyTorch, codecs, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernelfarm.digest import kernel_key
from kernelfarm.errors import VerificationError
from kernelfarm.ir.interpret import run_kernel
from kernelfarm.ir.loop_ir import GUIDES, Kernel
from kernelfarm.ir.text import parse_kernel, print_kernel
from kernelfarm.ir.verify import verify_kernel
from kernelfarm.wire import kernel_from_proto, kernel_to_proto

ROWS, WIDTH = 6, 40


def lone(op: str, dtype: str = "f64") -> Kernel:
    return parse_kernel(
        f"kernel lone\nsize width from 0\nparam in in0: {dtype}[{ROWS}*width]\n"
        f"param out out0: {dtype}[{ROWS}]\nfor d0 in {ROWS}\nreduce r0 in width\n"
        f"  %0: {dtype} = load in0[width*d0 + r0]\n  %1: {dtype} = {op} %0\n"
        "  store out0[d0] = %1\n"
    )


def meaning(op: str, x: torch.Tensor) -> torch.Tensor:
    out = np.zeros(ROWS)
    with np.errstate(all="ignore"):
        run_kernel(lone(op), {"in0": x.numpy().reshape(-1), "out0": out}, {"width": x.shape[1]})
    return torch.from_numpy(out)


def odd_rows() -> torch.Tensor:
    x = torch.randn(ROWS, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x[1] = -torch.inf
    x[2, 3] = torch.inf
    x[3, 4] = torch.nan
    x[4, :7] = -torch.inf
    x[5] += 1e8
    return x


def test_softmax_sum_is_what_softmax_divides_by() -> None:
    x = odd_rows()
    softmax = (x - x.amax(1, keepdim=True)).exp() / meaning("softmax_sum", x)[:, None]
    torch.testing.assert_close(softmax, x.softmax(1), equal_nan=True)
    assert softmax[1].isnan().all(), "a row of nothing but -inf"
    assert softmax[2].isnan().all(), "a row with +inf"
    assert (softmax[4, :7] == 0).all(), "-inf below the maximum"


def test_welford_m2_is_the_variance_times_the_count() -> None:
    x = odd_rows()
    variance = meaning("welford_m2", x) / (WIDTH - 1)
    torch.testing.assert_close(variance, x.var(1), equal_nan=True)


@pytest.mark.parametrize("op", GUIDES)
def test_over_no_points_it_is_zero(op: str) -> None:
    assert (meaning(op, torch.zeros(ROWS, 0, dtype=torch.float64)) == 0).all()


@pytest.mark.parametrize("op", GUIDES)
def test_text_and_messages_keep_it(op: str) -> None:
    kernel = lone(op)
    verify_kernel(kernel)
    assert parse_kernel(print_kernel(kernel)) == kernel
    assert kernel_from_proto(kernel_to_proto(kernel)) == kernel
    other = next(name for name in GUIDES if name != op)
    assert kernel_key(kernel, "cpu:x86-64-v3") != kernel_key(lone(other), "cpu:x86-64-v3")


@pytest.mark.parametrize("op", GUIDES)
def test_integers_are_refused(op: str) -> None:
    with pytest.raises(VerificationError, match=f"{op}: an operand of i64; expected a float"):
        verify_kernel(lone(op, "i64"))


@pytest.mark.parametrize("op", GUIDES)
def test_narrow_floats_are_refused(op: str) -> None:
    with pytest.raises(VerificationError, match=f"{op} computes in f16"):
        verify_kernel(lone(op, "f16"))

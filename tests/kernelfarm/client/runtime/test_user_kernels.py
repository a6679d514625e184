"""Triton kernels in a model: captured, planned, and launched with the right arguments.

There is no GPU, so a Python function stands in for the binary: it gets what a driver would get, the
addresses and sizes of the launch.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

import kernelfarm
from kernelfarm.client.loaders.variants import LoadedVariant
from kernelfarm.ir.artifact import GuardAtom, GuardOp, GuardSubject
from kernelfarm.ir.triton.node import check_node
from kernelfarm.ir.triton.user_kernel import FixedParam, Scalar
from tests.support.tutorial_kernels import add_vectors
from tests.support.user_kernel_stand_ins import CompiledHere, StandIn, user_kernel_node

_ALIGNED = tuple(
    GuardAtom(GuardSubject.PARAM_ADDRESS, number, GuardOp.DIVISIBLE, 16) for number in range(2)
)


@triton.jit
def accumulate(sum_ptr, x_ptr, n, factor, stride, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at * stride, mask=at < n)
    old = tl.load(sum_ptr + at, mask=at < n)
    tl.store(sum_ptr + at, old + factor * x, mask=at < n)


def _floats(address: int, count: int) -> np.ndarray[Any, Any]:
    pointer = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
    return np.ctypeslib.as_array(pointer, (count,))


def _add(pointers: Sequence[int], sizes: Sequence[int]) -> None:
    """What `add_vectors` does, with a static or a varying length."""
    n, *grid = sizes
    assert grid == [-(-n // 128), 1, 1]
    x, y, out = (_floats(pointer, n) for pointer in pointers)
    out[:] = x + y


def _accumulate(pointers: Sequence[int], sizes: Sequence[int]) -> None:
    """What `accumulate` does; a stride of 1 is a constant, so that it is not among the sizes."""
    n, bits, *rest = sizes
    stride = rest[0] if len(rest) == 4 else 1
    (factor,) = struct.unpack("<f", struct.pack("<I", bits))
    x = _floats(pointers[1], (n - 1) * stride + 1)[::stride]
    _floats(pointers[0], n)[:] += np.float32(factor) * x


@pytest.fixture(autouse=True)
def _without_traces() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _sum_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    n = x.numel()
    add_vectors[(triton.cdiv(n, 128),)](x.sin(), y, out, n, BLOCK=128)
    return out * 2


def test_a_kernel_between_fused_kernels_gets_their_tensors_and_memory_of_its_own() -> None:
    stand_in = StandIn(_add, 3)
    compiled = CompiledHere(_sum_of, LoadedVariant((), stand_in))
    x, y = torch.randn(300), torch.randn(300)

    torch.testing.assert_close(compiled(x, y), (x.sin() + y) * 2)
    (pointers, sizes) = stand_in.uses[0]
    assert sizes == (300, 3, 1, 1)
    assert pointers[1] == y.data_ptr()  # read where it is
    node = user_kernel_node(compiled.graphs[0])
    assert node.args[2] is None  # torch.empty_like: nothing is filled or copied
    assert "kernels before and after it are not fused" in compiled.reports[0]


def test_a_varying_length_is_a_size_of_the_launch_and_of_its_grid() -> None:
    compiled = CompiledHere(_sum_of, LoadedVariant((), StandIn(_add, 3)))
    for n in (300, 301, 77, 1024):
        x, y = torch.randn(n), torch.randn(n)
        torch.testing.assert_close(compiled(x, y), (x.sin() + y) * 2)

    assert len(compiled.graphs) == 2  # static, then for all lengths
    (kernel,) = check_node(user_kernel_node(compiled.graphs[1]))
    assert [type(param) for param in kernel.params].count(Scalar) == 1


def _accumulated(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    total = x * 2
    accumulate[(1,)](total, y, x.numel(), 0.75, y.stride(0), BLOCK=64)
    return total + 1, x * 2


def test_a_changed_tensor_is_a_copy_if_others_need_its_old_elements() -> None:
    stand_in = StandIn(_accumulate)
    compiled = CompiledHere(_accumulated, LoadedVariant((), stand_in))
    x, y = torch.randn(48), torch.randn(48)
    changed, old = compiled(x, y)

    torch.testing.assert_close(changed, x * 2 + 0.75 * y + 1)
    torch.testing.assert_close(old, x * 2)
    (kernel,) = check_node(user_kernel_node(compiled.graphs[0]))
    by_name = {param.name: param for param in kernel.params}
    assert by_name["stride"] == FixedParam("stride", 1)  # as Triton specializes it
    assert getattr(by_name["n"], "divisor", 0) == 16


def test_strided_operands_are_passed_with_the_strides_that_the_trace_had() -> None:
    stand_in = StandIn(_accumulate)
    compiled = CompiledHere(_accumulated, LoadedVariant((), stand_in))
    x, y = torch.randn(20), torch.randn(20, 3)[:, 1]
    changed, _ = compiled(x, y)

    torch.testing.assert_close(changed, x * 2 + 0.75 * y + 1)
    assert stand_in.uses[0][1][2] == 3


def test_a_kernel_that_changes_an_argument_of_the_model_changes_it() -> None:
    def update(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        accumulate[(1,)](x, y, x.numel(), 2.0, 1, BLOCK=64)
        return x.sum()

    compiled = CompiledHere(update, LoadedVariant((), StandIn(_accumulate)))
    x, y = torch.randn(32), torch.randn(32)
    expected = x + 2 * y
    total = compiled(x, y)

    torch.testing.assert_close(x, expected)
    torch.testing.assert_close(total, expected.sum())


def test_the_variant_for_aligned_buffers_is_launched_for_those_alone() -> None:
    aligned, general = StandIn(_accumulate), StandIn(_accumulate)
    variants = LoadedVariant(_ALIGNED, aligned), LoadedVariant((), general)
    compiled = CompiledHere(_accumulated, *variants)
    memory = torch.randn(65)
    for y in (memory[:32], memory[1:33]):
        changed, _ = compiled(torch.ones(32), y)
        torch.testing.assert_close(changed, 2 + 0.75 * y + 1)

    assert (len(aligned.uses), len(general.uses)) == (1, 1)


def test_scratch_memory_is_the_last_buffer_of_a_launch() -> None:
    stand_in = StandIn(_accumulate, 3)
    compiled = CompiledHere(_accumulated, LoadedVariant((), stand_in, scratch_bytes=256))
    compiled(torch.ones(16), torch.ones(16))

    pointers = stand_in.uses[0][0]
    assert len(set(pointers[:3])) == 3
    assert pointers[2] % 64 == 0


def test_a_kernel_with_a_global_that_cannot_travel_is_refused_with_its_name() -> None:
    @triton.jit
    def unbound(x_ptr):
        tl.store(x_ptr, _ALIGNED)

    def function(x: torch.Tensor) -> torch.Tensor:
        unbound[(1,)](x)
        return x

    with pytest.raises(Exception, match="uses the global _ALIGNED"):
        CompiledHere(function, LoadedVariant((), StandIn(_add, 3)))(torch.ones(4))


def test_a_hint_around_a_kernel_of_the_user_is_ignored_and_the_report_says_so() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with kernelfarm.hints("num_warps=8"):
            return _sum_of(x, y)

    compiled = CompiledHere(function, LoadedVariant((), StandIn(_add, 3)))
    x, y = torch.randn(300), torch.randn(300)

    torch.testing.assert_close(compiled(x, y), (x.sin() + y) * 2)
    expected = "hint num_warps=8 of triton.kernel (2) is ignored: it is a kernel of the user, whose"
    assert expected in compiled.reports[0]

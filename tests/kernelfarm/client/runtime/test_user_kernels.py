"""Triton kernels in a model: captured, planned, and launched with the right arguments.

There is no GPU, so a Python function stands in for the binary: it gets what a driver would get, the
addresses and sizes of the launch.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch import fx
from torch._functorch.aot_autograd import aot_module_simplified, make_boxed_func
from torch._subclasses.fake_tensor import unset_fake_temporarily

from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.capture.graph import capture
from kernelfarm.client.loaders.contract import LaunchCall
from kernelfarm.client.loaders.cpu import CpuLoader
from kernelfarm.client.loaders.host_target import host_cpu_target
from kernelfarm.client.loaders.variants import LoadedVariant
from kernelfarm.client.runtime.program import BoundProgram
from kernelfarm.client.runtime.runner import PlanRunner
from kernelfarm.ir.artifact import GuardAtom, GuardOp, GuardSubject
from kernelfarm.ir.triton.node import check_node
from kernelfarm.ir.triton.user_kernel import USER_KERNEL_OP, FixedParam, Scalar
from kernelfarm.ir.verify import verify_program
from kernelfarm.targets import target_facts
from optimizer_svc.pipeline import optimize
from tests.support.in_process_compiler import loaded_kernel
from tests.support.triton_without_gpu import as_with_a_gpu
from tests.support.tutorial_kernels import add_vectors, matmul

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


class _StandIn:
    """A loaded kernel whose launches call a function; `uses` has their pointers and sizes."""

    def __init__(
        self, meaning: Callable[[Sequence[int], Sequence[int]], None], count: int = 2
    ) -> None:
        self._meaning, self._count = meaning, count
        self.uses: list[tuple[list[int], tuple[int, ...]]] = []

    def bind(self, sizes: tuple[int, ...]) -> Callable[[int, int], LaunchCall]:
        """The kernel for these sizes."""

        def bound(table: int, stream: int) -> LaunchCall:
            def launch() -> int:
                pointers = list((ctypes.c_uint64 * self._count).from_address(table))
                self.uses.append((pointers, sizes))
                self._meaning(pointers, sizes)
                return 0

            return launch

        return bound


class _Compiled:
    """A function compiled in this process; stand-ins launch the kernels of users."""

    def __init__(self, function: Callable[..., Any], *variants: LoadedVariant) -> None:
        self._variants = variants
        self.graphs: list[CapturedGraph] = []
        self.report = ""
        self._call = torch.compile(function, backend=self._backend, fullgraph=True)

    def __call__(self, *args: torch.Tensor) -> Any:
        with as_with_a_gpu(), torch.no_grad():
            return self._call(*args)

    def _backend(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return aot_module_simplified(gm, inputs, fw_compiler=self._compile)

    def _compile(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        with unset_fake_temporarily():
            captured = capture(gm)
            self.graphs.append(captured)
            target = target_facts(host_cpu_target())
            made = optimize(decompose_to_prims(captured.graph).graph, target)
            self.report = dict(made.stages)["report"]
            verify_program(made.program)
            kernels = [
                (LoadedVariant((), loaded_kernel(k, target.name)),) for k in made.program.kernels
            ]
            kernels += [self._variants] * len(made.program.user_kernels)
            runner = PlanRunner(
                BoundProgram(made.program.plan, tuple(kernels), captured, CpuLoader())
            )
        return make_boxed_func(lambda *args: runner(args))


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
    stand_in = _StandIn(_add, 3)
    compiled = _Compiled(_sum_of, LoadedVariant((), stand_in))
    x, y = torch.randn(300), torch.randn(300)

    torch.testing.assert_close(compiled(x, y), (x.sin() + y) * 2)
    (pointers, sizes) = stand_in.uses[0]
    assert sizes == (300, 3, 1, 1)
    assert pointers[1] == y.data_ptr()  # read where it is
    node = next(n for n in compiled.graphs[0].graph.nodes if n.op == USER_KERNEL_OP)
    assert node.args[2] is None  # torch.empty_like: nothing is filled or copied
    assert "kernels before and after it are not fused" in compiled.report


def test_a_varying_length_is_a_size_of_the_launch_and_of_its_grid() -> None:
    compiled = _Compiled(_sum_of, LoadedVariant((), _StandIn(_add, 3)))
    for n in (300, 301, 77, 1024):
        x, y = torch.randn(n), torch.randn(n)
        torch.testing.assert_close(compiled(x, y), (x.sin() + y) * 2)

    assert len(compiled.graphs) == 2  # static, then for all lengths
    kernel = check_node(next(n for n in compiled.graphs[1].graph.nodes if n.op == USER_KERNEL_OP))
    assert [type(param) for param in kernel.params].count(Scalar) == 1


def _accumulated(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    total = x * 2
    accumulate[(1,)](total, y, x.numel(), 0.75, y.stride(0), BLOCK=64)
    return total + 1, x * 2


def test_a_changed_tensor_is_a_copy_if_others_need_its_old_elements() -> None:
    stand_in = _StandIn(_accumulate)
    compiled = _Compiled(_accumulated, LoadedVariant((), stand_in))
    x, y = torch.randn(48), torch.randn(48)
    changed, old = compiled(x, y)

    torch.testing.assert_close(changed, x * 2 + 0.75 * y + 1)
    torch.testing.assert_close(old, x * 2)
    kernel = check_node(next(n for n in compiled.graphs[0].graph.nodes if n.op == USER_KERNEL_OP))
    by_name = {param.name: param for param in kernel.params}
    assert by_name["stride"] == FixedParam("stride", 1)  # as Triton specializes it
    assert getattr(by_name["n"], "divisor", 0) == 16


def test_strided_operands_are_passed_with_the_strides_that_the_trace_had() -> None:
    stand_in = _StandIn(_accumulate)
    compiled = _Compiled(_accumulated, LoadedVariant((), stand_in))
    x, y = torch.randn(20), torch.randn(20, 3)[:, 1]
    changed, _ = compiled(x, y)

    torch.testing.assert_close(changed, x * 2 + 0.75 * y + 1)
    assert stand_in.uses[0][1][2] == 3


def test_a_kernel_that_changes_an_argument_of_the_model_changes_it() -> None:
    def update(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        accumulate[(1,)](x, y, x.numel(), 2.0, 1, BLOCK=64)
        return x.sum()

    compiled = _Compiled(update, LoadedVariant((), _StandIn(_accumulate)))
    x, y = torch.randn(32), torch.randn(32)
    expected = x + 2 * y
    total = compiled(x, y)

    torch.testing.assert_close(x, expected)
    torch.testing.assert_close(total, expected.sum())


def test_the_variant_for_aligned_buffers_is_launched_for_those_alone() -> None:
    aligned, general = _StandIn(_accumulate), _StandIn(_accumulate)
    compiled = _Compiled(_accumulated, LoadedVariant(_ALIGNED, aligned), LoadedVariant((), general))
    memory = torch.randn(65)
    for y in (memory[:32], memory[1:33]):
        changed, _ = compiled(torch.ones(32), y)
        torch.testing.assert_close(changed, 2 + 0.75 * y + 1)

    assert (len(aligned.uses), len(general.uses)) == (1, 1)


def test_scratch_memory_is_the_last_buffer_of_a_launch() -> None:
    stand_in = _StandIn(_accumulate, 3)
    compiled = _Compiled(_accumulated, LoadedVariant((), stand_in, scratch_bytes=256))
    compiled(torch.ones(16), torch.ones(16))

    pointers = stand_in.uses[0][0]
    assert len(set(pointers[:3])) == 3
    assert pointers[2] % 64 == 0


def test_the_first_of_several_configurations_is_captured_with_its_grid() -> None:
    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        c = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype)
        (m, k), n = a.shape, b.shape[1]

        def grid(meta: dict[str, int]) -> tuple[int]:
            return (triton.cdiv(m, meta["BM"]) * triton.cdiv(n, meta["BN"]),)

        strides = (*a.stride(), *b.stride(), *c.stride())
        matmul[grid](a, b, c, m, n, k, *strides, ACTIVATION="leaky_relu")
        return c

    compiled = _Compiled(product, LoadedVariant((), _StandIn(lambda pointers, sizes: None, 3)))
    compiled(torch.ones(512, 64).half(), torch.ones(64, 256).half())

    (node,) = (n for n in compiled.graphs[0].graph.nodes if n.op == USER_KERNEL_OP)
    kernel = check_node(node)
    values = {p.name: p.value for p in kernel.params if isinstance(p, FixedParam)}
    assert (values["BM"], values["BN"], values["ACTIVATION"]) == (128, 256, "leaky_relu")
    assert dict(kernel.options) == {"num_ctas": 1, "num_stages": 3, "num_warps": 8}
    assert node.attr("grid") == (4, 1, 1)
    (report,) = decompose_to_prims(compiled.graphs[0].graph).report[-1:]
    assert "it has the first of 2 configurations" in report.detail


def test_a_kernel_with_a_global_that_cannot_travel_is_refused_with_its_name() -> None:
    @triton.jit
    def unbound(x_ptr):
        tl.store(x_ptr, _ALIGNED)

    def function(x: torch.Tensor) -> torch.Tensor:
        unbound[(1,)](x)
        return x

    with pytest.raises(Exception, match="uses the global _ALIGNED"):
        _Compiled(function, LoadedVariant((), _StandIn(_add, 3)))(torch.ones(4))

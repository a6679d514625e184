"""Kernels in the forms of public libraries: captured with their gradients, compiled for GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from codegen_svc.backends.contract import built_variants
from codegen_svc.backends.registry import find_backend
from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.targets import target_facts
from optimizer_svc.pipeline import optimize
from tests.support.traced_graphs import recording
from tests.support.training_kernels import CrossEntropy, RmsNorm, Rope, SwiGlu
from tests.support.triton_without_gpu import as_with_a_gpu


def _leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


_CASES: dict[str, tuple[Callable[..., torch.Tensor], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "RMSNorm": (RmsNorm.apply, lambda: (_leaf(256, 512), _leaf(512))),
    "RoPE": (
        lambda q, k, cos, sin: sum(part.sum() for part in Rope.apply(q, k, cos, sin)),
        lambda: (_leaf(128, 8, 64), _leaf(128, 4, 64), torch.ones(64, 64), torch.ones(64, 64)),
    ),
    "SwiGLU": (SwiGlu.apply, lambda: (_leaf(128, 512), _leaf(128, 512))),
    "cross entropy": (
        CrossEntropy.apply,
        lambda: (_leaf(64, 1000), torch.randint(0, 1000, (64,))),
    ),
}
_KERNELS = {"RMSNorm": 2, "RoPE": 2, "SwiGLU": 2, "cross entropy": 1}


@pytest.fixture(autouse=True)
def _without_traces() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


# Dynamo makes an object of the class, of which PyTorch warns.
@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("target", ["cuda:sm_90a", "rocm:gfx942", "ascend:910b"])
@pytest.mark.parametrize("name", _CASES)
def test_an_operator_and_its_gradient_compile(name: str, target: str) -> None:
    function, arguments = _CASES[name]
    found: list[CapturedGraph] = []
    with as_with_a_gpu():
        call = torch.compile(function, backend=recording(found, runs=False), fullgraph=True)
        call(*arguments()).sum().backward()

    facts = target_facts(target)
    programs = [optimize(decompose_to_prims(c.graph).graph, facts).program for c in found]
    kernels = [kernel for program in programs for kernel in program.user_kernels]
    assert len(kernels) == _KERNELS[name]
    for kernel in kernels:
        variants = built_variants(find_backend(facts.vendor), kernel, facts)
        assert variants[-1].launch.symbol == kernel.name

"""What torch fuses on some devices is traced as what it consists of, as on a CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func

from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.capture.decompose_fused import decompose_fused
from kernelfarm.client.capture.graph import capture
from kernelfarm.client.capture.input_order import InputOrder
from kernelfarm.digest import program_key
from kernelfarm.dtypes import DType
from tests.support.judge import judge
from tests.support.traced_graphs import recording, traced

FUSED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "lstm_cell": (lambda: nn.LSTMCell(8, 6), (4, 8)),
    "lstm_cell without biases": (lambda: nn.LSTMCell(8, 6, bias=False), (4, 8)),
    "gru_cell": (lambda: nn.GRUCell(8, 6), (4, 8)),
    "rms_norm": (lambda: nn.RMSNorm(16), (4, 16)),
    "rms_norm over two axes": (lambda: nn.RMSNorm((5, 16), eps=1e-5), (4, 5, 16)),
    "rms_norm without weights": (lambda: nn.RMSNorm(16, elementwise_affine=False), (4, 16)),
}
DTYPES = (torch.float32, torch.bfloat16, torch.float64)


def left_alone(function: nn.Module, *args: Any) -> list[CapturedGraph]:
    """What torch's own tracing makes of it on this CPU."""
    found: list[CapturedGraph] = []

    def compiler(gm: fx.GraphModule, _: Any) -> Any:
        found.append(capture(gm))
        return make_boxed_func(gm.forward)

    def backend(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        order = InputOrder(gm)
        trace = aot_autograd(fw_compiler=compiler, bw_compiler=compiler)
        return order.called_as_before(trace(order.module, order.of(example_inputs)))

    torch._dynamo.reset()
    torch.compile(function, backend=backend)(*args)
    return found


def keys_of(captured: list[CapturedGraph]) -> list[str]:
    return [program_key(each.graph, "cuda:sm_90a", ()).hex() for each in captured]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUSED)
def test_it_is_what_torch_traces_on_a_cpu(name: str, dtype: torch.dtype) -> None:
    make, shape = FUSED[name]
    module = make().to(dtype)
    x = torch.randn(shape, dtype=dtype)
    with torch.no_grad():
        assert keys_of(traced(module, x)) == keys_of(left_alone(module, x))


@pytest.mark.parametrize("name", FUSED)
def test_it_computes_what_the_module_does(name: str) -> None:
    make, shape = FUSED[name]
    module, x = make(), torch.randn(shape)

    def backend(gm: fx.GraphModule, _: Any) -> Any:
        before = [node.target for node in gm.graph.nodes]
        decompose_fused(gm)
        assert before != [node.target for node in gm.graph.nodes]
        return gm.forward

    torch._dynamo.reset()
    found, expected = torch.compile(module, backend=backend)(x), module(x)
    torch.testing.assert_close(found, expected)


def test_under_autocast_a_norm_has_the_type_that_eager_gives() -> None:
    norm, x = nn.RMSNorm(16), torch.randn(4, 16)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        captured = traced(norm, x)
        expected = norm(x)
    assert captured[0].graph.output_types[0].dtype.value == str(expected.dtype)[6:].replace(
        "float", "f"
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("has_parameters", [True, False])
def test_a_half_layer_norm_saves_the_statistics_that_a_gpu_does(
    dtype: torch.dtype, has_parameters: bool
) -> None:
    norm = nn.LayerNorm((3, 16), elementwise_affine=has_parameters).to(dtype)
    x = torch.randn(4, 3, 16, generator=torch.Generator().manual_seed(0)).to(dtype)
    grad = torch.linspace(-1, 1, x.numel()).view(x.shape).to(dtype)
    found: list[CapturedGraph] = []
    torch._dynamo.reset()
    ours = gradients(torch.compile(norm, backend=recording(found)), norm, x, grad)
    exact = gradients(copy.deepcopy(norm).double(), None, x.double(), grad.double())
    assert not judge(ours, gradients(norm, norm, x, grad), exact, (x, grad)).problem
    forward, backward = found
    (node,) = (n for n in forward.graph.nodes if n.op == "aten.native_layer_norm.default")
    assert [tensor.dtype for tensor in node.types[1:]] == [DType.F32, DType.F32]
    names = {n.op for n in backward.graph.nodes}
    assert "aten.native_layer_norm_backward.default" in names


def gradients(
    function: Callable[..., torch.Tensor], owner: Any, x: torch.Tensor, grad: torch.Tensor
) -> list[torch.Tensor]:
    """The result, and the gradients of the operand and of the owner's parameters."""
    module = function if owner is None else owner
    leaf = x.clone().requires_grad_()
    result = function(leaf)
    return [result.detach(), *torch.autograd.grad(result, [leaf, *module.parameters()], grad)]


def test_a_layer_norm_without_gradients_is_torchs_own() -> None:
    norm, x = nn.LayerNorm(16).bfloat16(), torch.randn(4, 16).bfloat16()
    with torch.no_grad():
        assert keys_of(traced(norm, x)) == keys_of(left_alone(norm, x))

"""Operators that PyTorch has for accelerators only, compared with their formulas."""

from __future__ import annotations

import torch

from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.dtypes import DType
from kernelfarm.ir.graph_ir import Arg, Graph, Node, Ref, TensorType
from kernelfarm.ir.graph_ir import Input as GraphInput
from kernelfarm.ir.interpret import run_graph
from tests.support.operator_samples.tensors import normal, positive
from tests.support.small_graphs import tensor


def results(
    op: str, tensors: list[torch.Tensor], args: list[Arg], types: list[TensorType]
) -> list[torch.Tensor]:
    inputs = tuple(
        GraphInput(k, tensor(*x.shape, dtype=DType.F32), "") for k, x in enumerate(tensors)
    )
    made = tuple(range(len(inputs), len(inputs) + len(types)))
    node = Node(op, tuple(args), (), made, tuple(types))
    outputs: tuple[Arg, ...] = tuple(map(Ref, made))
    graph = Graph("aten", (), inputs, (node,), outputs, tuple(types))
    lowered = decompose_to_prims(graph).graph
    assert "extern" not in [n.op for n in lowered.nodes]
    return [torch.as_tensor(r) for r in run_graph(lowered, [x.numpy() for x in tensors])]


def test_the_gradients_of_rms_norm_are_those_of_its_formula() -> None:
    grad = normal(3, 4, 5, seed=1)
    for shape in ([5], [4, 5]):
        x, weight = normal(3, 4, 5).requires_grad_(), positive(*shape).requires_grad_()
        axes = list(range(-len(shape), 0))
        rstd = (x.square().mean(axes, keepdim=True) + 1e-5).rsqrt()
        expected = torch.autograd.grad(x * rstd * weight, (x, weight), grad)
        tensors = [grad, x.detach(), rstd.detach(), weight.detach()]
        args: list[Arg] = [Ref(0), Ref(1), tuple(shape), Ref(2), Ref(3), (True, True)]
        types = [tensor(3, 4, 5), tensor(*shape)]
        got = results("aten._fused_rms_norm_backward.default", tensors, args, types)
        for result, model in zip(got, expected, strict=True):
            torch.testing.assert_close(result, model, rtol=1e-5, atol=1e-5)


def test_a_masked_scale_multiplies_by_mask_and_scale() -> None:
    x, mask = normal(4, 5), (normal(4, 5) > 0).float()
    args: list[Arg] = [Ref(0), Ref(1), 1.25]
    (got,) = results("aten._masked_scale.default", [x, mask], args, [tensor(4, 5)])
    torch.testing.assert_close(got, x * mask * 1.25)


def test_a_log_sigmoid_saves_nothing_on_a_gpu_for_any_rank() -> None:
    for shape in ((5,), (4, 9)):
        x = normal(*shape)
        types = [tensor(*shape), tensor(0)]
        found, buffer = results("aten.log_sigmoid_forward.default", [x], [Ref(0)], types)
        torch.testing.assert_close(found, torch.nn.functional.logsigmoid(x))
        assert buffer.shape == (0,)


def test_batch_norm_by_running_statistics_saves_them_on_a_gpu() -> None:
    x, mean, variance = normal(4, 6, 3), normal(6), positive(6)
    args: list[Arg] = [Ref(0), None, None, Ref(1), Ref(2), 0.1, 1e-5]
    types = [tensor(4, 6, 3), tensor(6), tensor(6)]
    op = "aten._native_batch_norm_legit_no_training.default"
    found, saved_mean, saved_rstd = results(op, [x, mean, variance], args, types)
    torch.testing.assert_close(found, torch.nn.functional.batch_norm(x, mean, variance))
    torch.testing.assert_close(saved_mean, mean)
    torch.testing.assert_close(saved_rstd, (variance + 1e-5).rsqrt())

"""Attention with gradients: our pair of operators beside eager and float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernelfarm.client.capture.preserve_attention import attention
from kernelfarm.client.custom_operators import attention_products
from kernelfarm.client.custom_operators.attention import ATTENTION_BACKWARD, ATTENTION_SAVING
from kernelfarm.client.custom_operators.attention_products import AttentionOperands
from kernelfarm.dtypes import DType
from tests.support.judge import judge
from tests.support.traced_graphs import recording

SAVING = "kernelfarm.attention_saving.default"
BACKWARD = "kernelfarm.attention_backward.default"
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

Given = tuple[list[Tensor], dict[str, Any]]


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rows(*shape: int, seed: int) -> Tensor:
    """(batch, heads, length, width), as projections give it: rows of all heads side by side."""
    batch, heads, length, width = shape
    return numbers(batch, length, heads, width, seed=seed).transpose(1, 2)


def plain(length: int = 5, keys: int = 7, width: int = 8, values: int = 8) -> list[Tensor]:
    return [
        rows(2, 4, length, width, seed=1),
        rows(2, 4, keys, width, seed=2),
        rows(2, 4, keys, values, seed=3),
    ]


def mask_of(*shape: int) -> Tensor:
    """True where a key is seen; the first row of all sees nothing."""
    mask = numbers(*shape, seed=4) > -0.5
    mask.view(-1, shape[-1])[0] = False
    return mask


CASES: dict[str, Callable[[], Given]] = {
    "plain": lambda: (plain(), {}),
    "causal": lambda: (plain(9, 9), {"is_causal": True}),
    "causal, more keys": lambda: (plain(5, 9), {"is_causal": True}),
    "scaled": lambda: (plain(), {"scale": 0.7}),
    "masked": lambda: (plain(), {"attn_mask": mask_of(2, 4, 5, 7)}),
    "one mask for all": lambda: (plain(), {"attn_mask": mask_of(5, 7)}),
    "biased": lambda: (plain(), {"attn_mask": numbers(2, 1, 5, 7, seed=5)}),
    "bias with gradients": lambda: ([*plain(), numbers(1, 4, 5, 7, seed=5)], {}),
    "bias of two axes with gradients": lambda: ([*plain(), numbers(5, 7, seed=5)], {}),
    "odd widths": lambda: (plain(width=7, values=7), {}),
    "narrow values": lambda: (plain(values=3), {"is_causal": True}),
    "long rows": lambda: (plain(70, 90, 24, 24), {}),
    "one row": lambda: (plain(1, 7), {}),
    "heads in groups": lambda: (
        [plain()[0], rows(2, 2, 7, 8, seed=2), rows(2, 2, 7, 8, seed=3)],
        {"enable_gqa": True},
    ),
    "heads side by side": lambda: ([tensor.contiguous() for tensor in plain()], {}),
    "columns side by side": lambda: ([tensor.mT.contiguous().mT for tensor in plain()], {}),
}


def gradients(function: Callable[..., Tensor], given: Given, dtype: torch.dtype) -> list[Tensor]:
    """What the function gives, and the gradients of all tensors."""
    leaves = [tensor.to(dtype).requires_grad_() for tensor in given[0]]
    options = {
        name: v.to(dtype) if isinstance(v, Tensor) and v.is_floating_point() else v
        for name, v in given[1].items()
    }
    result = function(*leaves, **options)
    seed = numbers(*result.shape, seed=9).to(dtype)
    found = (result.detach(), *torch.autograd.grad(result, leaves, seed))
    return [tensor.contiguous() for tensor in found]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_are_as_near_to_float64_as_eagers(name, dtype):
    given = CASES[name]()
    found, eager = (
        gradients(function, given, dtype)
        for function in (attention, F.scaled_dot_product_attention)
    )
    rounded = [tensor.to(dtype).double() for tensor in given[0]], given[1]
    exact = gradients(F.scaled_dot_product_attention, rounded, torch.float64)
    assert not judge(found, eager, exact, given[0]).problem


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_matrix_products_give_what_the_fused_kernels_do(name, dtype):
    given = CASES[name]()
    eager = gradients(F.scaled_dot_product_attention, given, dtype)
    rounded = [tensor.to(dtype).double() for tensor in given[0]], given[1]
    exact = gradients(F.scaled_dot_product_attention, rounded, torch.float64)
    with sdpa_kernel(SDPBackend.MATH):
        found = gradients(attention, given, dtype)
    assert not judge(found, eager, exact, given[0]).problem


@pytest.mark.parametrize("name", ["plain", "causal", "masked", "biased", "long rows"])
def test_gradients_may_be_computed_by_another_kernel_than_the_result(name):
    tensors, options = CASES[name]()
    results = []
    for forward, backward in itertools.product(
        (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION), repeat=2
    ):
        leaves = [tensor.float().requires_grad_() for tensor in tensors]
        mask = options.get("attn_mask")
        mask = mask.float() if mask is not None and mask.is_floating_point() else mask
        with sdpa_kernel(forward):
            result = attention(*leaves, **(options | {"attn_mask": mask}))
        with sdpa_kernel(backward):
            results.append(torch.autograd.grad(result.square().sum(), leaves))
    for other in results[1:]:
        torch.testing.assert_close(other, results[0])


def test_what_is_saved_is_the_log_sum_exp_of_scaled_and_masked_scores():
    q, k, v = (tensor.float() for tensor in plain())
    bias = numbers(5, 7, seed=5).float()
    _, saved = ATTENTION_SAVING(q, k, v, bias, False, 0.3, False, False)
    scores = q @ k.mT * 0.3 + bias
    torch.testing.assert_close(saved, scores.logsumexp(-1))
    _, products = attention_products.forward(AttentionOperands(q, k, v, bias, False, 0.3, False))
    torch.testing.assert_close(products, saved)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_results_have_the_shapes_types_and_layouts_that_were_traced(name, dtype):
    tensors, options = CASES[name]()
    given = [tensor.to(dtype) for tensor in tensors]
    mask = options.get("attn_mask", given[3] if len(given) > 3 else None)
    if mask is not None:
        mask = mask.to(dtype)
    rest = (mask, options.get("is_causal", False), None, options.get("enable_gqa", False))
    arguments = (*given[:3], *rest, len(given) > 3)
    saved = ATTENTION_SAVING(*arguments)
    back = ATTENTION_BACKWARD(saved[0], *saved, *arguments)
    meta = [a.to("meta") if isinstance(a, Tensor) else a for a in arguments]
    planned = ATTENTION_SAVING(*meta)
    planned_back = ATTENTION_BACKWARD(planned[0], *planned, *meta)
    for found, expected in zip((*saved, *back), (*planned, *planned_back), strict=True):
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        assert found.stride() == expected.stride()


def ops(captured: Any) -> list[str]:
    return [node.op for node in captured.graph.nodes]


def mixed(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Attention between two operators, its heads' rows side by side."""
    result = F.scaled_dot_product_attention(q.sin(), k, v, **options)
    return result.transpose(1, 2).reshape(q.shape[0], q.shape[2], -1).cos()


def graphs_of(function: Callable[..., Tensor], *args: Tensor, **options: Any) -> list[Any]:
    """What is captured of a function and of the gradients of its sum; the graphs run."""
    found: list[Any] = []
    torch._dynamo.reset()
    result = torch.compile(function, backend=recording(found), **options)(*args)
    leaves = [tensor for tensor in args if tensor.requires_grad]
    got = torch.autograd.grad(result.float().sum(), leaves)
    expected = torch.autograd.grad(function(*args).float().sum(), leaves)
    torch.testing.assert_close(got, expected)
    return found


def leaves_of(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.float().requires_grad_() for tensor in tensors]


@pytest.mark.parametrize("dynamic", [False, True])
def test_forward_and_backward_graph_have_one_operator_each(dynamic):
    forward, backward = graphs_of(mixed, *leaves_of(plain()), dynamic=dynamic)
    assert ops(forward).count(SAVING) == 1
    assert ops(backward).count(BACKWARD) == 1
    assert SAVING not in ops(backward)  # not computed again


def test_a_key_that_needs_no_gradient_gets_none():
    q, k, v = leaves_of(plain())
    _, backward = graphs_of(mixed, q, k.detach(), v)
    assert ops(backward).count(BACKWARD) == 1


def test_a_masks_gradient_is_a_result_of_the_same_operator():
    q, k, v, bias = leaves_of(CASES["bias with gradients"]()[0])
    _, backward = graphs_of(lambda *a: mixed(*a[:3], attn_mask=a[3]), q, k, v, bias)
    (node,) = (node for node in backward.graph.nodes if node.op == BACKWARD)
    assert [int(str(extent)) for extent in node.types[3].shape] == [1, 4, 5, 7]


def test_a_boolean_mask_is_made_numbers_once_for_both_passes():
    mask = mask_of(5, 7)
    mask[0, 0] = True
    forward, backward = graphs_of(lambda *a: mixed(*a, attn_mask=mask), *leaves_of(plain()))
    types = [g.graph.types()[bias_of(g, at).value].dtype for g, at in ((forward, 3), (backward, 6))]
    assert types == [DType.F32, DType.F32]
    assert "aten.masked_fill.Scalar" not in ops(backward)


def bias_of(captured: Any, place: int) -> Any:
    (node,) = (node for node in captured.graph.nodes if node.op in {SAVING, BACKWARD})
    return node.args[place]


def test_gradients_that_are_one_number_everywhere_are_read_right():
    graphs_of(F.scaled_dot_product_attention, *leaves_of(plain()))


def test_autocast_lowers_training_as_eager_does():
    found: list[Any] = []
    leaves = leaves_of(plain())
    torch._dynamo.reset()
    with torch.autocast("cpu", torch.bfloat16):
        result = torch.compile(mixed, backend=recording(found))(*leaves)
    gradients = torch.autograd.grad(result.float().sum(), leaves)
    assert {gradient.dtype for gradient in gradients} == {torch.float32}
    types = found[0].graph.types()
    (node,) = (node for node in found[0].graph.nodes if node.op == SAVING)
    assert {types[ref.value].dtype for ref in node.args[:3]} == {DType.BF16}


@pytest.mark.parametrize(
    "function",
    [
        lambda q, k, v: mixed(q, k, v, dropout_p=0.5),
        lambda q, k, v: mixed(q, k[:, :1], v[:, :1]),
    ],
    ids=["dropout", "heads that broadcast"],
)
def test_training_is_torchs_own_where_no_fused_kernel_of_ours_would_take_it(function):
    found: list[Any] = []
    torch._dynamo.reset()
    torch.compile(function, backend=recording(found))(*leaves_of(plain()))
    assert SAVING not in ops(found[0])


def test_differentiating_twice_is_refused():
    leaves = leaves_of(plain())
    result = attention(*leaves)
    once = torch.autograd.grad(result.sin().sum(), leaves, create_graph=True)
    with pytest.raises(NotImplementedError, match="no derivative"):
        torch.autograd.grad(once[0].sum(), leaves)


def test_a_compiled_function_is_not_differentiated_twice():
    leaves = leaves_of(plain())
    torch._dynamo.reset()
    result = torch.compile(mixed, backend=recording([]))(*leaves)
    once = torch.autograd.grad(result.sum(), leaves, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        torch.autograd.grad(once[0].sum(), leaves)

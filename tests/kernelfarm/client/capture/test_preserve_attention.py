"""Attention is one operator on the wire, whatever torch would make of it here."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)

from kernelfarm.client.custom_operators.attention import ATTENTION
from kernelfarm.dtypes import DType
from tests.support.traced_graphs import recording, traced_one

WHOLE = "aten.scaled_dot_product_attention.default"


def heads(*, dtype: torch.dtype = torch.float32, width: int = 8) -> list[torch.Tensor]:
    """Query, key and value as projections give them: rows of all heads side by side."""
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randn(2, 5, 4, width, generator=generator, dtype=dtype) for _ in range(3)]
    return [row.transpose(1, 2) for row in rows]


def rows_of(q, k, v, **options):
    return F.scaled_dot_product_attention(q, k, v, **options).transpose(1, 2).reshape(2, 5, -1)


def ops(captured) -> list[str]:
    return [node.op for node in captured.graph.nodes]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("lie", ["rows of all heads", "heads one after the other"])
def test_attention_is_one_operator_with_one_layout(dtype, lie):
    args = heads(dtype=dtype)
    if lie == "heads one after the other":
        args = [tensor.contiguous() for tensor in args]
    with torch.no_grad():
        captured = traced_one(rows_of, *args)
    assert ops(captured)[0] == WHOLE
    (result,) = captured.graph.nodes[0].types
    assert [str(stride) for stride in result.strides] == ["160", "8", "32", "1"]


def test_mask_scale_and_causality_are_arguments_of_the_operator():
    mask = torch.zeros(2, 1, 5, 5)

    def masked(q, k, v):
        return rows_of(q, k, v, attn_mask=mask, scale=0.5)

    with torch.no_grad():
        node = next(n for n in traced_one(masked, *heads()).graph.nodes if n.op == WHOLE)
        causal = traced_one(lambda *a: rows_of(*a, is_causal=True), *heads()).graph.nodes[0]
    assert len(node.args) == 4
    assert node.attrs == (("scale", 0.5),)
    assert causal.args[3:] == (None, 0.0, True)


def test_autocast_lowers_attention_as_eager_does():
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        captured = traced_one(rows_of, *heads())
    types = captured.graph.types()
    node = next(n for n in captured.graph.nodes if n.op == WHOLE)
    assert {types[ref.value].dtype for ref in node.args[:3]} == {DType.BF16}
    assert captured.graph.output_types[0].dtype is DType.BF16


@pytest.mark.parametrize(
    "function",
    [
        lambda q, k, v: rows_of(q, k, v, dropout_p=0.5),
        F.scaled_dot_product_attention,
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v).view(2, 20, 8),
    ],
    ids=["dropout", "the layout is returned", "the layout is relied on"],
)
def test_attention_is_torchs_own_where_eagers_layout_or_numbers_could_be_seen(function):
    args = [tensor.contiguous() for tensor in heads()]
    with torch.no_grad():
        captured = traced_one(function, *args)
    assert WHOLE not in ops(captured)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("lie", [lambda t: t, torch.Tensor.contiguous])
def test_the_operator_is_torchs_attention_in_the_layout_that_was_traced(dtype, lie):
    q, k, v = (lie(tensor) for tensor in heads(dtype=dtype))
    found = ATTENTION(q, k, v, None, 0.0, True, scale=0.3)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)
    torch.testing.assert_close(found, expected)
    assert found.stride() == (160, 8, 32, 1)


def test_attention_stays_whole_where_its_result_is_copied_row_by_row():
    # As torch's own multi-head attention hands it on.
    def handed_on(q, k, v):
        result = F.scaled_dot_product_attention(q, k, v)
        return result.permute(2, 0, 1, 3).contiguous().view(10, 32)

    args = [tensor.contiguous() for tensor in heads()]
    with torch.no_grad():
        captured = traced_one(handed_on, *args)
    assert ops(captured)[0] == WHOLE


@pytest.mark.parametrize(
    "joined",
    [
        lambda x: x.transpose(1, 2).flatten(2),
        lambda x: x.transpose(-2, -3).flatten(start_dim=-2, end_dim=3),
    ],
)
@pytest.mark.parametrize("tokens", [1, 5])
def test_attention_stays_whole_where_its_heads_are_flattened(joined, tokens):
    def handed_on(q, k, v):
        return joined(F.scaled_dot_product_attention(q, k, v))

    # Without a fused kernel for f64, eager's result has other strides than ours.
    args = [tensor[:, :, :tokens].contiguous() for tensor in heads(dtype=torch.float64)]
    with torch.no_grad():
        captured = traced_one(handed_on, *args)
    assert ops(captured)[0] == WHOLE
    (result,) = captured.graph.output_types
    assert [str(stride) for stride in result.strides] == [str(32 * tokens), "32", "1"]


def test_attention_is_torchs_own_where_flatten_joins_no_heads():
    def handed_on(q, k, v):
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(3)

    args = [tensor.contiguous() for tensor in heads(dtype=torch.float64)]
    with torch.no_grad():
        captured = traced_one(handed_on, *args)
    assert WHOLE not in ops(captured)


def of_groups(repeat, *, writes: bool = False):
    """Attention of 4 query heads whose 2 heads of keys and values a model repeats itself."""

    def function(q, k, v):
        key, value = repeat(k), repeat(v)
        if writes:
            k.zero_()
        return rows_of(q, key, value)

    return function


def as_transformers_does(x):
    return x[:, :, None, :, :].expand(2, 2, 2, 5, 8).reshape(2, 4, 5, 8)


def few_heads() -> list[torch.Tensor]:
    q, k, v = heads()
    return [q, k[:, :2].clone(), v[:, 1:3].clone()]


REPEATS = {
    "expanded by an index": as_transformers_does,
    "expanded by unsqueeze": lambda x: x.unsqueeze(2).expand(-1, -1, 2, -1, -1).reshape(2, 4, 5, 8),
    "a function": lambda x: torch.repeat_interleave(x, 2, dim=1),
    "a method": lambda x: x.repeat_interleave(2, 1),
}


@pytest.mark.parametrize("name", REPEATS)
def test_heads_that_a_model_repeats_for_groups_are_not_repeated(name):
    function = of_groups(REPEATS[name])
    with torch.no_grad():
        captured = traced_one(function, *few_heads())
    node = next(n for n in captured.graph.nodes if n.op == WHOLE)
    assert dict(node.attrs) == {"enable_gqa": True}
    inputs = {i.value: i.kind.shape for i in captured.graph.inputs}
    assert [str(inputs[arg.value][1]) for arg in node.args[:3]] == ["4", "2", "2"]
    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(function, backend=recording([]))
        torch.testing.assert_close(compiled(*few_heads()), function(*few_heads()))


@pytest.mark.parametrize(
    "repeat",
    [
        lambda x: torch.cat([x, x], 1),
        lambda x: x.repeat(1, 2, 1, 1),
        lambda x: x[:, None].expand(2, 2, 2, 5, 8).reshape(2, 4, 5, 8),
    ],
    ids=["cat", "repeat", "another axis"],
)
def test_heads_in_another_order_are_as_the_model_made_them(repeat):
    with torch.no_grad():
        captured = traced_one(of_groups(repeat), *few_heads())
    assert all(not n.attrs for n in captured.graph.nodes if n.op == WHOLE)


def test_keys_that_are_written_to_after_they_were_repeated_keep_their_copies():
    with torch.no_grad():
        captured = traced_one(of_groups(as_transformers_does, writes=True), *few_heads())
    assert not next(n for n in captured.graph.nodes if n.op == WHOLE).attrs


def test_training_repeats_heads_as_the_model_does():
    leaves = [tensor.requires_grad_() for tensor in few_heads()]
    names = ops(traced_one(of_groups(as_transformers_does), *leaves))
    assert "kernelfarm.attention_saving.default" in names and WHOLE not in names

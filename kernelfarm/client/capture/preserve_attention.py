"""Keeps attention one operator in a captured graph, for every device and torch version.

By default, torch decomposes `scaled_dot_product_attention` while tracing: into the device's fused
kernel with the values that it saves for gradients, or into matrix products and a softmax. One model
would then need one program for each kind of device. Before AOT Autograd runs, this module replaces
Dynamo's calls by kernelfarm's own operators, which trace as one node
(`custom_operators.attention`); they call the framework, which chooses its kernel at run time.
Without gradients the operator is sent as `aten.scaled_dot_product_attention`.

A call is not replaced if it has dropout, if no fused kernel of any device takes its heads, or if
the model can observe the layout of the eager result on this device.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)

from kernelfarm.client.capture.grouped_heads import unrepeated_heads
from kernelfarm.client.custom_operators.attention import ATTENTION, ATTENTION_SAVING
from kernelfarm.client.pytorch.private import (
    _backend_from_string,
    _sdpa_kernel,
    statically_known_true,
)

_AXES = 4
_KERNEL_CHOICES: tuple[Any, ...] = (_sdpa_kernel, _backend_from_string)
"""The functions by which a Dynamo graph chooses attention's kernel (`torch.nn.attention`)."""


def preserve_attention(module: fx.GraphModule) -> None:
    """Replaces the attention calls of a Dynamo graph, in place."""
    if any(_chooses_kernels(node) for node in module.graph.nodes):
        return
    changed = False
    for node in module.graph.find_nodes(op="call_function", target=F.scaled_dot_product_attention):
        if _can_be_preserved(node):
            _preserve(node)
            changed = True
    if changed:
        module.recompile()


def _preserve(node: fx.Node) -> None:
    _, key, value = _first_three(node)
    sources = [unrepeated_heads(heads, node) for heads in (key, value)]
    node.target = attention
    heads = [example.shape[1] for source in sources if (example := _example(source)) is not None]
    if len(heads) == len(sources) and _is_same(*heads) and not node.kwargs.get("enable_gqa"):
        node.target = attention_of_groups
        node.args = (*sources, *node.args)


def attention_of_groups(
    few_keys: Tensor,
    few_values: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *rest: Any,
    **options: Any,
) -> Tensor:
    """The replacement where a model repeats heads: without gradients, they are not repeated."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value)):
        return attention(query, key, value, *rest, **options)
    return attention(query, few_keys, few_values, *rest, **{**options, "enable_gqa": True})


def attention(  # noqa: PLR0913, PLR0917 (the arguments of torch's function)
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The replacement in Dynamo's graph: calls kernelfarm's operator, or torch's own function."""
    tensors = (query, key, value, attn_mask)
    needs_gradients = torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in tensors
    )
    if needs_gradients and not enable_gqa and not _is_same(query.shape[1], key.shape[1]):
        # If heads broadcast, torch uses matrix products on all devices, which the farm can fuse.
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale
        )
    query, key, value, mask = (_as_autocast_has_it(tensor) for tensor in tensors)
    result: Tensor
    if needs_gradients:
        bias = _added_to_scores(mask, query.dtype)
        wants_bias = bias is not None and bias.requires_grad
        result, _ = ATTENTION_SAVING(
            query, key, value, bias, is_causal, scale, enable_gqa, wants_bias
        )
        return result
    result = ATTENTION(
        query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )
    return result


def _added_to_scores(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """The mask as an addend of the scores.

    A farm kernel computes it once for all layers and for both passes.
    """
    if mask is None or mask.dtype is not torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, -math.inf)


def _as_autocast_has_it(tensor: Any) -> Any:
    """The tensor in autocast's type: autocast lowers the precision of attention."""
    if tensor is None or not torch.is_autocast_enabled(tensor.device.type):
        return tensor
    is_lowered = tensor.is_floating_point() and tensor.dtype is not torch.float64
    return tensor.to(torch.get_autocast_dtype(tensor.device.type)) if is_lowered else tensor


def _chooses_kernels(node: fx.Node) -> bool:
    return any(node.target is choice for choice in _KERNEL_CHOICES)


def _can_be_preserved(node: fx.Node) -> bool:
    operands = [_example(arg) for arg in _first_three(node)]
    result = _example(node)
    if result is None or any(t is None or t.dim() != _AXES for t in operands):
        return False
    query, key, value = operands
    if _dropout(node) != 0 or not _is_same(query.shape[0], key.shape[0], value.shape[0]):
        return False
    _batch, heads, length, width = result.shape
    ours = (length * heads * width, width, heads * width, 1)
    is_ours = all(_is_same(a, b) for a, b in zip(result.stride(), ours, strict=True))
    return is_ours or all(_ignores_layout(user) for user in node.users)


def _first_three(node: fx.Node) -> list[Any]:
    named = [node.kwargs[name] for name in ("query", "key", "value") if name in node.kwargs]
    return [*node.args[:3], *named]


def _dropout(node: fx.Node) -> Any:
    index = 4
    return node.args[index] if len(node.args) > index else node.kwargs.get("dropout_p", 0.0)


def _example(arg: Any) -> Any:
    value = arg.meta.get("example_value") if isinstance(arg, fx.Node) else None
    return value if isinstance(value, Tensor) else None


def _is_same(first: Any, *others: Any) -> bool:
    return all(statically_known_true(first == other) for other in others)


def _ignores_layout(user: fx.Node) -> bool:
    """True if a use gives the same result for every layout of its operand: it copies rows."""
    if user.op != "call_method":
        return False
    if _is_copied_by_rows(user):
        return True
    if user.target == "reshape" and _keeps_the_shape(user):
        return all(_ignores_layout(later) for later in user.users)
    if user.target == "permute":
        return all(_is_copied_by_rows(later) for later in user.users)
    is_swap = user.target == "transpose" and set(user.args[1:]) in ({1, 2}, {-3, -2})
    return is_swap and all(
        later.op == "call_method"
        and (later.target in {"contiguous", "reshape"} or _joins_heads(later))
        for later in user.users
    )


def _joins_heads(user: fx.Node) -> bool:
    """True for `flatten(2)`: like a reshape, its result is contiguous for every layout."""
    if user.target != "flatten":
        return False
    stated = dict(zip(("start_dim", "end_dim"), user.args[1:], strict=False)) | user.kwargs
    return stated.get("start_dim") in {2, -2} and stated.get("end_dim", -1) in {3, -1}


def _is_copied_by_rows(user: fx.Node) -> bool:
    is_contiguous = user.op == "call_method" and user.target == "contiguous"
    return is_contiguous and len(user.args) == 1 and not user.kwargs


def _keeps_the_shape(user: fx.Node) -> bool:
    before, after = _example(user.args[0]), _example(user)
    return (
        before is not None
        and after is not None
        and before.dim() == after.dim()
        and all(_is_same(a, b) for a, b in zip(before.shape, after.shape, strict=True))
    )

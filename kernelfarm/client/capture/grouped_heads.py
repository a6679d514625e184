"""Finds keys and values of attention whose heads a model repeats for groups of query heads.

Models with grouped heads often repeat each head of keys and values for all query heads of its
group, because not every attention kernel takes fewer heads. The copy is as long as the cache times
the size of a group: for one token of 64 Llamas with 2,048 keys, it took half the time of a call on
an H100, and 10 to 28 times as long as attention itself on a CPU.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx

from kernelfarm.client.pytorch.private import OpOverload, statically_known_true
from kernelfarm.client.pytorch.private.operators import schema_of

_HEADS = 1
_COPIES = 2
"""The axis of heads, and the one that a model adds for copies of a head."""
_WRITERS = frozenset(
    {operator.setitem, operator.delitem}
    | {function for name, function in vars(operator).items() if name.startswith("__i")}
)
"""Functions of `operator` that may write into their first operand (`__iadd__`, and others)."""
_WHOLE = slice(None, None, None)
_ADDED_AXIS = (_WHOLE, _WHOLE, None, _WHOLE, _WHOLE)


def unrepeated_heads(node: Any, reader: fx.Node) -> fx.Node | None:
    """The tensor `(batch, heads, length, width)` whose heads a node repeats; None if it does not.

    It is also None if an operator between the node and its reader may write into a tensor, because
    the reader would then see other values.
    """
    if not isinstance(node, fx.Node) or _may_write_between(node, reader):
        return None
    return _interleaved(node) if _is_interleaving(node) else _expanded(node)


def _is_interleaving(node: fx.Node) -> bool:
    is_method = node.op == "call_method" and node.target == "repeat_interleave"
    return is_method or (node.op == "call_function" and node.target is torch.repeat_interleave)


def _interleaved(node: fx.Node) -> fx.Node | None:
    """The operand of `repeat_interleave(x, repeats, 1)`."""
    named: dict[str, Any] = dict(zip(("self", "repeats", "dim"), node.args, strict=False))
    named |= node.kwargs
    source = named.pop("self", named.pop("input", None))
    if set(named) != {"repeats", "dim"} or named["dim"] != _HEADS:
        return None
    has_axes = isinstance(source, fx.Node) and _shape(source) is not None
    return source if has_axes and isinstance(named["repeats"], int) else None


def _expanded(node: fx.Node) -> fx.Node | None:
    """The operand of `x[:, :, None, :, :].expand(...).reshape(...)`."""
    if not _calls(node, "reshape") or not _calls(node.args[0], "expand"):
        return None
    expanded: Any = node.args[0]
    added: Any = expanded.args[0]
    if not (_calls(added, "unsqueeze") and added.args[1:] == (_COPIES,)) and not _adds_axis(added):
        return None
    source: Any = added.args[0]
    shapes = [_shape(n) if isinstance(n, fx.Node) else None for n in (source, expanded, node)]
    before, copied, after = shapes
    if before is None or copied is None or after is None or len(copied) != len(before) + 1:
        return None
    batch, heads, *rest = before
    wanted = (batch, heads, copied[_COPIES], *rest)
    merged = (batch, heads * copied[_COPIES], *rest)
    return source if _are_same(copied, wanted) and _are_same(after, merged) else None


def _calls(node: Any, method: str) -> bool:
    return isinstance(node, fx.Node) and node.op == "call_method" and node.target == method


def _adds_axis(node: Any) -> bool:
    is_index = isinstance(node, fx.Node) and node.target is operator.getitem
    return is_index and node.args[1] == _ADDED_AXIS


def _shape(node: fx.Node) -> tuple[Any, ...] | None:
    value = node.meta.get("example_value")
    return tuple(value.shape) if isinstance(value, Tensor) else None


def _are_same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return len(one) == len(other) and all(
        statically_known_true(a == b) for a, b in zip(one, other, strict=True)
    )


def _may_write_between(node: fx.Node, reader: fx.Node) -> bool:
    while (node := node.next) is not reader:
        if node.op == "root" or _may_write(node):
            return True
    return False


def _may_write(node: fx.Node) -> bool:
    """True unless a node is known to write into none of its operands."""
    if node.op in {"placeholder", "get_attr", "output"}:
        return False
    if "out" in node.kwargs or node.op == "call_module":
        return True
    if isinstance(node.target, OpOverload):
        return bool(schema_of(node.target).is_mutable)
    if node.target in _WRITERS:
        return True
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "_")
    return name.endswith("_")

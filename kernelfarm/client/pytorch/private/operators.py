"""PyTorch's operators: schemas, names, decompositions, and oneDNN's with packed weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from kernelfarm.client.pytorch.private import _has_mkldnn

if TYPE_CHECKING:
    from kernelfarm.client.pytorch.private import OpOverload


class PackedOperators(NamedTuple):
    """oneDNN's operators that take packed weights, and those that pack them.

    `convolution_sum` adds another image to the result of a convolution. `types` are the element
    types that this processor computes with.
    """

    convolution: OpOverload
    convolution_sum: OpOverload
    linear: OpOverload
    pack_convolution: OpOverload
    pack_linear: OpOverload
    types: frozenset[torch.dtype]


def packed_operators() -> PackedOperators | None:
    """oneDNN's operators with packed weights; None if PyTorch lacks oneDNN or must not use it."""
    if not (_has_mkldnn and torch.backends.mkldnn.enabled):
        return None
    has_bf16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return PackedOperators(
        torch.ops.mkldnn._convolution_pointwise.default,
        torch.ops.mkldnn._convolution_pointwise.binary,
        torch.ops.mkldnn._linear_pointwise.default,
        torch.ops.mkldnn._reorder_convolution_weight.default,
        torch.ops.mkldnn._reorder_linear_weight.default,
        frozenset({torch.float32, torch.bfloat16} if has_bf16 else {torch.float32}),
    )


def overwriting_form(operator: object) -> OpOverload | None:
    """The operator that stores in its first tensor what another one adds to a copy of its second.

    oneDNN's convolutions with packed weights have such a form. None: PyTorch has none.
    """
    if str(operator) != "mkldnn._convolution_pointwise.binary":
        return None
    found: OpOverload = torch.ops.mkldnn._convolution_pointwise_.binary
    return found


def schema_of(operator: OpOverload) -> torch.FunctionSchema:
    """An operator's schema: its name, arguments, returns, and which of them alias."""
    return operator._schema


def overload_name(operator: OpOverload) -> str:
    """An operator's name for the dispatcher, such as `aten::add.Tensor`."""
    schema = operator._schema
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name


def is_composite(operator: OpOverload) -> bool:
    """True if torch decomposes the operator in the same way for every device."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(
        overload_name(operator), "CompositeImplicitAutograd"
    )


def can_decompose(operator: OpOverload) -> bool:
    """True if torch has a decomposition that autograd uses, in C++ or in Python."""
    return operator.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)

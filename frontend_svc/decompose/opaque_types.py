"""Nodes with element types that no kernel computes in; the framework runs them."""

from __future__ import annotations

from collections.abc import Iterable

from kernelfarm.ir.graph_ir import Node, TensorType

_COMPLEX = "complex numbers: the framework computes them"


def opaque_reason(node: Node, operands: Iterable[TensorType]) -> str | None:
    """Why the framework runs a node, if it has an opaque operand or result; else None.

    This is checked before an operator decomposes, so decompositions receive no opaque tensor.
    """
    types = (*operands, *node.types)
    opaque = next((tensor.dtype for tensor in types if tensor.dtype.is_opaque), None)
    if opaque is None:
        return _COMPLEX if _has_complex_number(node) else None
    if opaque.is_complex:
        return _COMPLEX
    return f"elements of {opaque.value}: the framework computes them"


def _has_complex_number(node: Node) -> bool:
    args = (*node.args, *(value for _, value in node.attrs))
    return any(isinstance(arg, complex) for arg in args)

"""Graphs of cats, and inputs for them."""

from __future__ import annotations

from kernelfarm.ir.algebra.expr import Expr
from tests.support.prims_graphs import Maker, tensor_with_strides

FEW, MANY = 8, 20


def inputs_of(make: Maker, count: int, *shape: int | Expr) -> list[int]:
    return [make.add_input(tensor_with_strides(*shape)) for _ in range(count)]

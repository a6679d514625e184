"""A graph of one prim, and inputs with ties and NaN."""

from __future__ import annotations

import torch

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import as_expr
from kernelfarm.ir.builder import GraphBuilder
from kernelfarm.ir.graph_ir import Arg, Graph, Ref, TensorType, contiguous_strides

TORCH_TO_DTYPE = {torch.float32: DType.F32, torch.int64: DType.I64, torch.bool: DType.BOOL}

X = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4) * 1.25 - 11

WITH_NAN = X.clone()

WITH_NAN[0, 1, 2] = torch.nan

WITH_NAN[1, 2, 3] = torch.nan

TIES = torch.tensor([[3, 7, 7, 1], [5, 5, 5, 5], [1, 1, 0, 0]], dtype=torch.int64)


def graph_of(op: str, inputs: list[torch.Tensor], attrs: dict[str, Arg]) -> Graph:
    builder = GraphBuilder()
    values = []
    for x in inputs:
        shape = tuple(as_expr(n) for n in x.shape)
        strides = contiguous_strides(shape)
        values.append(builder.add_input(TensorType(TORCH_TO_DTYPE[x.dtype], shape, strides)))
    result = builder.add(op, *values, **attrs)
    return builder.build([Ref(result)], [builder.type_of(result)])

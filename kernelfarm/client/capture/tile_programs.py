"""Tile programs on processors in a traced module: the client's operator becomes a user's kernel."""

from __future__ import annotations

import ast
from typing import Any

import torch
from torch import fx

from kernelfarm.client.capture.captured import UnsupportedGraphError
from kernelfarm.client.capture.graph_values import GraphValues
from kernelfarm.client.capture.user_kernels import (
    UserKernelCall,
    has_no_content,
    integer_param,
    plain_value,
)
from kernelfarm.client.pytorch.dtypes import dtype_from_torch
from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.graph_ir import Arg
from kernelfarm.ir.triton.check_kernel import check_user_kernel
from kernelfarm.ir.triton.node import kernel_arg
from kernelfarm.ir.triton.user_kernel import Pointer, Scalar, UserKernel, UserParam


def tile_program_call(node: fx.Node, values: GraphValues) -> UserKernelCall:
    """The parts of the graph's node for the operator; its results are named by their numbers.

    Raises:
        UnsupportedGraphError: the operator's source is no function of its tensors and sizes.
        UserKernelError: the kernel is outside of the language.
    """
    tensors, sizes, grid, source, written = (_list(arg) for arg in node.args)
    entry, names = _function_of(source)
    given = [*tensors, *sizes]
    if len(names) != len(given):
        raise UnsupportedGraphError(
            f"a tile program of {len(names)} parameters with {len(given)} arguments"
        )
    params = [_param(name, arg, values) for name, arg in zip(names, given, strict=True)]
    kernel = UserKernel("kernel", source, entry, tuple(params), ())
    check_user_kernel(kernel)
    positions = [n for n, param in enumerate(params) if isinstance(param, Pointer | Scalar)]
    attrs: tuple[tuple[str, Arg], ...] = (
        ("grids", (values.args(tuple(grid)),)),
        ("kernel", kernel_arg(kernel, ())),
        ("key", ()),
        ("writes", tuple(positions.index(position) for position in written)),
    )
    args = tuple(
        None if n in written and has_no_content(given[n]) else values.arg(given[n])
        for n in positions
    )
    return UserKernelCall(args, attrs, tuple(str(n) for n in range(len(written))))


def _list(arg: Any) -> Any:
    return list(arg) if isinstance(arg, list | tuple) else arg


def _function_of(source: str) -> tuple[str, list[str]]:
    """The name and the parameters of a source's only function; nothing is executed."""
    body = ast.parse(source).body
    if len(body) != 1 or not isinstance(body[0], ast.FunctionDef):
        raise UnsupportedGraphError("a tile program whose source is not one function")
    return body[0].name, [param.arg for param in body[0].args.args]


def _param(name: str, arg: Any, values: GraphValues) -> UserParam:
    value = plain_value(arg)
    if isinstance(value, torch.Tensor):
        return Pointer(name, dtype_from_torch(value.dtype))
    if isinstance(value, torch.SymInt):
        size = values.sizes.read(value)
        value = size.as_int() if size.is_constant else size
    if isinstance(value, Expr):
        return Scalar(name, DType.I64)
    return integer_param(name, int(value), is_specialized=True)

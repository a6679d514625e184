"""Users' Triton kernels in a traced module: PyTorch's wrapper operator becomes a node of the graph.

The wrapper names the kernel by a number of this process. The node has the kernel's source instead,
the types of its parameters, the grid, and which tensors the kernel changes, as PyTorch's
functionalization found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from kernelfarm.client.capture.captured import UnsupportedGraphError
from kernelfarm.client.capture.graph_values import GraphValues
from kernelfarm.client.pytorch.dtypes import dtype_from_torch
from kernelfarm.client.pytorch.private import kernel_side_table
from kernelfarm.client.triton.kernel_source import KernelSource, jit_function, kernel_source
from kernelfarm.client.triton.signatures import constant_value
from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.graph_ir import Arg
from kernelfarm.ir.triton.check_kernel import OPTIONS, check_user_kernel
from kernelfarm.ir.triton.node import kernel_arg
from kernelfarm.ir.triton.user_kernel import FixedParam, Pointer, Scalar, UserKernel, UserParam

_EMPTY = ("empty.", "empty_like.", "empty_strided.", "empty_permuted.", "new_empty")
_DIVISOR = 16
_SCALARS: Mapping[type, DType] = {bool: DType.BOOL, float: DType.F32, Expr: DType.I64}
"""The types of numbers, as Triton passes them; a varying size may be large."""
_INT32 = range(-(1 << 31), 1 << 31)


@dataclass(frozen=True, slots=True)
class UserKernelCall:
    """The arguments and attributes of a node, and the names of the tensors that are its results."""

    args: tuple[Arg, ...]
    attrs: tuple[tuple[str, Arg], ...]
    changed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Stated:
    """What a call states for the kernel: values by parameter, the grid, options, and constants."""

    values: Mapping[str, Any]
    constants: Mapping[str, Any]
    grid: Sequence[Any]
    options: Mapping[str, int]
    configurations: int


def user_kernel_call(node: fx.Node, values: GraphValues) -> UserKernelCall:
    """The parts of the graph's node for a wrapper operator.

    Raises:
        UnsupportedGraphError: the call uses what cannot travel; the message says what.
        UserKernelError: the kernel is outside of the language.
    """
    stated: Any = node.kwargs
    if stated["tma_descriptor_metadata"]:
        raise UnsupportedGraphError(
            "a Triton kernel with tensor descriptors of the host; expected pointers, or"
            " tl.make_tensor_descriptor in the kernel"
        )
    kernel = kernel_side_table.get_kernel(stated["kernel_idx"])
    constants = kernel_side_table.get_constant_args(stated["constant_args_idx"])
    source = kernel_source(kernel)
    call = _stated(kernel, stated["kwargs"], constants, stated["grid"])
    params = tuple(_param(source, name, call, values, kernel) for name in source.params)
    options = tuple(sorted(call.options.items()))
    found = UserKernel("kernel", source.text, source.entry, params, options)
    check_user_kernel(found)
    launched = [param.name for param in found.launched]
    changed = tuple(name for name in stated["tensors_to_clone"] if name in launched)
    attrs: tuple[tuple[str, Arg], ...] = (
        ("configurations", call.configurations),
        ("grid", values.args(call.grid)),
        ("kernel", kernel_arg(found)),
        ("writes", tuple(launched.index(name) for name in changed)),
    )
    args = tuple(
        None
        if param.name in changed and _has_no_content(call.values[param.name])
        else _argument(param, call, values)
        for param in found.launched
    )
    return UserKernelCall(args, attrs, changed)


def _has_no_content(value: Any) -> bool:
    """True for memory that was allocated and not written: the launch gets memory of its own."""
    return isinstance(value, fx.Node) and str(value.target).partition(".")[2].startswith(_EMPTY)


def _stated(
    kernel: Any, tensors: Mapping[str, Any], constants: Mapping[str, Any], grids: Sequence[Any]
) -> _Stated:
    configs = getattr(kernel, "configs", None) or [None]
    grid = grids[0]
    if callable(grid) or len(grids) not in (1, len(configs)):
        raise UnsupportedGraphError("a Triton kernel whose grid is a function; expected integers")
    config = configs[0]
    own = dict(config.kwargs) if config is not None else {}
    options = {
        name: value
        for name in OPTIONS
        if (value := getattr(config, name, None)) is not None and not isinstance(value, bool)
    }
    return _Stated(tensors, {**constants, **own}, grid, options, len(configs))


def _param(
    source: KernelSource, name: str, call: _Stated, values: GraphValues, kernel: Any
) -> UserParam:
    value = _value_of(source, name, call)
    if name in source.constexprs:
        return FixedParam(name, constant_value(value, name))
    plain = _plain(value)
    if isinstance(plain, torch.SymInt):
        size = values.sizes.read(plain)
        plain = size.as_int() if size.is_constant else size
    match plain:
        case torch.Tensor():
            return Pointer(name, dtype_from_torch(plain.dtype))
        case bool() | float() | Expr():
            return Scalar(name, _SCALARS[type(plain)])
        case int():
            return _integer(name, plain, is_specialized=_is_specialized(kernel, name))
        case _:
            return FixedParam(name, constant_value(plain, name))


def _integer(name: str, value: int, *, is_specialized: bool) -> UserParam:
    """The parameter for an integer, as Triton specializes it: 1 is a constant."""
    if is_specialized and value == 1:
        return FixedParam(name, 1)
    dtype = DType.I32 if value in _INT32 else DType.I64
    is_multiple = is_specialized and value % _DIVISOR == 0
    return Scalar(name, dtype, _DIVISOR if is_multiple else 1)


def _is_specialized(kernel: Any, name: str) -> bool:
    param = next(param for param in jit_function(kernel).params if param.name == name)
    return not param.do_not_specialize


def _value_of(source: KernelSource, name: str, call: _Stated) -> Any:
    for stated in (call.values, call.constants, source.defaults):
        if name in stated:
            return stated[name]
    raise UnsupportedGraphError(f"a Triton kernel without its argument {name}; expected a value")


def _plain(value: Any) -> Any:
    """The value that a traced node stands for."""
    return value.meta.get("val") if isinstance(value, fx.Node) else value


def _argument(param: Pointer | Scalar, call: _Stated, values: GraphValues) -> Arg:
    value = call.values[param.name] if param.name in call.values else call.constants[param.name]
    found = values.arg(value)
    return float(found) if isinstance(found, int) and param.dtype is DType.F32 else found

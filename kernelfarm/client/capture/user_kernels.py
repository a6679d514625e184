"""Users' Triton kernels in a traced module: PyTorch's wrapper operator becomes a node of the graph.

The wrapper names the kernel by a number of this process. The node has the kernel's source instead,
the types of its parameters, the grid, and which tensors the kernel changes, as PyTorch's
functionalization found.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from kernelfarm.client.capture.captured import UnsupportedGraphError
from kernelfarm.client.capture.graph_values import GraphValues
from kernelfarm.client.pytorch.dtypes import dtype_from_torch
from kernelfarm.client.pytorch.private import kernel_side_table
from kernelfarm.client.triton.configurations import configurations_of
from kernelfarm.client.triton.kernel_source import KernelSource, jit_function, kernel_source
from kernelfarm.client.triton.signatures import constant_value
from kernelfarm.dtypes import DType
from kernelfarm.errors import UserKernelError
from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.graph_ir import Arg
from kernelfarm.ir.triton.check_kernel import check_user_kernel
from kernelfarm.ir.triton.node import kernel_arg
from kernelfarm.ir.triton.user_kernel import (
    Configuration,
    FixedParam,
    Pointer,
    Scalar,
    UserKernel,
    UserParam,
)

_log = logging.getLogger("kernelfarm.client")

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
    """What a call states for one configuration: values by parameter, its grid, and its options.

    `tuned` are the values that configurations vary; they are constants.
    """

    values: Mapping[str, Any]
    constants: Mapping[str, Any]
    tuned: Mapping[str, Any]
    grid: Sequence[Any]
    options: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Configured:
    """A kernel as one configuration compiles it, and the grid of its launches."""

    kernel: UserKernel
    grid: Arg

    def configuration(self, tuned: frozenset[str]) -> Configuration:
        """What distinguishes it from others; `tuned` are the constants that they vary."""
        constants = (param for param in self.kernel.params if isinstance(param, FixedParam))
        varied = tuple((param.name, param.value) for param in constants if param.name in tuned)
        return Configuration(varied, self.kernel.options)


def user_kernel_call(node: fx.Node, values: GraphValues) -> UserKernelCall:
    """The parts of the graph's node for a wrapper operator.

    Raises:
        UnsupportedGraphError: the call uses what cannot travel; the message says what.
        UserKernelError: the kernel is outside of the language, or has too many configurations.
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
    calls = _stated(kernel, source, (stated["kwargs"], constants), stated["grid"])
    configured = _accepted([_configured(source, call, values, kernel) for call in calls])
    first, call = configured[0].kernel, calls[0]
    further = [found.configuration(frozenset(call.tuned)) for found in configured[1:]]
    launched = [param.name for param in first.launched]
    changed = tuple(name for name in stated["tensors_to_clone"] if name in launched)
    attrs: tuple[tuple[str, Arg], ...] = (
        ("grids", tuple(found.grid for found in configured)),
        ("kernel", kernel_arg(first, further)),
        ("key", _key(kernel, first)),
        ("writes", tuple(launched.index(name) for name in changed)),
    )
    args = tuple(
        None
        if param.name in changed and has_no_content(call.values[param.name])
        else _argument(param, call, values)
        for param in first.launched
    )
    return UserKernelCall(args, attrs, changed)


def _accepted(found: Sequence[_Configured]) -> tuple[_Configured, ...]:
    """The distinct configurations that the farm accepts, in order.

    Raises:
        UserKernelError: it accepts none.
    """
    distinct: dict[str, _Configured] = {}
    for one in found:
        # By text, because a dictionary takes 1, 1.0 and True for one value, and Triton does not.
        distinct.setdefault(repr((one.kernel.params, one.kernel.options)), one)
    accepted, error = [], None
    for one in distinct.values():
        try:
            check_user_kernel(one.kernel)
        except UserKernelError as refused:
            error = error or refused
            _log.warning("kernelfarm: a configuration is left out of the choice: %s", refused)
        else:
            accepted.append(one)
    if error is not None and not accepted:
        raise error
    return tuple(accepted)


def _key(kernel: Any, found: UserKernel) -> tuple[int, ...]:
    """The positions of the numbers for which autotuning chooses anew.

    PyTorch drops the key of a kernel whose configurations it prunes or completes by heuristics. So
    without a key it is every number of the launch.
    """
    names = getattr(kernel, "keys", None) or [scalar.name for scalar in found.scalars]
    return tuple(
        number
        for number, param in enumerate(found.launched)
        if isinstance(param, Scalar) and param.name in names
    )


def has_no_content(value: Any) -> bool:
    """True for memory that was allocated and not written: the launch gets memory of its own."""
    return isinstance(value, fx.Node) and str(value.target).partition(".")[2].startswith(_EMPTY)


def _stated(
    kernel: Any,
    source: KernelSource,
    given: tuple[Mapping[str, Any], Mapping[str, Any]],
    grids: Sequence[Any],
) -> tuple[_Stated, ...]:
    """What a call states, for each configuration; `given` are its values and its constants."""
    configs = configurations_of(kernel, source)
    if any(map(callable, grids)) or len(grids) not in (1, len(configs)):
        raise UnsupportedGraphError("a Triton kernel whose grid is a function; expected integers")
    names = {name for constants, _ in configs for name in constants}
    values, constants = given
    found = []
    for number, (own, options) in enumerate(configs):
        known = {**source.defaults, **constants, **values, **own}
        tuned = {name: known[name] for name in names if name in known}
        grid = grids[number] if len(grids) > 1 else grids[0]
        found.append(_Stated(values, constants, tuned, grid, options))
    return tuple(found)


def _configured(
    source: KernelSource, call: _Stated, values: GraphValues, kernel: Any
) -> _Configured:
    params = tuple(_param(source, name, call, values, kernel) for name in source.params)
    options = tuple(sorted(call.options.items()))
    found = UserKernel("kernel", source.text, source.entry, params, options)
    return _Configured(found, values.args(call.grid))


def _param(
    source: KernelSource, name: str, call: _Stated, values: GraphValues, kernel: Any
) -> UserParam:
    value = _value_of(source, name, call)
    if name in source.constexprs or name in call.tuned:
        return FixedParam(name, constant_value(value, name))
    plain = plain_value(value)
    if isinstance(plain, torch.SymInt):
        size = values.sizes.read(plain)
        plain = size.as_int() if size.is_constant else size
    match plain:
        case torch.Tensor():
            return Pointer(name, dtype_from_torch(plain.dtype))
        case bool() | float() | Expr():
            return Scalar(name, _SCALARS[type(plain)])
        case int():
            return integer_param(name, plain, is_specialized=_is_specialized(kernel, name))
        case _:
            return FixedParam(name, constant_value(plain, name))


def integer_param(name: str, value: int, *, is_specialized: bool) -> UserParam:
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
    for stated in (call.tuned, call.values, call.constants, source.defaults):
        if name in stated:
            return stated[name]
    raise UnsupportedGraphError(f"a Triton kernel without its argument {name}; expected a value")


def plain_value(value: Any) -> Any:
    """The value that a traced node stands for."""
    return value.meta.get("val") if isinstance(value, fx.Node) else value


def _argument(param: Pointer | Scalar, call: _Stated, values: GraphValues) -> Arg:
    value = call.values[param.name] if param.name in call.values else call.constants[param.name]
    found = values.arg(value)
    return float(found) if isinstance(found, int) and param.dtype is DType.F32 else found

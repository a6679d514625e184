"""The rules of users' kernels: parameters, constants and options must fit the source."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kernelfarm.dtypes import DType
from kernelfarm.errors import UserKernelError
from kernelfarm.ir.triton.bounds import MAX_PARAMS
from kernelfarm.ir.triton.check_source import SourceFunction, check_source
from kernelfarm.ir.triton.literals import check_constant
from kernelfarm.ir.triton.user_kernel import (
    TEMPLATES,
    FixedParam,
    Pointer,
    UserKernel,
    UserParam,
    Value,
)

SCALAR_DTYPES = frozenset(
    {
        *(DType.BOOL, DType.I8, DType.I16, DType.I32, DType.I64),
        *(DType.U8, DType.U16, DType.U32, DType.U64, DType.F32, DType.F64),
    }
)
"""The types of numbers that a launch passes."""

OPTIONS: Mapping[str, range] = {
    "allow_flush_denorm": range(2),
    "kpack": range(1, 3),
    "matrix_instr_nonkdim": range(33),
    "maxnreg": range(1, 256),
    "num_ctas": range(1, 2),
    "num_stages": range(17),
    "num_warps": range(1, 33),
    "waves_per_eu": range(17),
}
"""Triton's options for a compilation, and their values; some are of one vendor only."""

MAX_ITEMS = 64
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
_DIVISORS = (1, 16)


def check_user_kernel(kernel: UserKernel) -> None:
    """Passes a kernel whose source is in the closed language and whose parameters fit it.

    Raises:
        UserKernelError: names the parameter or line, what was seen and what was expected.
    """
    if not _NAME.fullmatch(kernel.name):
        raise UserKernelError(f"kernel name {kernel.name[:60]!r}; expected an identifier")
    try:
        function = check_source(kernel.source).function(kernel.entry)
        _check_params(kernel, function)
        _check_options(kernel)
        _check_template(kernel)
    except UserKernelError as error:
        raise UserKernelError(f"user kernel {kernel.entry[:60]}: {error}") from error


def _check_params(kernel: UserKernel, function: SourceFunction) -> None:
    names = tuple(param.name for param in kernel.params)
    if names != function.params or len(names) > MAX_PARAMS:
        raise UserKernelError(
            f"parameters {', '.join(names)[:200]}; expected those of the function:"
            f" {', '.join(function.params)[:200]}"
        )
    for param in kernel.params:
        _check_param(param, is_constexpr=param.name in function.constexprs)
    if not kernel.pointers:
        raise UserKernelError("no parameter is a pointer; expected one to store results")


def _check_param(param: UserParam, *, is_constexpr: bool) -> None:
    where = f"parameter {param.name[:60]}"
    if isinstance(param, FixedParam):
        check_value(param.value, where)
        return
    if is_constexpr:
        raise UserKernelError(f"{where} is tl.constexpr and has no value; expected a constant")
    if isinstance(param, Pointer):
        if param.dtype.is_complex or param.dtype is DType.F8E8M0FNU:
            raise UserKernelError(
                f"{where} points to {param.dtype.value}; expected a type that Triton has"
            )
        return
    if param.dtype not in SCALAR_DTYPES:
        known = ", ".join(sorted(dtype.value for dtype in SCALAR_DTYPES))
        raise UserKernelError(f"{where} of {param.dtype.value}; expected one of {known}")
    if param.divisor not in _DIVISORS:
        raise UserKernelError(f"{where}: divisor {param.divisor}; expected one of {_DIVISORS}")


def _check_template(kernel: UserKernel) -> None:
    if kernel.template and kernel.template not in TEMPLATES:
        raise UserKernelError(
            f"template {kernel.template[:60]!r}; expected none or one of"
            f" {', '.join(sorted(TEMPLATES))}"
        )


def check_value(value: Value, where: str, depth: int = 2) -> None:
    """Passes the value of a constant.

    Raises:
        UserKernelError: its type or size is none of a kernel's.
    """
    if isinstance(value, DType):
        if value.is_complex:
            raise UserKernelError(f"{where} is {value.value}; expected a type that Triton has")
        return
    if isinstance(value, tuple):
        if depth == 0 or len(value) > MAX_ITEMS:
            raise UserKernelError(f"{where}: a tuple of {len(value)} items; expected a short one")
        for item in value:
            check_value(item, where, depth - 1)
        return
    try:
        check_constant(value)
    except UserKernelError as error:
        raise UserKernelError(f"{where}: {error}") from error


def _check_options(kernel: UserKernel) -> None:
    names = [name for name, _ in kernel.options]
    if len(set(names)) != len(names):
        raise UserKernelError(f"options {', '.join(names)[:200]}; expected each once")
    for name, value in kernel.options:
        allowed = OPTIONS.get(name)
        if allowed is None:
            raise UserKernelError(f"option {name[:60]!r}; expected one of {', '.join(OPTIONS)}")
        is_power = name != "num_warps" or value & (value - 1) == 0
        if value not in allowed or not is_power:
            raise UserKernelError(
                f"{name} of {value}; expected {allowed.start} to {allowed.stop - 1}"
                f"{', a power of two' if name == 'num_warps' else ''}"
            )

"""The canonical text of a user's kernel, over which digests are taken; and its readable text."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from kernelfarm.dtypes import DType
from kernelfarm.ir.triton.user_kernel import FixedParam, Pointer, UserKernel, UserParam, Value

USER_KERNEL_ENCODING = "kernelfarm-user-kernel-1"


def encode_user_kernel(kernel: UserKernel) -> str:
    """The encoding of a kernel, without its name; injective like that of graphs."""
    lines = [
        USER_KERNEL_ENCODING,
        f"entry {_text(kernel.entry)}",
        *(_param(param) for param in kernel.params),
        *(f"option {_text(name)} {value}" for name, value in sorted(kernel.options)),
        *([f"template {_text(kernel.template)}"] if kernel.template else []),
        f"source {_text(kernel.source)}",
    ]
    return "\n".join(lines)


def print_user_kernel(kernel: UserKernel) -> str:
    """The kernel as text for people: a line for each parameter and option, then the source."""
    source = (f"  {line}".rstrip() for line in kernel.source.splitlines())
    return "\n".join((print_head(kernel), *source)) + "\n"


def print_head(kernel: UserKernel) -> str:
    """The lines before the source in a kernel's text: name, parameters and options."""
    lines = [f"user kernel {kernel.name}, function {kernel.entry}"]
    lines.extend(_shown(param) for param in kernel.params)
    lines.extend(f"option {name} = {value}" for name, value in kernel.options)
    if kernel.template:
        lines.append(f"template {kernel.template}, where buffers are aligned")
    return "\n".join(lines)


def _shown(param: UserParam) -> str:
    if isinstance(param, FixedParam):
        return f"constant {param.name} = {param.value!r}"
    if isinstance(param, Pointer):
        return f"pointer {param.name}: {param.dtype.value}"
    by = f", a multiple of {param.divisor}" if param.divisor > 1 else ""
    return f"scalar {param.name}: {param.dtype.value}{by}"


def _param(param: UserParam) -> str:
    if isinstance(param, FixedParam):
        return f"fixed {_text(param.name)} {_value(param.value)}"
    if isinstance(param, Pointer):
        return f"pointer {_text(param.name)} {param.dtype.value}"
    return f"scalar {_text(param.name)} {param.dtype.value} {param.divisor}"


def _value(value: Value) -> str:
    return _VALUES[type(value)](value)


def _float(value: float) -> str:
    # All NaN have one encoding: Triton makes one constant of them.
    return "fnan" if math.isnan(value) else f"f{value.hex()}"


def _text(value: str) -> str:
    return f"{len(value)}:{value}"


_VALUES: Mapping[type, Callable[[Any], str]] = {
    type(None): lambda value: "none",
    bool: lambda value: "true" if value else "false",
    int: lambda value: f"i{value}",
    float: _float,
    str: lambda value: f"t{_text(value)}",
    DType: lambda value: f"d{value.value}",
    tuple: lambda value: f"[{','.join(map(_value, value))}]",
}

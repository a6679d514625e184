"""Parameters of a Triton kernel, as users state them: types as Triton names them, and constants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kernelfarm.client.triton.kernel_source import KernelSource, language_path
from kernelfarm.digest import named_user_kernel
from kernelfarm.dtypes import DType
from kernelfarm.errors import UserKernelError
from kernelfarm.ir.triton.check_kernel import check_user_kernel
from kernelfarm.ir.triton.user_kernel import (
    FixedParam,
    Pointer,
    Scalar,
    UserKernel,
    UserParam,
    Value,
)

TYPES: Final[Mapping[str, DType]] = {
    "fp64": DType.F64,
    "fp32": DType.F32,
    "fp16": DType.F16,
    "bf16": DType.BF16,
    "fp8e4nv": DType.F8E4M3FN,
    "fp8e5": DType.F8E5M2,
    "fp8e4b8": DType.F8E4M3FNUZ,
    "fp8e5b16": DType.F8E5M2FNUZ,
    "i64": DType.I64,
    "i32": DType.I32,
    "i16": DType.I16,
    "i8": DType.I8,
    "u64": DType.U64,
    "u32": DType.U32,
    "u16": DType.U16,
    "u8": DType.U8,
    "i1": DType.BOOL,
}
"""Triton's names of element types."""

LANGUAGE_TYPES: Final[Mapping[str, DType]] = {
    "float64": DType.F64,
    "float32": DType.F32,
    "float16": DType.F16,
    "bfloat16": DType.BF16,
    "float8e4nv": DType.F8E4M3FN,
    "float8e5": DType.F8E5M2,
    "float8e4b8": DType.F8E4M3FNUZ,
    "float8e5b16": DType.F8E5M2FNUZ,
    "int64": DType.I64,
    "int32": DType.I32,
    "int16": DType.I16,
    "int8": DType.I8,
    "uint64": DType.U64,
    "uint32": DType.U32,
    "uint16": DType.U16,
    "uint8": DType.U8,
    "int1": DType.BOOL,
}
"""Element types by their names in `triton.language`."""

_CONSTANT = "constexpr"


def user_kernel(
    source: KernelSource,
    signature: Mapping[str, str],
    constants: Mapping[str, Any],
    options: Mapping[str, int],
) -> UserKernel:
    """The kernel of a source with the types of its parameters.

    A type is `*fp16` for a pointer, or `i32`; `i32:16` is a multiple of 16. Parameters that are
    `tl.constexpr`, and others with a value in `constants`, are constants; a default is used if the
    function states one.

    Raises:
        UserKernelError: a parameter has neither type nor value, or a name is none of the function.
    """
    unknown = sorted((signature.keys() | constants.keys()) - set(source.params))
    if unknown:
        raise UserKernelError(
            f"{source.entry} has no parameter {unknown[0]!r}; expected some of"
            f" {', '.join(source.params)}"
        )
    params = tuple(_param(source, name, signature, constants) for name in source.params)
    stated = tuple(sorted(options.items()))
    kernel = UserKernel("kernel", source.text, source.entry, params, stated)
    check_user_kernel(kernel)
    return named_user_kernel(kernel)


def _param(
    source: KernelSource, name: str, signature: Mapping[str, str], constants: Mapping[str, Any]
) -> UserParam:
    if name in constants:
        return FixedParam(name, constant_value(constants[name], name))
    stated = signature.get(name, _CONSTANT)
    if stated != _CONSTANT:
        return typed_param(name, stated)
    if name in source.defaults:
        return FixedParam(name, constant_value(source.defaults[name], name))
    raise UserKernelError(
        f"parameter {name} of {source.entry} has no type and no value; expected a type such as"
        " '*fp32' or 'i32' in the signature, or a value in the constants"
    )


def typed_param(name: str, text: str) -> Pointer | Scalar:
    """The parameter of a stated type.

    Raises:
        UserKernelError: Triton has no such type.
    """
    stem, _, divisor = text.strip().partition(":")
    is_pointer = stem.startswith("*")
    dtype = TYPES.get(stem.removeprefix("*").removeprefix("k"))
    if dtype is None or divisor not in ("", "16"):
        raise UserKernelError(
            f"parameter {name}: type {text!r}; expected *TYPE for a pointer, TYPE or TYPE:16, with"
            f" one of {', '.join(TYPES)}"
        )
    if is_pointer:
        return Pointer(name, dtype)
    return Scalar(name, dtype, int(divisor or 1))


def constant_value(value: Any, name: str) -> Value:
    """A constant as it travels.

    Raises:
        UserKernelError: it is no plain value.
    """
    if type(value).__name__ == _CONSTANT:
        value = value.value
    if value is None or isinstance(value, bool | int | float | str | DType):
        return value
    if isinstance(value, tuple | list):
        return tuple(constant_value(item, name) for item in value)
    path = language_path(value)
    dtype = LANGUAGE_TYPES.get(path.rpartition(".")[2]) if path else None
    if dtype is None:
        raise UserKernelError(
            f"constant {name} is a {type(value).__name__}; expected a number, text, None, an"
            " element type of Triton, or a tuple of these"
        )
    return dtype


def stated_signature(source: KernelSource, text: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Types and constants of a text as `triton.tools.compile` takes it: `*fp32, i32:16, 1024`.

    It has one entry for each parameter in order, then entries with names (`BLOCK=1024`). Missing
    ones have their defaults, or get values from the configurations of an autotuned kernel.

    Raises:
        UserKernelError: there are more entries than parameters.
    """
    stated = [entry.strip() for entry in text.split(",") if entry.strip()]
    entries = [entry for entry in stated if "=" not in entry]
    named = [entry.partition("=") for entry in stated if "=" in entry]
    if len(entries) > len(source.params):
        raise UserKernelError(
            f"a signature of {len(entries)} entries; {source.entry} has {len(source.params)}"
            f" parameters: {', '.join(source.params)}"
        )
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    by_name = ((name.strip(), entry.strip()) for name, _, entry in named)
    for name, entry in (*zip(source.params, entries, strict=False), *by_name):
        stem = entry.partition(":")[0].removeprefix("*")
        if stem.removeprefix("k") in TYPES:
            signature[name] = entry
        else:
            constants[name] = _literal(entry)
    return signature, constants


def _literal(text: str) -> Value:
    """The value of an entry: an integer, a float, True, False, None, an element type, or text."""
    words: Mapping[str, Value] = {"True": True, "False": False, "None": None}
    if text in words:
        return words[text]
    if text.removeprefix("tl.") in LANGUAGE_TYPES:
        return LANGUAGE_TYPES[text.removeprefix("tl.")]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.strip("'\"")

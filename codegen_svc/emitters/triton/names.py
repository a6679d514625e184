"""Names, types and comments in Triton source.

A kernel arrives over the network and its text is compiled as Python. Therefore every name must
match a strict pattern, and every comment is reduced to printable characters.
"""

from __future__ import annotations

import keyword
import re

from kernelfarm.dtypes import DType
from kernelfarm.errors import KernelRejectedError
from kernelfarm.ir.loop_ir import (
    Compute,
    IndexValue,
    Indirect,
    Kernel,
    Literal,
    Load,
    Reduce,
    Scan,
    Sort,
    Statement,
    Store,
)
from kernelfarm.ir.printable import printable_line

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,119}")
_RESERVED = frozenset(
    [
        "tl",
        "triton",
        "libdevice",
        "float",
        "range",
        "xindex",
        "rindex",
        "xoffset",
        "roffset",
        "rdone",
        "rblocks",
        "xsub",
        "xmask",
        "rmask",
        "xnumel",
        "rnumel",
        "XBLOCK",
        "XBLOCK_SUB",
        "RBLOCK",
        "KBLOCK",
        "kindex",
        "kcolumn",
        "koffset",
        "kmask",
        "kcolumn_mask",
        "knumel",
        "xtiles",
        "rtiles",
        "xband",
        "xheight",
        "inside",
        "piece",
        "copied",
        "slots",
        "slot",
        "step",
        "first_offset",
        "shared_offset",
        "ROW",
        "SHARED",
        "async_copy",
        "gluon",
        "triton_language",
    ]
)
_COMMENT_CHARS = 160
_READ_CHARS = 4096

TRITON_TYPES: dict[DType, str] = {
    DType.F64: "tl.float64",
    DType.F32: "tl.float32",
    DType.F16: "tl.float16",
    DType.BF16: "tl.bfloat16",
    DType.I64: "tl.int64",
    DType.I32: "tl.int32",
    DType.I16: "tl.int16",
    DType.I8: "tl.int8",
    DType.U8: "tl.uint8",
    DType.BOOL: "tl.int1",
    DType.F8E4M3FN: "tl.uint8",
    DType.F8E5M2: "tl.uint8",
}
"""Element types by their names in Triton source; 8-bit floats are bit patterns."""

POINTER_TYPES: dict[DType, str] = {
    DType.F64: "*fp64",
    DType.F32: "*fp32",
    DType.F16: "*fp16",
    DType.BF16: "*bf16",
    DType.I64: "*i64",
    DType.I32: "*i32",
    DType.I16: "*i16",
    DType.I8: "*i8",
    DType.U8: "*u8",
    # PyTorch stores a bool in one byte; loads and stores in the text convert it.
    DType.BOOL: "*u8",
    DType.F8E4M3FN: "*u8",
    DType.F8E5M2: "*u8",
}
"""Pointer types in a compile signature."""


def checked_identifier(name: str, what: str) -> str:
    """The name itself, if it may be used.

    Raises:
        KernelRejectedError: it is no plain identifier, or equals a name of the emitter.
    """
    is_plain = _IDENTIFIER.fullmatch(name) and not keyword.iskeyword(name)
    if not is_plain or name in _RESERVED or name.startswith("kf_"):
        raise KernelRejectedError(
            f"{what} has the unusable name {name!r}; expected a plain identifier"
        )
    return name


def comment_text(text: str) -> str:
    """The text as one printable line of at most 160 characters."""
    return printable_line(text[:_READ_CHARS]).strip()[:_COMMENT_CHARS]


def pointer_type(dtype: DType, target: str) -> str:
    """The type of a pointer to elements of a type, in a compile signature.

    Raises:
        KernelRejectedError: the emitter does not support this type.
    """
    if dtype not in POINTER_TYPES:
        raise KernelRejectedError(f"element type {dtype.value} is not supported on {target}")
    return POINTER_TYPES[dtype]


def triton_type(dtype: DType, target: str) -> str:
    """The type's name in source.

    Raises:
        KernelRejectedError: the emitter does not support this type.
    """
    if dtype not in TRITON_TYPES:
        raise KernelRejectedError(f"element type {dtype.value} is not supported on {target}")
    return TRITON_TYPES[dtype]


def value_names(kernel: Kernel) -> tuple[str, ...]:
    """A name for each statement: its operator and its number (`exp_9`)."""
    return tuple(_value_name(number, statement) for number, statement in enumerate(kernel.body))


def _value_name(number: int, statement: Statement) -> str:
    match statement:
        case Load(param=word):
            pass
        case Compute(op="convert", dtype=dtype):
            word = dtype.value
        case Compute(op=word) | Reduce(op=word) | Scan(op=word):
            pass
        case Sort():
            word = "sort"
        case Literal():
            word = "literal"
        case IndexValue():
            word = "position"
        case Indirect():
            word = "index"
        case Store():
            word = "store"
    return f"{word}_{number}"

"""The module of a user's kernel: its checked parts between lines of our own.

Evaluating it evaluates literals and definitions only; `kernelfarm.ir.triton.check_source` states
the rules that its parts follow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from codegen_svc.emitters.triton.names import checked_identifier
from codegen_svc.emitters.triton.source import TritonSource
from kernelfarm.dtypes import DType
from kernelfarm.errors import KernelRejectedError
from kernelfarm.ir.triton.check_source import check_source
from kernelfarm.ir.triton.user_kernel import FixedParam, Pointer, UserKernel, UserParam

TYPE_NAMES: dict[DType, str] = {
    DType.F64: "fp64",
    DType.F32: "fp32",
    DType.F16: "fp16",
    DType.BF16: "bf16",
    DType.F8E4M3FN: "fp8e4nv",
    DType.F8E5M2: "fp8e5",
    DType.F8E4M3FNUZ: "fp8e4b8",
    DType.F8E5M2FNUZ: "fp8e5b16",
    DType.I64: "i64",
    DType.I32: "i32",
    DType.I16: "i16",
    DType.I8: "i8",
    DType.U64: "u64",
    DType.U32: "u32",
    DType.U16: "u16",
    DType.U8: "u8",
    DType.BOOL: "i1",
}
"""Element types by their names in signatures."""

_HEADER = (
    "import triton",
    "import triton.language as tl",
    "from triton.language.extra import libdevice",
)


def emit_user_module(
    kernel: UserKernel, changed: Mapping[str, str] | None = None, *, imports: Sequence[str] = ()
) -> TritonSource:
    """The module, in which the function has the kernel's name.

    `changed` has definitions by function that take the place of the user's: a backend makes them of
    the checked ones. They may use what the lines in `imports` import.

    Raises:
        UserKernelError: the source is outside of the language.
        KernelRejectedError: Triton has no such type, or no such name.
    """
    checked_identifier(kernel.name, "the kernel")
    source = check_source(kernel.source)
    lines = [f"# {kernel.name}: the user's function {kernel.entry}", *_HEADER, *imports]
    lines.extend(f"{name} = tl.constexpr({text})" for name, text in source.constants.items())
    for name, function in source.functions.items():
        text = (changed or {}).get(name, function.text)
        if name == kernel.entry:  # nothing else names it: it does not call itself
            text = f"def {kernel.name}{text.removeprefix(f'def {name}')}"
        lines += ["", "", "@triton.jit", text]
    return TritonSource(
        name=kernel.name,
        text="\n".join(lines) + "\n",
        signature=tuple((param.name, type_name(param)) for param in kernel.params),
        constexprs=tuple((p.name, p.value) for p in kernel.params if isinstance(p, FixedParam)),
        notes=(),
    )


def type_name(param: UserParam) -> str:
    """The type of a parameter as signatures name it.

    Raises:
        KernelRejectedError: Triton has no such type.
    """
    if isinstance(param, FixedParam):
        return "constexpr"
    name = TYPE_NAMES.get(param.dtype)
    if name is None:
        raise KernelRejectedError(f"parameter {param.name} of {param.dtype.value}: no such type")
    return f"*{name}" if isinstance(param, Pointer) else name

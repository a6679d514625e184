"""Triton's IR in the form that the adapter takes, and for which it makes right code.

- `llvm.intr.assume` (`tl.assume`): the adapter's LLVM has no such syntax. Nothing uses the
  operation, so it is left out.
- `ttg.barrier` (`tl.debug_barrier`): the Triton of the adapter writes it as `gpu.barrier`.
- `tt.mulhiui` (`tl.umulhi`, and all random numbers of Triton): adapter 3.2.0 multiplies as if the
  operands were signed. It becomes the signed product and its correction. With a and b of w bits as
  signed numbers, the unsigned ones are a + 2^w [a < 0] and b + 2^w [b < 0], so the high word of
  their product is that of a b, plus b if a < 0, plus a if b < 0.
- Functions of NVIDIA's library on f32 (`libdevice`, as the frontend is one for NVIDIA): those that
  MLIR has are its operations, and those that Triton-Ascend has are calls of CANN's library.
"""

from __future__ import annotations

import re

from kernelfarm.errors import InternalError

_NAME = r"%[\w$.-]+"
_ASSUMPTION = re.compile(r"^\s*llvm\.intr\.assume .*\n", re.MULTILINE)
_BARRIER = re.compile(r"^(\s*)ttg\.barrier \w+", re.MULTILINE)
_UNSIGNED_HIGH_WORD = re.compile(
    rf"^\s*(?P<name>{_NAME}) = tt\.mulhiui (?P<a>{_NAME}), (?P<b>{_NAME}) :"
    r" (?P<type>(?:tensor<[0-9x]+x)?i(?P<bits>\d+)>?)(?P<location> loc\(.*\))?$",
    re.MULTILINE,
)
_LIBRARY = re.compile(
    rf"^(?P<start>\s*{_NAME} = )tt\.extern_elementwise (?P<operands>{_NAME}(?:, {_NAME})*) "
    r'\{(?P<before>.*symbol = ")__nv_(?P<function>\w+)(?P<after>".*)\} : '
    r"\((?P<types>.*)\) -> (?P<type>(?:tensor<[0-9x]+x)?f32>?)(?P<location> loc\(.*\))?$",
    re.MULTILINE,
)
_OPERATIONS = {
    "ceilf": "math.ceil",
    "cosf": "math.cos",
    "erff": "math.erf",
    "exp2f": "math.exp2",
    "expf": "math.exp",
    "fabsf": "math.absf",
    "fast_cosf": "math.cos",
    "fast_expf": "math.exp",
    "fast_fdividef": "arith.divf",
    "fast_log2f": "math.log2",
    "fast_logf": "math.log",
    "fast_sinf": "math.sin",
    "fdiv_rn": "arith.divf",
    "floorf": "math.floor",
    "fmaf": "math.fma",
    "fsqrt_rn": "math.sqrt",
    "log2f": "math.log2",
    "logf": "math.log",
    "rsqrtf": "math.rsqrt",
    "sinf": "math.sin",
    "sqrtf": "math.sqrt",
}
"""MLIR's operations by NVIDIA's functions. Those for fast functions are at least as exact."""
_CALLS = frozenset({"atanf", "log1pf", "powf", "tanf", "tanhf"})
"""Functions that CANN's library has under the same names.

Source: Triton-Ascend 3.2.0, `language/extra/ascend/libdevice.py`.
"""


def adapter_input(ttir: str) -> str:
    """The text of Triton's IR with these operations replaced.

    Raises:
        InternalError: an operation is left, of which the adapter would make wrong code.
    """
    text = _BARRIER.sub(r"\1gpu.barrier", _ASSUMPTION.sub("", ttir))
    text = _UNSIGNED_HIGH_WORD.sub(_signed_high_word, text)
    if "= tt.mulhiui " in text:
        raise InternalError("a tt.mulhiui has another form than expected in Triton's IR")
    return _LIBRARY.sub(_known_function, text)


def _known_function(found: re.Match[str]) -> str:
    """MLIR's operation, a call of CANN's library, or what the adapter will refuse."""
    start, operands, function = found["start"], found["operands"], found["function"]
    kinds = set(found["types"].split(", "))
    if function in _OPERATIONS and kinds == {found["type"]}:
        return f"{start}{_OPERATIONS[function]} {operands} : {found['type']}"
    if function in _CALLS:
        return found[0].replace(f"__nv_{function}", f"__hmf_{function}")
    return found[0]


def _signed_high_word(found: re.Match[str]) -> str:
    name, a, b, kind = found["name"], found["a"], found["b"], found["type"]
    shift = int(found["bits"]) - 1
    value = f"dense<{shift}>" if kind.startswith("tensor") else str(shift)
    own = f"%umulhi_{name[1:]}"
    return "\n".join(
        (
            f"{own}_low, {own}_high = arith.mulsi_extended {a}, {b} : {kind}",
            f"{own}_shift = arith.constant {value} : {kind}",
            *(
                line
                for x, y, of in ((a, b, "a"), (b, a, "b"))
                for line in (
                    f"{own}_sign_{of} = arith.shrsi {x}, {own}_shift : {kind}",
                    f"{own}_more_{of} = arith.andi {own}_sign_{of}, {y} : {kind}",
                )
            ),
            f"{own}_sum = arith.addi {own}_high, {own}_more_a : {kind}",
            f"{name} = arith.addi {own}_sum, {own}_more_b : {kind}",
        )
    )

"""Triton's IR in the form that the adapter takes, and for which it makes right code.

- `llvm.intr.assume` (`tl.assume`): the adapter's LLVM has no such syntax. Nothing uses the
  operation, so it is left out.
- `tt.mulhiui` (`tl.umulhi`, and all random numbers of Triton): adapter 3.2.0 multiplies as if the
  operands were signed. It becomes the signed product and its correction. With a and b of w bits as
  signed numbers, the unsigned ones are a + 2^w [a < 0] and b + 2^w [b < 0], so the high word of
  their product is that of a b, plus b if a < 0, plus a if b < 0.
"""

from __future__ import annotations

import re

from kernelfarm.errors import InternalError

_ASSUMPTION = re.compile(r"^\s*llvm\.intr\.assume .*\n", re.MULTILINE)
_UNSIGNED_HIGH_WORD = re.compile(
    r"^\s*(?P<name>%[\w$.-]+) = tt\.mulhiui (?P<a>%[\w$.-]+), (?P<b>%[\w$.-]+) :"
    r" (?P<type>(?:tensor<[0-9x]+x)?i(?P<bits>\d+)>?)(?P<location> loc\(.*\))?$",
    re.MULTILINE,
)


def adapter_input(ttir: str) -> str:
    """The text of Triton's IR with these operations replaced.

    Raises:
        InternalError: an operation is left, of which the adapter would make wrong code.
    """
    text = _UNSIGNED_HIGH_WORD.sub(_signed_high_word, _ASSUMPTION.sub("", ttir))
    if "= tt.mulhiui " in text:
        raise InternalError("a tt.mulhiui has another form than expected in Triton's IR")
    return text


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

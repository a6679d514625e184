"""Which element types each scalar operation takes, in graphs and in loop kernels alike."""

from __future__ import annotations

import enum

from kernelfarm.dtypes import DType
from kernelfarm.errors import VerificationError
from kernelfarm.ir.prims import PRIMS, SCALAR_OPS


class Takes(enum.Enum):
    """The element types that an operation takes; the value is the word in messages."""

    FLOAT = "a float"
    NUMBER = "a number, which bool is not"
    BITS = "an integer or bool"
    INTEGER = "an integer"
    BOOL = "bool"
    ANY = "any element type"

    def has(self, dtype: DType) -> bool:
        """True if the element type is among them."""
        match self:
            case Takes.FLOAT:
                return dtype.is_float
            case Takes.NUMBER:
                return dtype is not DType.BOOL
            case Takes.BITS:
                return not dtype.is_float
            case Takes.INTEGER:
                return dtype.is_integer
            case Takes.BOOL:
                return dtype is DType.BOOL
            case Takes.ANY:
                return True


_WORDS = {
    Takes.NUMBER: "neg abs sign add sub mul floor_div trunc_div mod_floor fmod pow maximum minimum"
    " fmax fmin",
    Takes.BITS: "bitwise_not bit_and bit_or bit_xor",
    Takes.INTEGER: "shl shr_arith",
    Takes.BOOL: "logical_not logical_and logical_or logical_xor",
    Takes.ANY: "eq ne lt le gt ge where convert",
}
_BY_NAME = {name: takes for takes, words in _WORDS.items() for name in words.split()}

SCALAR_TYPES: dict[str, Takes] = {
    name: _BY_NAME.get(name, Takes.FLOAT) for name in sorted(SCALAR_OPS)
}
"""What each scalar operation takes; whatever is not listed above is a function of floats."""


def check_scalar_operands(op: str, dtypes: tuple[DType, ...]) -> None:
    """Passes operand types that a scalar operation takes.

    Raises:
        VerificationError: the op is unknown, the count is wrong, the types are not one type, or
            the operation does not take that type.
    """
    takes = SCALAR_TYPES.get(op)
    if takes is None:
        raise VerificationError(f"{op!r} is no scalar operation")
    if len(dtypes) != PRIMS[op].arity:
        raise VerificationError(f"{op}: {len(dtypes)} operands; expected {PRIMS[op].arity}")
    values = dtypes
    if op == "where":
        if dtypes[0] is not DType.BOOL:
            raise VerificationError(f"where: a condition of {dtypes[0].value}; expected bool")
        values = dtypes[1:]
    if any(dtype is not values[0] for dtype in values):
        seen = ", ".join(dtype.value for dtype in values)
        raise VerificationError(f"{op}: operands of {seen}; expected one element type")
    if not takes.has(values[0]):
        raise VerificationError(f"{op}: operands of {values[0].value}; expected {takes.value}")

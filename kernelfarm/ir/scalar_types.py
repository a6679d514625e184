"""The element types of scalar operations, reductions and scans, in graphs and kernels."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from kernelfarm.dtypes import DType
from kernelfarm.errors import VerificationError
from kernelfarm.ir.loop_ir import GUIDES
from kernelfarm.ir.prims import PRIMS, SCALAR_OPS, SCAN_OPS

INTEGER_RANGES = {
    DType.I64: range(-(2**63), 2**63),
    DType.I32: range(-(2**31), 2**31),
    DType.I16: range(-(2**15), 2**15),
    DType.I8: range(-(2**7), 2**7),
    DType.U8: range(2**8),
    DType.BOOL: range(2),
}
"""The values of each integer element type that kernels compute in."""


class AcceptedTypes(enum.Enum):
    """The element types that an operation takes; the value is their name in messages."""

    FLOAT = "a float"
    NUMBER = "a number, which bool is not"
    BITS = "an integer or bool"
    INTEGER = "an integer"
    I64 = "i64"
    BOOL = "bool"
    ANY = "any element type"

    def has(self, dtype: DType) -> bool:
        """True if the element type is among them."""
        match self:
            case AcceptedTypes.FLOAT:
                return dtype.is_float
            case AcceptedTypes.NUMBER:
                return dtype is not DType.BOOL
            case AcceptedTypes.BITS:
                return not dtype.is_float
            case AcceptedTypes.INTEGER:
                return dtype.is_integer
            case AcceptedTypes.I64 | AcceptedTypes.BOOL:
                return dtype is (DType.I64 if self is AcceptedTypes.I64 else DType.BOOL)
            case AcceptedTypes.ANY:
                return True


_WORDS = {
    AcceptedTypes.NUMBER: "neg abs sign add sub mul floor_div trunc_div mod_floor fmod pow maximum"
    " minimum"
    " fmax fmin",
    AcceptedTypes.BITS: "bitwise_not bit_and bit_or bit_xor",
    AcceptedTypes.INTEGER: "shl shr_arith",
    AcceptedTypes.I64: "philox",
    AcceptedTypes.BOOL: "logical_not logical_and logical_or logical_xor",
    AcceptedTypes.ANY: "eq ne lt le gt ge where convert",
}
_BY_NAME = {name: takes for takes, words in _WORDS.items() for name in words.split()}

SCALAR_TYPES: dict[str, AcceptedTypes] = {
    name: _BY_NAME.get(name, AcceptedTypes.FLOAT) for name in sorted(SCALAR_OPS)
}
"""The accepted types of each scalar operation; those not listed above are functions of floats."""


def check_computed_in(op: str, dtypes: Iterable[DType]) -> None:
    """Checks that a prim has no operand or result of an opaque type, unless it is an extern node.

    Raises:
        VerificationError: an operand or result has an opaque type.
    """
    opaque = next((dtype for dtype in dtypes if dtype.is_opaque), None)
    if opaque is not None and op != "extern":
        raise VerificationError(
            f"{op}: a tensor of {opaque.value}; expected a type that kernels compute in:"
            " only extern nodes may take and return tensors of this one"
        )


def check_scalar_operands(op: str, dtypes: tuple[DType, ...]) -> None:
    """Checks that a scalar operation takes operands of these types.

    Raises:
        VerificationError: the op is unknown, the number of operands is wrong, their types differ,
        or
            the operation does not take their type.
    """
    takes = SCALAR_TYPES.get(op)
    if takes is None:
        raise VerificationError(f"{op!r} is not a scalar operation")
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


def check_reduce_operand(op: str, dtype: DType) -> None:
    """Checks that a reduction takes operands of an element type.

    Raises:
        VerificationError: any and all take bool, guided reductions floats, the others numbers.
    """
    if op in GUIDES and not dtype.is_float:
        raise VerificationError(f"{op}: an operand of {dtype.value}; expected a float")
    wants_bool = op in ("any", "all")
    if wants_bool != (dtype is DType.BOOL):
        raise VerificationError(
            f"{op}: an operand of {dtype.value}; expected {'bool' if wants_bool else 'a number'}"
        )


def reduce_result_dtype(op: str, operand: DType) -> DType:
    """The element type of a reduction's result."""
    return DType.I64 if op in ("argmax", "argmin") else operand


def check_scan_operand(op: str, dtype: DType) -> None:
    """Checks that a scan takes operands of an element type.

    Raises:
        VerificationError: the scan is unknown, or does not take the type.
    """
    if op not in SCAN_OPS:
        raise VerificationError(f"scan {op!r}; expected one of {', '.join(SCAN_OPS)}")
    if dtype is DType.BOOL or (op == "logcumsumexp" and not dtype.is_float):
        expected = "a float" if op == "logcumsumexp" else "a number"
        raise VerificationError(f"{op}: an operand of {dtype.value}; expected {expected}")


def scan_result_dtype(op: str, operand: DType) -> DType:
    """The element type of a scan's result."""
    return DType.I64 if op in ("cummax_index", "cummin_index") else operand


def check_combined_dtype(op: str, dtype: DType) -> None:
    """Checks that updates of an element type can be combined.

    Raises:
        VerificationError: it is bool, or a float that kernels do not compute in.
    """
    if dtype is DType.BOOL or dtype.compute_dtype is not dtype:
        raise VerificationError(
            f"{op}: elements of {dtype.value}; expected a type of arithmetic, such as f32"
        )

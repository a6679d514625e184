"""Scalar operations of loop kernels as Triton expressions."""

from __future__ import annotations

import math
from dataclasses import dataclass

from codegen_svc.emitters.triton.float8 import FLOATS_8, narrowed, widened
from codegen_svc.emitters.triton.names import triton_type
from codegen_svc.emitters.triton.narrow_formulas import NARROW_HELPERS
from codegen_svc.powers import is_multiplied
from kernelfarm.dtypes import DType
from kernelfarm.errors import KernelRejectedError

_FLOAT: dict[str, str] = {
    "neg": "-{0}",
    "abs": "tl.abs({0})",
    # PyTorch: the sign of NaN is 0
    "sign": "({0} > 0.0).to({type}) - ({0} < 0.0).to({type})",
    "exp": "tl.exp({0})",
    "exp2": "tl.exp2({0})",
    "expm1": "kf_expm1({0})",
    "log": "tl.log({0})",
    "log2": "tl.log2({0})",
    "log10": "tl.log({0}) * 0.4342944819032518",
    "log1p": "kf_log1p({0})",
    "sin": "tl.sin({0})",
    "cos": "tl.cos({0})",
    "tan": "tl.sin({0}) / tl.cos({0})",
    "asin": "kf_asin({0})",
    "acos": "kf_acos({0})",
    "atan": "kf_atan({0})",
    "sinh": "kf_sinh({0})",
    "cosh": "kf_cosh({0})",
    "tanh": "kf_tanh({0})",
    "asinh": "kf_asinh({0})",
    "acosh": "kf_acosh({0})",
    "atanh": "kf_atanh({0})",
    "erf": "tl.erf({0})",
    "erfc": "kf_erfc({0})",
    "sigmoid": "kf_sigmoid({0})",
    "floor": "tl.floor({0})",
    "ceil": "tl.ceil({0})",
    "trunc": "kf_trunc({0})",
    "round_even": "kf_round_even({0})",
    "rsqrt": "tl.rsqrt({0})",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "floor_div": "kf_floor_div_float({0}, {1})",
    "mod_floor": "kf_floor_mod({0}, {1})",
    "fmod": "{0} % {1}",
    "pow": "kf_pow({0}, {1})",
    "atan2": "kf_atan2({0}, {1})",
    "maximum": "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "minimum": "tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "fmax": "tl.maximum({0}, {1})",
    "fmin": "tl.minimum({0}, {1})",
    "copysign": "kf_copysign({0}, {1})",
    "isnan": "{0} != {0}",
    "isinf": 'tl.abs({0}) == float("inf")',
    "isfinite": 'tl.abs({0}) < float("inf")',
    "signbit": "kf_signbit({0})",
    **{name.removeprefix("kf_"): f"{name}({{0}})" for name in NARROW_HELPERS},
    "narrow_exp": "kf_narrow_exp({0})",
    "narrow_over_one_plus_exp": "kf_narrow_over_one_plus_exp({0}, {1})",
    "narrow_exp_share": "kf_narrow_exp_share({0}, {1})",
    "narrow_share": "kf_narrow_share({0}, {1})",
}

_INTEGER: dict[str, str] = {
    "neg": "-{0}",
    "abs": "tl.abs({0})",
    "sign": "({0} > 0).to({type}) - ({0} < 0).to({type})",
    "floor": "{0}",
    "ceil": "{0}",
    "trunc": "{0}",
    "round_even": "{0}",
    "bitwise_not": "~{0}",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "floor_div": "kf_floor_div({0}, {1})",
    "trunc_div": "{0} // {1}",
    "mod_floor": "kf_floor_mod({0}, {1})",
    "fmod": "{0} % {1}",
    "maximum": "tl.maximum({0}, {1})",
    "minimum": "tl.minimum({0}, {1})",
    "fmax": "tl.maximum({0}, {1})",
    "fmin": "tl.minimum({0}, {1})",
    "bit_and": "{0} & {1}",
    "bit_or": "{0} | {1}",
    "bit_xor": "{0} ^ {1}",
    "shl": "{0} << {1}",
    "shr_arith": "{0} >> {1}",
    "philox": "kf_philox({0}, {1})",
    "isnan": "{0} != {0}",
    "isinf": "{0} != {0}",
    "isfinite": "{0} == {0}",
    "signbit": "{0} < 0",
}

# i1 arithmetic wraps around, so bools have forms of their own.
_BOOL: dict[str, str] = {
    "bitwise_not": "{0} == 0",
    "add": "{0} | {1}",
    "mul": "{0} & {1}",
    "maximum": "{0} | {1}",
    "minimum": "{0} & {1}",
    "bit_and": "{0} & {1}",
    "bit_or": "{0} | {1}",
    "bit_xor": "{0} ^ {1}",
    "isnan": "{0} != {0}",
    "isinf": "{0} != {0}",
    "isfinite": "{0} == {0}",
    "lt": "{0}.to(tl.int32) < {1}.to(tl.int32)",
    "le": "{0}.to(tl.int32) <= {1}.to(tl.int32)",
    "gt": "{0}.to(tl.int32) > {1}.to(tl.int32)",
    "ge": "{0}.to(tl.int32) >= {1}.to(tl.int32)",
    "logical_not": "{0} == 0",
    "logical_and": "{0} & {1}",
    "logical_or": "{0} | {1}",
    "logical_xor": "{0} ^ {1}",
}

_ANY: dict[str, str] = {
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "logical_not": "{0} == 0",
    "logical_and": "({0} != 0) & ({1} != 0)",
    "logical_or": "({0} != 0) | ({1} != 0)",
    "logical_xor": "({0} != 0) ^ ({1} != 0)",
    "where": "tl.where({0}, {1}, {2})",
}

# IEEE division and root, for chips on which Triton's plain forms are approximate (f32).
_F32_EXACT: dict[str, str] = {
    "div": "tl.div_rn({0}, {1})",
    "reciprocal": "tl.div_rn(1.0, {0})",
    "sqrt": "tl.sqrt_rn({0})",
    "trunc_div": "kf_trunc(tl.div_rn({0}, {1}))",
}
_PLAIN: dict[str, str] = {
    "div": "{0} / {1}",
    "reciprocal": "1.0 / {0}",
    "sqrt": "tl.sqrt({0})",
    "trunc_div": "kf_trunc({0} / {1})",
}

_INLINE_LITERALS = frozenset(
    [
        "add",
        "sub",
        "mul",
        "div",
        "maximum",
        "minimum",
        "fmax",
        "fmin",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "where",
        "bit_and",
        "bit_or",
        "bit_xor",
        "shl",
        "shr_arith",
    ]
)


@dataclass(frozen=True, slots=True)
class ScalarRules:
    """The rules of scalar code for a target, whose name is for messages.

    `takes_lone_pointers`: its compiler accepts pointers made of a block of one index.
    `takes_repeated_pointers`: it accepts blocks of pointers that are equal along one of two axes.
    `counts_to_sort`: it accepts no blocks of many axes. `takes_narrow_functions`: elementary
    functions may have the precision of f16 and bf16 results. `takes_eviction_policies`: loads may
    state for how long a cache should keep what they read. `takes_assembly`: its compiler takes
    inline PTX. `turns_factors`: a product's factors are loaded as they lie in memory, and then
    transposed. `streamed` are the parameters that do not stay in a cache anyway. `widens_float8`:
    its compiler widens 8-bit floats by the chip's instruction.
    """

    target: str
    has_f64: bool
    is_division_exact: bool
    takes_lone_pointers: bool = True
    takes_repeated_pointers: bool = True
    counts_to_sort: bool = False
    takes_narrow_functions: bool = False
    takes_eviction_policies: bool = False
    takes_assembly: bool = False
    turns_factors: bool = False
    streamed: frozenset[str] = frozenset()
    widens_float8: bool = False


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand: its text, its type, and its value if it is a literal."""

    text: str
    dtype: DType
    literal: float | int | None = None


def literal_text(value: float | int, dtype: DType) -> str:
    """A number as Python text with exactly this value."""
    if dtype.is_float:
        number = float(value)
        return repr(number) if math.isfinite(number) else f'float("{number}")'
    return str(int(value))


def compute_text(op: str, operands: tuple[Operand, ...], dtype: DType, rules: ScalarRules) -> str:
    """The expression of one operation.

    Raises:
        KernelRejectedError: the target cannot express this operation on this type.
    """
    kind = operands[-1].dtype
    for used in (kind, dtype):
        if used is DType.F64 and not rules.has_f64:
            raise KernelRejectedError(f"{op} on f64 is not supported on {rules.target}")
    if op == "convert":
        return _convert_text(operands[0], dtype, rules)
    if op == "pow":
        return _pow_text(operands[0], operands[1], rules)
    template = _template(op, kind, rules)
    if template is None:
        raise KernelRejectedError(
            f"operation {op} on {kind.value} is not supported on {rules.target}"
        )
    texts = _operand_texts(op, operands)
    return template.format(*texts, type=triton_type(dtype, rules.target))


def _template(op: str, kind: DType, rules: ScalarRules) -> str | None:
    if kind.is_float and op in _PLAIN:
        is_exact = kind is DType.F32 and rules.is_division_exact
        return (_F32_EXACT if is_exact else _PLAIN)[op]
    own = _FLOAT if kind.is_float else _BOOL if kind is DType.BOOL else _INTEGER
    return own.get(op) or _ANY.get(op)


def _operand_texts(op: str, operands: tuple[Operand, ...]) -> list[str]:
    """The operands' texts; literals are inlined if Triton gives them the other operand's type."""
    values = operands[1:] if op == "where" else operands
    can_inline = op in _INLINE_LITERALS and any(v.literal is None for v in values)
    return [_inlined(operand) if can_inline else operand.text for operand in operands]


def _inlined(operand: Operand) -> str:
    if operand.literal is None or operand.dtype in (DType.BOOL, *FLOATS_8):
        return operand.text
    text = literal_text(operand.literal, operand.dtype)
    return f"({text})" if text.startswith("-") else text


def _convert_text(operand: Operand, dtype: DType, rules: ScalarRules) -> str:
    if dtype is operand.dtype:
        return operand.text
    if operand.dtype in FLOATS_8:
        text = widened(operand.text, operand.dtype, has_instruction=rules.widens_float8)
        return _convert_text(Operand(text, DType.F32), dtype, rules)
    if dtype in FLOATS_8:
        return narrowed(operand.text, dtype)
    if dtype is DType.BOOL:
        return f"{operand.text} != 0"
    if operand.dtype is DType.F64 and dtype in (DType.BF16, DType.F16):
        # Triton has no direct conversion on every target.
        return f"{operand.text}.to(tl.float32).to({triton_type(dtype, rules.target)})"
    return f"{operand.text}.to({triton_type(dtype, rules.target)})"


def _pow_text(base: Operand, exponent: Operand, rules: ScalarRules) -> str:
    if not base.dtype.is_float:
        raise KernelRejectedError(
            f"operation pow on {base.dtype.value} is not supported on {rules.target}"
        )
    value = exponent.literal
    if value and is_multiplied(value):
        product = _power_text(base.text, abs(int(value)))
        return product if value > 0 else f"1.0 / ({product})"
    if value == 0.5:
        return (_F32_EXACT if base.dtype is DType.F32 and rules.is_division_exact else _PLAIN)[
            "sqrt"
        ].format(base.text)
    if base.dtype is DType.F32 and rules.has_f64:
        return f"kf_pow({base.text}.to(tl.float64), {exponent.text}.to(tl.float64)).to(tl.float32)"
    return f"kf_pow({base.text}, {exponent.text})"


def _power_text(base: str, count: int) -> str:
    """A power as one expression of repeated squares."""
    if count == 1:
        return base
    half = _power_text(base, count // 2)
    half = half if count // 2 == 1 else f"({half})"
    square = f"{half} * {half}"
    return square if count % 2 == 0 else f"{square} * {base}"

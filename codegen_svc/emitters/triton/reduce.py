"""Reductions as Triton text: neutral elements, accumulators, final steps.

Lanes that the reduction mask turns off hold the neutral element. Maxima and minima propagate NaN.
argmax and argmin give the first position; as in PyTorch, NaN is above (below) every number.

Shapes:
    a block: [X, R]; a result: [X, 1].
"""

from __future__ import annotations

from dataclasses import dataclass

from codegen_svc.emitters.triton.names import triton_type
from codegen_svc.emitters.triton.scalar import literal_text
from kernelfarm.dtypes import DType
from kernelfarm.errors import KernelRejectedError

_INTEGER_BITS = {DType.I64: 64, DType.I32: 32, DType.I16: 16, DType.I8: 8}

ROW_LAYOUT = "ROW"
"""The name of the layout of rows in Triton's language of layouts."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """One reduction in the text.

    `operand` is the operand's name, `name` the result's, `shape` the text of the full block's
    shape. `mask` is the name of the mask that is false past the end, empty if no lane is past it.
    `past` is the operand's value in the lanes past the end, if it is known. `index_bits` is the
    width of `rindex`. `is_whole`: the operand has the full shape already. `layout` is the name of
    the layout of a block, empty where the compiler chooses it.
    """

    op: str
    name: str
    operand: str
    operand_dtype: DType
    dtype: DType
    shape: str
    mask: str
    index_bits: int
    target: str
    is_whole: bool
    past: float | None = None
    layout: str = ""

    @property
    def is_arg(self) -> bool:
        """True for argmax and argmin."""
        return self.op in ("argmax", "argmin")


@dataclass(frozen=True, slots=True)
class ReductionText:
    """A reduction's lines: for a block that holds a whole row; before, within and after a loop."""

    persistent: tuple[str, ...] = ()
    initial: tuple[str, ...] = ()
    step: tuple[str, ...] = ()
    final: tuple[str, ...] = ()


def plain_text(r: Reduction) -> ReductionText:
    """The lines of a reduction that needs no guide."""
    return ReductionText(
        tuple(_persistent_lines(r)),
        tuple(_initial_lines(r)),
        tuple(_step_lines(r)),
        tuple(_final_lines(r)),
    )


def _persistent_lines(r: Reduction) -> list[str]:
    """The reduction of a block that holds a whole row."""
    value = block_value(r)
    if not r.is_arg:
        return [f"{r.name} = {_final(r, value)}"]
    return [
        f"{r.name}_value = {value}",
        f"{r.name}_best = {_best(r, f'{r.name}_value')}",
        f"{r.name} = {_first_hit(r, f'{r.name}_value', _masked_position(r), f'{r.name}_best')}",
    ]


def _initial_lines(r: Reduction) -> list[str]:
    """Accumulators before the loop."""
    lines = [f"{r.name}_acc = {filled(r, neutral(r))}"]
    if r.is_arg:
        # The first positions, so that a row that holds only the neutral element has a result too.
        position = f"tl.zeros({r.shape}, tl.int{r.index_bits}) + tl.arange(0, RBLOCK)[None, :]"
        lines.append(f"{r.name}_position = {position}")
    return lines


def _step_lines(r: Reduction) -> list[str]:
    """One block's contribution within the loop."""
    acc, value = f"{r.name}_acc", block_value(r)
    match r.op:
        case "sum":
            return [f"{acc} += {value}"]
        case "prod":
            return [f"{acc} *= {value}"]
        case "amax" | "amin":
            return [f"{acc} = {_pairwise(r, acc, value)}"]
        case "any":
            return [f"{acc} = tl.maximum({acc}, {value})"]
        case "all":
            return [f"{acc} = tl.minimum({acc}, {value})"]
        case _:
            beats = "kf_above" if r.op == "argmax" else "kf_below"
            return [
                f"{r.name}_value = {value}",
                f"{r.name}_beats = {beats}({r.name}_value, {acc})",
                f"{r.name}_position = tl.where({r.name}_beats, rindex, {r.name}_position)",
                f"{acc} = tl.where({r.name}_beats, {r.name}_value, {acc})",
            ]


def _final_lines(r: Reduction) -> list[str]:
    """The result after the loop."""
    acc = f"{r.name}_acc"
    if not r.is_arg:
        return [f"{r.name} = {_final(r, acc)}"]
    return [
        f"{r.name}_best = {_best(r, acc)}",
        f"{r.name} = {_first_hit(r, acc, f'{r.name}_position', f'{r.name}_best')}",
    ]


def _work_dtype(r: Reduction) -> DType:
    """The type in which a reduction is computed: at least 32 bits, bools as integers."""
    if r.op in ("any", "all") or r.operand_dtype is DType.BOOL:
        return DType.I32
    if r.op in ("sum", "prod"):
        return r.dtype if r.dtype in (DType.F64, DType.I64) else _widened(r.operand_dtype)
    return _widened(r.operand_dtype)


def _widened(dtype: DType) -> DType:
    if dtype in (DType.I8, DType.I16, DType.U8):
        return DType.I32
    return dtype.compute_dtype


def work_type(r: Reduction) -> str:
    """The Triton type in which a reduction is computed."""
    return triton_type(_work_dtype(r), r.target)


def neutral(r: Reduction) -> str:
    """The literal that changes no result."""
    work = _work_dtype(r)
    match r.op:
        case "sum":
            return "0.0" if work.is_float else "0"
        case "prod":
            return "1.0" if work.is_float else "1"
        case "any":
            return "0"
        case "all":
            return "1"
        case "amax" | "argmax":
            return 'float("-inf")' if work.is_float else str(-(1 << (_INTEGER_BITS[work] - 1)))
        case "amin" | "argmin":
            return 'float("inf")' if work.is_float else str((1 << (_INTEGER_BITS[work] - 1)) - 1)
        case _:
            raise KernelRejectedError(f"reduction {r.op} is not supported on {r.target}")


def filled(r: Reduction, value: str) -> str:
    """A block of the full shape in the work type with one value in all lanes."""
    layout = f", {r.layout}" if r.layout else ""
    return f"tl.full({r.shape}, {value}, {work_type(r)}{layout})"


def block_value(r: Reduction) -> str:
    """The operand as a whole block in the work type; masked-off lanes are neutral."""
    value = r.operand
    if r.op in ("any", "all") and r.operand_dtype is not DType.BOOL:
        value = f"({value} != 0)"
    is_converted = _work_dtype(r) is not r.operand_dtype
    value = f"{value}.to({work_type(r)})" if is_converted else value
    is_neutral = r.past is not None and literal_text(r.past, DType.F32) == neutral(r)
    if r.mask and not is_neutral:
        value = f"tl.where({r.mask}, {value}, {neutral(r)})"
    return whole(r, value)


def whole(r: Reduction, value: str) -> str:
    """A value in the full shape."""
    return value if r.is_whole else f"tl.broadcast_to({value}, {r.shape})"


def _masked_position(r: Reduction) -> str:
    return f"tl.broadcast_to(rindex, {r.shape})"


def _pairwise(r: Reduction, a: str, b: str) -> str:
    name = "max" if r.op in ("amax", "argmax") else "min"
    if _work_dtype(r).is_float:
        return f"kf_nan_{name}({a}, {b})"
    return f"tl.{name}imum({a}, {b})"


def _best(r: Reduction, value: str) -> str:
    name = "max" if r.op in ("amax", "argmax") else "min"
    if _work_dtype(r).is_float:
        return f"tl.reduce({value}, 1, kf_nan_{name}, keep_dims=True)"
    return f"tl.{name}({value}, 1, keep_dims=True)"


def _final(r: Reduction, value: str) -> str:
    match r.op:
        case "sum":
            text = f"tl.sum({value}, 1, keep_dims=True)"
        case "prod":
            text = f"tl.reduce({value}, 1, kf_product, keep_dims=True)"
        case "any":
            return f"tl.max({value}, 1, keep_dims=True) != 0"
        case "all":
            return f"tl.min({value}, 1, keep_dims=True) != 0"
        case _:
            text = _best(r, value)
    if _work_dtype(r) is r.dtype:
        return text
    if r.dtype is DType.BOOL:
        return f"({text}) != 0"
    return f"{text}.to({triton_type(r.dtype, r.target)})"


def _first_hit(r: Reduction, value: str, position: str, best: str) -> str:
    """The smallest position whose value is the best; lanes past the end never win."""
    beyond = (1 << (r.index_bits - 1)) - 1
    hit = f"kf_same({value}, {best})" if _work_dtype(r).is_float else f"({value} == {best})"
    first = f"tl.min(tl.where({hit}, {position}, {beyond}), 1, keep_dims=True)"
    return f"{first}.to({triton_type(r.dtype, r.target)})"

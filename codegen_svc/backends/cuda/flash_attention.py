"""Builds the template of flash attention for Hopper: the variant of its kernel for aligned buffers.

The launch of the text in `gluon_flash_attention.py` makes tensor maps of queries, keys, values and
results.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from codegen_svc.backends.cuda.gluon_template import (
    LONGEST_ROW_BYTES,
    GluonTemplate,
    MappedOperand,
    build_gluon,
    given_operand,
    made_operand,
    numbers_of,
)
from codegen_svc.backends.triton_user_kernel import TemplateBuild
from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ZERO, Expr, as_expr, ceil_div, minimum
from kernelfarm.ir.artifact import BuiltKernel
from kernelfarm.ir.triton.user_kernel import UserKernel
from kernelfarm.targets import GpuFacts

_TEXT = Path(__file__).with_name("gluon_flash_attention.py")
_ENTRY = "flash_attention"
_CONSTANTS = (
    *("HEADS", "SHARING", "WIDTH_BLOCK", "SCALE"),
    *("IS_CAUSAL", "HAS_MASK", "HAS_SUMS", "PAGE"),
)
_ROWS = 64
# Heads that leave registers for a third group.
_NARROW_WIDTH = 64
_BLOCK = 128
_STAGES = 2
# Keys and values of heads that come together take about two thirds of the second-level cache.
_SPAN_BYTES = 32 << 20
# With more tiles than this for each program, causal tiles get a program each: they end at different
# times, and the chip starts the next one where one ends. Compared on an H200.
_MOST_ROUNDS = 8
# A third group computes more queries by a block, unless it adds more rows behind the last query.
_MOST_WASTE = 1.15
# The keys of a head, if they vary.
_LIKELY_KEYS = 2048


@dataclass(frozen=True, slots=True)
class _Form:
    """How many groups compute, with how many registers a thread, in how many programs."""

    groups: int
    registers: int
    takes_turns: bool
    programs: Expr
    span: int


def build_flash_attention(build: TemplateBuild) -> BuiltKernel:
    """The variant of a kernel of `optimizer_svc.kernels.flash_attention` for aligned buffers.

    Raises:
        KernelRejectedError: the toolchain refuses it, or it needs more than the chip has.
    """
    kernel, gpu = build.kernel, build.target.section(GpuFacts)
    numbers = numbers_of(kernel)
    form = _form(kernel, numbers, gpu.multiprocessors or 1)
    template = GluonTemplate(
        text=_TEXT,
        entry=_ENTRY,
        constants=_constants(kernel, form, numbers),
        maps=_maps(kernel, numbers),
        programs=form.programs,
        extras=(("groups", str(form.groups)),),
    )
    return build_gluon(build, template)


def _form(kernel: UserKernel, numbers: dict[str, Expr], multiprocessors: int) -> _Form:
    """What was fastest on an H200, by the width of a head and whether keys are hidden."""
    length, width = numbers["length"], numbers["WIDTH_BLOCK"].as_int()
    is_causal = kernel.constants["IS_CAUSAL"] is True
    groups = 2
    # A third group leaves registers for heads of 64 elements, but not for causal scores and masks.
    if (
        width <= _NARROW_WIDTH
        and not is_causal
        and numbers["mask_row"] is ZERO
        and length.is_constant
    ):
        rows = {g: -(-length.constant // (g * _ROWS)) * g * _ROWS for g in (2, 3)}
        groups = 3 if rows[3] <= rows[2] * _MOST_WASTE else 2
    heads = numbers["HEADS"].as_int()
    tiles = ceil_div(length, groups * _ROWS) * numbers["sequences"] * heads
    many = _MOST_ROUNDS * multiprocessors
    has_many = is_causal and tiles.is_constant and tiles.constant > many
    keys = numbers["key_count"].constant if numbers["key_count"].is_constant else _LIKELY_KEYS
    own_bytes = 2 * keys * width * DType.BF16.itemsize_bytes
    # Programs that run at a time take no more heads than there are of them.
    most = min(heads, multiprocessors, _SPAN_BYTES * numbers["SHARING"].as_int() // own_bytes)
    return _Form(
        groups=groups,
        registers=160 if groups == 3 else 240,
        takes_turns=groups == 3 or is_causal,
        programs=tiles if has_many else minimum(tiles, multiprocessors),
        span=max(span for span in range(1, max(1, most) + 1) if heads % span == 0),
    )


def _constants(kernel: UserKernel, form: _Form, numbers: dict[str, Expr]) -> dict[str, object]:
    """The values of the text's constants."""
    keys = numbers["key_count"]
    stated: dict[str, object] = {name: kernel.constants[name] for name in _CONSTANTS}
    stated["HAS_MASK_ROWS"] = numbers["mask_row"] is not ZERO
    stated["HAS_TAIL"] = not keys.is_constant or keys.constant % _BLOCK != 0
    stated |= {"GROUPS": form.groups, "BLOCK": _BLOCK, "STAGES": _STAGES, "SPAN": form.span}
    _, key, *_ = _maps(kernel, numbers)
    stated |= {"CHUNK": key.rows, "COLUMNS": key.width}
    return stated | {"REGISTERS": form.registers, "TAKES_TURNS": form.takes_turns}


def _columns(kernel: UserKernel, numbers: dict[str, Expr]) -> int:
    """The columns that shared memory holds beside each other."""
    size = kernel.pointers[0].dtype.itemsize_bytes
    return min(numbers["WIDTH_BLOCK"].as_int(), LONGEST_ROW_BYTES // size)


def _maps(kernel: UserKernel, numbers: dict[str, Expr]) -> tuple[MappedOperand, ...]:
    """The operands and the result."""
    heads, width = numbers["HEADS"], numbers["WIDTH"]
    shared = as_expr(heads.as_int() // numbers["SHARING"].as_int())
    own = (numbers["sequences"], heads, numbers["length"], width)
    filled = numbers["WIDTH_BLOCK"].as_int()
    page, chunk = numbers["PAGE"], (_BLOCK, filled)
    others = dict.fromkeys(("key", "value"), (numbers["sequences"], numbers["key_count"]))
    if page is not ZERO:
        others = {name: (numbers[f"{name}_pages"], page) for name in others}
        chunk = (numbers["CHUNK"].as_int(), _columns(kernel, numbers))
    return (
        given_operand("query", own, numbers, _ROWS, filled),
        *(
            given_operand(name, (first, shared, rows, width), numbers, *chunk)
            for name, (first, rows) in others.items()
        ),
        made_operand("out", own, _ROWS, filled),
    )

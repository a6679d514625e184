"""The part of a row that a block holds in its shared memory, as text in Gluon.

Gluon is Triton's language of layouts, which has shared memory. The other part is in registers
(`held_rows.py`); all pieces are on their way at the same time. Each loop over the row is two loops.
That over shared memory is not unrolled, else compilers would keep what it loads in registers.

Of static rows, the first pieces are in shared memory, and are full. Of rows that vary in length the
first ones are in registers, and are full: masks for them would take registers. The number of pieces
in shared memory varies.
"""

from __future__ import annotations

import re
from dataclasses import replace

from codegen_svc.emitters.triton.block import Block
from codegen_svc.emitters.triton.names import triton_type
from codegen_svc.emitters.triton.past_rows import ZERO
from codegen_svc.emitters.triton.phases import Phase
from codegen_svc.emitters.triton.points import reduction_point_lines
from codegen_svc.emitters.triton.reduce import ROW_LAYOUT
from codegen_svc.emitters.triton.scalar import literal_text
from codegen_svc.emitters.triton.split_tiling import ACCESS_ELEMS, SLOTS
from codegen_svc.emitters.triton.statements import guide_of, reduction_text, statement_lines
from codegen_svc.emitters.triton.tiling import static_numel
from codegen_svc.emitters.triton.two_passes import MOMENTS
from codegen_svc.emitters.triton.unused_lines import drop_unused_axes
from kernelfarm.dtypes import DType
from kernelfarm.ir.loop_ir import Load, Reduce, operands_of

_STEP = "    "
_OFFSET = re.compile(r"\broffset\b")


def is_varying(block: Block) -> bool:
    """True if rows are partly in shared memory, and vary in length."""
    return block.tiling.shared_pieces > 0 and static_numel(block.kernel.reduction) is None


def in_registers(block: Block) -> Block:
    """The block of a piece in registers."""
    return replace(block, r_mask="") if is_varying(block) else block


def first_in_registers(block: Block) -> int:
    """The number of the first piece in registers."""
    return 0 if is_varying(block) else block.tiling.shared_pieces


def copy_lines(block: Block, held: tuple[int, ...]) -> list[str]:
    """Allocates shared memory, and begins the copies of the pieces there."""
    lines = _layout_lines(block)
    shared = _in_shared(block)
    inner = _slot_lines(shared)
    for number in held:
        name = block.names[number]
        shape = f"[{block.tiling.shared_pieces}, XBLOCK, RBLOCK]"
        lines.append(
            f"{name}_shared = tl.allocate_shared_memory({_type(block, number)}, {shape}, SHARED)"
        )
        pointers = statement_lines(replace(block, r_mask=""), number)[0]
        pointers = pointers.removeprefix(f"{name} = tl.load(").removesuffix(")")
        inner.append(f"{name}_at = tl.set_auto_layout({pointers}, {ROW_LAYOUT})")
        mask = ", mask=rmask" if shared.r_mask else ""  # Others are zeros.
        inner.append(f"async_copy.async_load({name}_shared.index(slot), {name}_at{mask})")
    return [*lines, *_over_slots(block, [inner]), "async_copy.commit_group()"]


def wait_lines(block: Block, held: tuple[int, ...]) -> list[str]:
    """Waits until the copies have arrived, and fills lanes past the end as other loads do."""
    lines = ["async_copy.wait_group(0)"]
    if not is_varying(block) or block.fill == ZERO:
        return lines
    inner = _slot_lines(block)
    for number in held:
        name = block.names[number]
        fill, kind = literal_text(block.fill, _dtype(block, number)), _type(block, number)
        inner += [
            f"{name} = {name}_shared.index(slot).load({ROW_LAYOUT})",
            f"{name}_fill = tl.full([XBLOCK, RBLOCK], {fill}, {kind}, {ROW_LAYOUT})",
            f"{name}_shared.index(slot).store(tl.where(rmask, {name}, {name}_fill))",
        ]
    # Copies have filled them with zeros. Only the last pieces have such lanes.
    lines.append(f"slots = (copied - 1) // {SLOTS} * {SLOTS}")
    return [*lines, *_slots(inner)]


def loading_lines(block: Block, number: int, eviction: str = "") -> list[str]:
    """The lines of a statement; what it loads for the points of a row has the layout of rows."""
    lines = statement_lines(block, number, eviction)
    is_load = isinstance(block.kernel.body[number], Load)
    if not block.tiling.shared_pieces or not is_load or number not in block.varying:
        return lines
    name = block.names[number]
    return [*lines, f"{name} = tl.set_auto_layout({name}, {ROW_LAYOUT})"]


def own_reduces(block: Block, phase: Phase) -> list[int]:
    """The reductions of a loop that accumulate; moments make their guide with them.

    Other sums that equal a guide are statements of their own.
    """
    made = {guide_of(block.kernel, number) for number in _moments(block, phase)}
    return [number for number in phase.reduces if number not in made]


def first_point_lines(block: Block, phase: Phase, held: tuple[int, ...]) -> list[str]:
    """Each lane's first values of what moments are taken of."""
    needed = {operands_of(block.kernel.body[number])[0] for number in _moments(block, phase)}
    if not needed:
        return []
    for number in reversed(range(max(needed) + 1)):
        if number in needed:
            needed.update(operands_of(block.kernel.body[number]))
    full = replace(block, r_mask="")
    lines = [
        f"roffset = {first_in_registers(block)} * RBLOCK",
        "rindex = roffset + tl.arange(0, RBLOCK)[None, :]",
        *reduction_point_lines(full),
    ]
    for number in phase.within:
        name = block.names[number]
        if number in needed:
            is_held = number in held
            lines += [f"{name} = {name}_row[0]"] if is_held else loading_lines(full, number)
    return _renamed(drop_unused_axes(lines), "first_offset")


def shared_loop_lines(
    block: Block, phase: Phase, held: tuple[int, ...], together: tuple[int, ...]
) -> list[str]:
    """The loop over the pieces in shared memory; loads of `together` come before its stores."""
    shared = _in_shared(block)
    loops = []
    if together:
        inner = _slot_lines(shared)
        for number in together:
            name = block.names[number]
            inner += [*loading_lines(shared, number), f"{name}_group = {name}_group + ({name},)"]
        loops.append(inner)
    inner = _slot_lines(shared)
    for number in phase.within:
        if number in held:
            name = block.names[number]
            inner.append(f"{name} = {name}_shared.index(slot).load({ROW_LAYOUT})")
        elif number in together:
            inner.append(f"{block.names[number]} = {block.names[number]}_group[step]")
        else:
            inner += loading_lines(shared, number)
    for number in own_reduces(block, phase):
        inner += reduction_text(shared, number).step
    starts = [f"{block.names[number]}_group = ()" for number in together]
    return _over_slots(block, [*loops, inner], starts)


def _moments(block: Block, phase: Phase) -> list[int]:
    statements = ((number, block.kernel.body[number]) for number in phase.reduces)
    return [number for number, s in statements if isinstance(s, Reduce) and s.op == MOMENTS]


def _in_shared(block: Block) -> Block:
    """The block of a piece in shared memory."""
    return block if is_varying(block) else replace(block, r_mask="")


def _layout_lines(block: Block) -> list[str]:
    tiling = block.tiling
    lanes = tiling.rblock // (ACCESS_ELEMS * tiling.num_warps)
    lines = [
        f"{ROW_LAYOUT}: tl.constexpr = tl.BlockedLayout("
        f"[1, {ACCESS_ELEMS}], [1, {lanes}], [1, {tiling.num_warps}], [1, 0])",
        "SHARED: tl.constexpr = tl.SwizzledSharedLayout(1, 1, 1, [1, 0])",
    ]
    if not is_varying(block):
        # A launch has one plane of programs, whose number is 0: so compilers do not know the count,
        # and do not unroll loops over it.
        return [*lines, f"copied = {tiling.shared_pieces} + tl.program_id(2)"]
    held = tiling.pieces - tiling.shared_pieces
    count = f"(rnumel + RBLOCK - 1) // RBLOCK - {held}"
    return [*lines, f"copied = ({count}).to(tl.int32)"]  # Gluon takes numbers of 32 bits alone.


def _type(block: Block, number: int) -> str:
    return triton_type(_dtype(block, number), block.rules.target)


def _dtype(block: Block, number: int) -> DType:
    load = block.kernel.body[number]
    if not isinstance(load, Load):
        raise ValueError(f"statement {number} is no load")
    return block.kernel.param(load.param).dtype


def _slot_lines(block: Block) -> list[str]:
    """Lines for the points of a piece in shared memory."""
    others = block.tiling.pieces - block.tiling.shared_pieces
    piece = f"({others} + slot)" if is_varying(block) else "slot"
    return [
        "slot = slots + step",
        f"roffset = {piece} * RBLOCK",
        "rindex = roffset + tl.arange(0, RBLOCK)[None, :]",
        *reduction_point_lines(block),
    ]


def _over_slots(block: Block, loops: list[list[str]], starts: list[str] | None = None) -> list[str]:
    """Loops over some pieces at a time, within one over all of them."""
    lines = [*(starts or []), *(line for inner in loops for line in _slots(inner))]
    return [f"for slots in range(0, copied, {SLOTS}):", *[_STEP + line for line in lines]]


def _slots(inner: list[str]) -> list[str]:
    """A loop over the pieces of one iteration."""
    body = _renamed(drop_unused_axes(inner), "shared_offset")
    return [f"for step in tl.static_range({SLOTS}):", *[_STEP + line for line in body]]


def _renamed(lines: list[str], offset: str) -> list[str]:
    """The lines of a loop, whose offset has a name of its own: it may not change its type."""
    return [_OFFSET.sub(offset, line) for line in lines]


_HEADER = """\
import triton.language as triton_language
from triton.experimental import gluon
from triton.experimental.gluon import language as tl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
"""
_CHANGES = (
    ("import triton\nimport triton.language as tl\n", _HEADER),
    ("@triton.jit\n", "@gluon.jit\n"),
    ("tl.PropagateNan", "triton_language.PropagateNan"),
)


def in_gluon(text: str) -> str:
    """A module's text with the names of Triton's language of layouts."""
    for triton, gluon in _CHANGES:
        text = text.replace(triton, gluon)
    return text

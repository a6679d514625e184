"""Rows that a program holds in registers, in pieces: the loops over a row, unrolled.

The pieces are loaded first, so that all of a row is on its way at the same time. Each later loop
makes what it needs from them again: an element of 16 bits takes half a register, what is computed
from it takes a whole one. Between two pieces of the last loop are stores, which keep the loads of
weights where they are. So registers hold the row, and little else. On some chips, other pieces of
long rows are in shared memory (`split_rows.py`).
"""

from __future__ import annotations

from codegen_svc.emitters.triton.accesses import STREAMED
from codegen_svc.emitters.triton.block import Block
from codegen_svc.emitters.triton.held_loads import (
    bytes_of,
    held_loads,
    loads_ahead,
    reads_only,
)
from codegen_svc.emitters.triton.phases import Phase, plan_phases
from codegen_svc.emitters.triton.points import reduction_point_lines
from codegen_svc.emitters.triton.split_rows import (
    copy_lines,
    first_in_registers,
    first_point_lines,
    in_registers,
    loading_lines,
    own_reduces,
    shared_loop_lines,
    wait_lines,
)
from codegen_svc.emitters.triton.statements import reduction_text, statement_lines
from codegen_svc.emitters.triton.unused_lines import drop_unused_axes, drop_unused_values

_STEP = "    "


def held_body(block: Block) -> list[str]:
    """The lines of a kernel whose rows are held in pieces."""
    held = held_loads(block.kernel)
    is_split = block.tiling.shared_pieces > 0
    lines = copy_lines(block, held) if is_split else []
    lines += _loading_lines(block, held)
    lines += wait_lines(block, held) if is_split else []
    phases = plan_phases(block.kernel)
    looping = [phase for phase in phases if phase.within or phase.reduces]
    # Behind a loop that is not unrolled, compilers do not know any more that two elements share a
    # register.
    is_first = dict.fromkeys(held, not is_split)
    for phase in phases:
        for number in phase.before:
            lines += statement_lines(block, number)
        if phase in looping:
            lines += _phase_lines(block, phase, is_first, is_last=phase is looping[-1])
    return drop_unused_values(block, lines)


def _loading_lines(block: Block, held: tuple[int, ...]) -> list[str]:
    inner: list[str] = []
    # The first-level cache keeps weights instead of rows, which are read once. On an H200, of
    # 50,304 elements, LayerNorm reaches 87 instead of 84% of a copy, RMSNorm 99 instead of 97.
    block = in_registers(block)
    shares_cache = block.rules.takes_assembly and not reads_only(block.kernel, held)
    for number in held:
        name = block.names[number]
        inner += loading_lines(block, number, STREAMED if shares_cache else "")
        inner.append(f"{name}_row = {name}_row + ({name},)")
    starts = [f"{block.names[number]}_row = ()" for number in held]
    return [*starts, *_unrolled(block, inner)]


def _phase_lines(
    block: Block, phase: Phase, is_first: dict[int, bool], *, is_last: bool
) -> list[str]:
    """One loop over the pieces; `is_first` has the held loads whose values no loop used yet."""
    held = held_loads(block.kernel)
    is_split = block.tiling.shared_pieces > 0
    whole, block = block, in_registers(block)
    texts = [reduction_text(block, number) for number in own_reduces(block, phase)]
    lines = first_point_lines(block, phase, held) if is_split else []
    lines += [line for text in texts for line in text.initial]
    ahead = loads_ahead(block.kernel) if is_last and block.tiling.loads_ahead else ()
    if is_split:
        together = loads_ahead(block.kernel) if is_last else ()
        lines += shared_loop_lines(whole, phase, held, together)
    lines += _first_lines(block, ahead)
    inner: list[str] = []
    after: list[str] = []
    for number in phase.within:
        name = block.names[number]
        if number in ahead:
            inner.append(f"{name} = {name}_ahead[piece]")
            continue
        if number not in is_first:
            inner += loading_lines(block, number)
            continue
        again = _again(block, number) if not is_first[number] else ""
        inner.append(
            f"{name} = {again}({name}_row[piece])" if again else f"{name} = {name}_row[piece]"
        )
        is_first[number] = False
        if again and not is_last:  # Else the next loop would find the values of this one.
            lines.append(f"{name}_next = ()")
            inner.append(f"{name}_next = {name}_next + ({name},)")
            after.append(f"{name}_row = {name}_next")
    for text in texts:
        inner += text.step
    return [*lines, *_unrolled(block, inner, ahead), *after, *(f for t in texts for f in t.final)]


def _first_lines(block: Block, ahead: tuple[int, ...]) -> list[str]:
    """Loads of the first pieces, before the loop."""
    if not ahead:
        return []
    inner = [*_piece_lines(block, "piece"), *_ahead_lines(block, ahead)]
    starts = [f"{block.names[number]}_ahead = ()" for number in ahead]
    return [*starts, *_static_loop(block.tiling.loads_ahead, drop_unused_axes(inner))]


def _next_lines(block: Block, ahead: tuple[int, ...]) -> list[str]:
    """Loads of a later piece, which no compiler would move before the stores of this one."""
    if not ahead:
        return []
    by = block.tiling.loads_ahead
    inner = [*_piece_lines(block, f"(piece + {by})"), *_ahead_lines(block, ahead)]
    body = drop_unused_axes(inner)
    return [f"if piece < {_register_pieces(block) - by}:", *[_STEP + line for line in body]]


def _ahead_lines(block: Block, ahead: tuple[int, ...]) -> list[str]:
    lines: list[str] = []
    for number in ahead:
        name = block.names[number]
        lines += [*loading_lines(block, number), f"{name}_ahead = {name}_ahead + ({name},)"]
    return lines


def _again(block: Block, number: int) -> str:
    """The function that hides a held value from the compiler; empty without inline assembly."""
    if not block.rules.takes_assembly:
        return ""
    return "kf_again" if bytes_of(block.kernel, number) == 2 else "kf_again_word"


def _unrolled(block: Block, inner: list[str], ahead: tuple[int, ...] = ()) -> list[str]:
    """A loop over the pieces; `ahead` are loads that run ahead of it."""
    body = drop_unused_axes([*_piece_lines(block, "piece"), *inner])
    return _static_loop(_register_pieces(block), [*_next_lines(block, ahead), *body])


def _register_pieces(block: Block) -> int:
    return block.tiling.pieces - block.tiling.shared_pieces


def _static_loop(count: int, inner: list[str]) -> list[str]:
    return [f"for piece in tl.static_range({count}):", *[_STEP + line for line in inner]]


def _piece_lines(block: Block, piece: str) -> list[str]:
    """Lines for the points of a piece in registers."""
    first = first_in_registers(block)
    piece = f"({first} + {piece})" if first else piece
    return [
        f"roffset = {piece} * RBLOCK",
        "rindex = roffset + tl.arange(0, RBLOCK)[None, :]",
        *reduction_point_lines(block),
    ]

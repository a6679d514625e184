"""Applies the hints of a user's kernel to the Linalg text, in which loads carry their marks.

A hint of a load becomes an annotation of the block, a hint of a loop a scope around the loop. A
hint that does not fit the blocks, or the chip's buffers, is ignored, and a note says why.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from codegen_svc.backends.ascend.linalg_text import LoadedBlock, Loop, loaded_blocks, loops_of
from codegen_svc.backends.ascend.marked_loads import MARK, LoadHint, MarkedKernel
from codegen_svc.backends.ascend.scopes import (
    add_scopes,
    block_mark,
    can_be_scoped,
    padding_mark,
)
from kernelfarm.ir.hints import DOT_PAD_ONLY_K
from kernelfarm.targets import LocalBufferFacts, TargetFacts

_MARK = re.compile(
    rf"^(?P<indent>\s*)annotation\.mark (?P<block>%[\w$.-]+)"
    rf" {{{re.escape(MARK)} = (?P<hint>\d+) : i32}} : "
)


@dataclass(frozen=True, slots=True)
class HintedText:
    """Linalg text with annotations and scopes, and what became of each hint."""

    linalg: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Use:
    """A hint that fits, with its blocks; `loop` is the loop that it is for, if it is for one."""

    hint: LoadHint
    blocks: tuple[LoadedBlock, ...]
    loop: Loop | None = None


@dataclass(frozen=True, slots=True)
class _Text:
    """The lines of a Linalg text, and what they hold."""

    lines: Sequence[str]
    blocks: tuple[LoadedBlock, ...]
    loops: tuple[Loop, ...]


def apply_load_hints(linalg: str, marked: MarkedKernel, target: TargetFacts) -> HintedText:
    """The text with the hints that fit it, and without marks."""
    if not marked.stated:
        return HintedText(linalg, ())
    lines = linalg.splitlines()
    text = _Text(lines, loaded_blocks(lines), loops_of(lines))
    marks = _marks(text)
    problems = dict(marked.problems)
    uses: dict[int, _Use] = {}
    for number, hint in enumerate(marked.hints):
        found = _use(hint, marks.get(number, []), text)
        if isinstance(found, str):
            problems[hint.hint] = found
        else:
            uses[number] = found
    if problem := _excess(uses.values(), text, target):
        problems |= {use.hint.hint: problem for use in uses.values() if use.hint.copies}
        uses = {number: use for number, use in uses.items() if not use.hint.copies}
    notes = (
        f"hint {hint} at line {hint.line}: "
        + (f"ignored: {problems[hint]}" if hint in problems else "applied")
        for hint in marked.stated
    )
    return HintedText(_changed(linalg, uses), tuple(notes))


def _marks(text: _Text) -> dict[int, list[LoadedBlock | None]]:
    """The marked blocks by hint; None for a value that is no block copied from memory."""
    made_at = {block.line: block for block in text.blocks}
    last: dict[str, LoadedBlock] = {}
    found: dict[int, list[LoadedBlock | None]] = {}
    for number, line in enumerate(text.lines):
        if block := made_at.get(number):
            last[block.name] = block
        elif mark := _MARK.match(line):
            found.setdefault(int(mark["hint"]), []).append(last.get(mark["block"]))
    return found


def _use(hint: LoadHint, marked: Sequence[LoadedBlock | None], text: _Text) -> _Use | str:
    """The use of a hint, or why there is none."""
    blocks = tuple(block for block in marked if block is not None)
    if not marked:
        return "no load of a block is left of its statement"
    if len(blocks) < len(marked):
        return "its elements are not copied as a block"
    if hint.hint.name == DOT_PAD_ONLY_K:
        problem = "something else than matrix products uses the block"
        return _Use(hint, blocks) if all(block.is_operand for block in blocks) else problem
    if not hint.of_loop:
        is_in_loops = all(any(loop.has(b.line) for loop in text.loops) for b in blocks)
        return _Use(hint, blocks) if is_in_loops else "no loop fetches a next block"
    around = [loop for loop in text.loops if all(loop.has(block.line) for block in blocks)]
    # The last one is the innermost one.
    if not around or not can_be_scoped(text.lines, around[-1]):
        return "the compiled kernel has no such loop"
    return _Use(hint, blocks, around[-1])


def _excess(uses: Collection[_Use], text: _Text, target: TargetFacts) -> str:
    """Why the blocks of a loop do not fit the chip's buffers with their copies; empty if they do.

    What the kernel computes needs memory, too, so CANN's compiler may still find that they do not.
    """
    of_vectors = target.section(LocalBufferFacts).size_bytes
    of_cubes = None if target.cube is None else target.cube.l1_bytes
    buffers = (("cube core", True, of_cubes), ("vector core", False, of_vectors))
    for loop in text.loops:
        blocks = [block for block in text.blocks if loop.has(block.line)]
        for name, of_operands, limit in buffers:
            needed = sum(
                block.size_bytes
                * max((u.hint.copies for u in uses if _is_for(u, block)), default=1)
                for block in blocks
                if block.is_operand == of_operands
            )
            if limit is not None and needed > limit:
                return (
                    f"the blocks of a loop need {needed} bytes of a {name}'s buffer, which has"
                    f" {limit}"
                )
    return ""


def _is_for(use: _Use, block: LoadedBlock) -> bool:
    """True if a hint of copies is for a block."""
    if not use.hint.copies:
        return False
    return use.loop.has(block.line) if use.loop is not None else block in use.blocks


def _changed(linalg: str, uses: Mapping[int, _Use]) -> str:
    """The text with scopes, and with annotations in the place of marks."""
    copies: dict[Loop, int] = {}
    for use in uses.values():
        if use.loop is not None:
            copies[use.loop] = max(use.hint.copies, copies.get(use.loop, 0))
    made: list[str] = []
    for line in add_scopes(linalg, copies).splitlines():
        mark = _MARK.match(line)
        if mark is None:
            made.append(line)
            continue
        use_of = uses.get(int(mark["hint"]))
        if use_of is not None and use_of.loop is None:
            block = next(block for block in use_of.blocks if block.name == mark["block"])
            made.append(mark["indent"] + _annotation(use_of.hint, block))
    return "\n".join((*made, ""))


def _annotation(hint: LoadHint, block: LoadedBlock) -> str:
    if hint.copies:
        return block_mark(block, hint.copies)
    return padding_mark(block)

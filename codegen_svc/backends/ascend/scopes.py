"""Scopes: regions of Linalg text that carry hints for the loop in them.

    %results = "scope.scope"() ({
      %scoped_results = scf.for ...
      "scope.return"(%scoped_results) : (types) -> ()
    }) {multibuffer = 2 : i32} : () -> (types)

This is the operation of FLIR and AscendNPU-IR in MLIR's generic form. The adapter and its LLVM have
no such dialect, so scopes are made of the adapter's text, and are lowered before CANN's compiler
reads it, by this rule:

- `multibuffer = N`: each block that a loop in the scope copies from memory has N buffers, so that
  the next block is fetched while one is computed: `annotation.mark %block {hivm.multi_buffer = N}`.
  A block with a number of its own keeps it. In nested scopes, the inner one counts.
- Then the scope is dissolved: its loop takes its place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import takewhile

from codegen_svc.backends.ascend.linalg_text import (
    LoadedBlock,
    Loop,
    end_of,
    indent_of,
    loaded_blocks,
    loops_of,
)
from kernelfarm.errors import InternalError
from kernelfarm.ir.artifact import StageText
from kernelfarm.ir.hints import DOT_PAD_ONLY_K

_FOR = re.compile(
    r"^\s*(?:%(?P<name>[\w$.-]+)(?::(?P<count>\d+))? = )?scf\.for .*?"
    r"(?: -> \((?P<types>.*)\))?(?:  : \w+)? \{$"
)
_OPEN = re.compile(r"^\s*(?:%(?P<name>[\w$.-]+)(?::\d+)? = )?\"scope\.scope\"\(\) \(\{$")
_CLOSE = re.compile(r"^\s*\}\) \{multibuffer = (?P<copies>\d+) : i32\} : \(\) -> ")
_INNER = "%scoped_"


def can_be_scoped(lines: Sequence[str], loop: Loop) -> bool:
    """True for an `scf.for`."""
    return _FOR.match(lines[loop.first]) is not None


def scope_loops(linalg: str, copies: int) -> str:
    """The text with a scope around each outermost loop that copies blocks from memory."""
    lines = linalg.splitlines()
    blocks = loaded_blocks(lines)
    chosen: list[Loop] = []
    for loop in loops_of(lines):
        is_inner = any(outer.has(loop.first) for outer in chosen)
        has_block = any(loop.has(block.line) for block in blocks)
        if has_block and not is_inner and can_be_scoped(lines, loop):
            chosen.append(loop)
    return add_scopes(linalg, dict.fromkeys(chosen, copies))


def add_scopes(linalg: str, copies: Mapping[Loop, int]) -> str:
    """The text with a scope around each of these `scf.for`, for so many copies of its blocks."""
    lines = linalg.splitlines()
    # Later loops, and inner ones, come first, so that the numbers of the other lines stay valid;
    # the end of a loop is found again, as inner scopes have lines of their own.
    for loop in sorted(copies, key=lambda loop: -loop.first):
        last = end_of(lines, loop.first)
        lines[loop.first : last + 1] = _scope(lines[loop.first : last + 1], copies[loop])
    return "\n".join((*lines, ""))


def lower_scopes(linalg: str) -> str:
    """The text without scopes: their hints are on the blocks that their loops copy."""
    return "\n".join((*_lowered(linalg.splitlines()), ""))


def scopes_stage(linalg: str) -> tuple[StageText, ...]:
    """The text as a stage of its own, if it has scopes."""
    return (StageText("scopes", linalg.encode(), True),) if '"scope.scope"' in linalg else ()


def block_mark(block: LoadedBlock, copies: int) -> str:
    """The annotation that a block has so many buffers."""
    return f"annotation.mark {block.name} {{hivm.multi_buffer = {copies} : i32}} : {block.type}"


def padding_mark(block: LoadedBlock) -> str:
    """The annotation that an operand needs zeros along the axis of its sums alone."""
    return f"annotation.mark {block.name} {{{DOT_PAD_ONLY_K}}} : {block.type}"


def _scope(loop: Sequence[str], copies: int) -> list[str]:
    head = _FOR.match(loop[0])
    if head is None:
        raise InternalError(f"a scope around {loop[0].strip()[:60]!r}; expected an scf.for")
    indent, name = " " * indent_of(loop[0]), head["name"]
    types = head["types"] or ""
    results, first, values = "", loop[0], ""
    if name is not None:
        results = loop[0].strip().partition("scf.for")[0]
        first = loop[0].replace(f"%{name}", f"{_INNER}{name}", 1)
        count = int(head["count"] or 1)
        numbers = [f"#{n}" for n in range(count)] if head["count"] else [""]
        values = ", ".join(f"{_INNER}{name}{number}" for number in numbers)
    return [
        f'{indent}{results}"scope.scope"() ({{',
        *(f"  {line}" for line in (first, *loop[1:])),
        f'{indent}  "scope.return"({values}) : ({types}) -> ()',
        f"{indent}}}) {{multibuffer = {copies} : i32}} : () -> ({types})",
    ]


def _lowered(lines: Sequence[str]) -> list[str]:
    made: list[str] = []
    number = 0
    while number < len(lines):
        scope = _OPEN.match(lines[number])
        if scope is None:
            made.append(lines[number])
            number += 1
            continue
        last = end_of(lines, number)
        close = _CLOSE.match(lines[last])
        if close is None:
            raise InternalError(f"a scope ends with {lines[last].strip()[:60]!r}")
        # The line before the last one returns the results of the scope's loop.
        loop = _lowered([line[2:] for line in lines[number + 1 : last - 1]])
        if scope["name"] is not None:
            loop[0] = loop[0].replace(f"{_INNER}{scope['name']}", f"%{scope['name']}", 1)
        made += _marked(loop, int(close["copies"]))
        number = last + 1
    return made


def _marked(loop: list[str], copies: int) -> list[str]:
    """The loop's lines, in which each block without a number of buffers has one."""
    made = list(loop)
    for block in reversed(loaded_blocks(loop)):
        if not _states_copies(loop, block):
            indent = " " * indent_of(loop[block.line])
            made.insert(block.line + 1, indent + block_mark(block, copies))
    return made


def _states_copies(lines: Sequence[str], block: LoadedBlock) -> bool:
    """True if an annotation behind a block says how many buffers it has."""
    start = f"annotation.mark {block.name} {{hivm.multi_buffer = "
    annotations = takewhile(lambda line: "annotation.mark" in line, lines[block.line + 1 :])
    return any(start in line for line in annotations)

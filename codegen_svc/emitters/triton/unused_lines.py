"""Drops lines of Triton text whose values no later line reads."""

from __future__ import annotations

from codegen_svc.emitters.triton.block import Block
from codegen_svc.emitters.triton.index import R_FLAT, X_FLAT
from kernelfarm.ir.loop_ir import Compute, Literal


def drop_unused_values(block: Block, lines: list[str]) -> list[str]:
    """The lines without inlined numbers and without calls that a narrow form replaces."""
    body = block.kernel.body
    names = {block.names[n] for n, s in enumerate(body) if isinstance(s, Literal | Compute)}
    return _drop_unused(lines, names)


def drop_unused_axes(lines: list[str], flats: tuple[str, ...] = (X_FLAT, R_FLAT)) -> list[str]:
    """The lines without axes that no index needs after flattening; a loop drops its own."""
    candidates = {line.split(" = ")[0] for line in lines if _is_axis_line(line, flats)}
    return _drop_unused(lines, candidates)


def _is_axis_line(line: str, flats: tuple[str, ...]) -> bool:
    name, _, value = line.partition(" = ")
    return (
        name.isidentifier()
        and any(flat in value for flat in flats)
        and "tl." not in value
        and "<" not in value
    )


def _drop_unused(lines: list[str], names: set[str]) -> list[str]:
    kept: list[str] = []
    used: set[str] = set()
    for line in reversed(lines):
        target, _, value = line.strip().partition(" = ")
        if target in names and target not in used:
            continue
        used |= _words(value if target.isidentifier() else line)
        kept.append(line)
    return list(reversed(kept))


def _words(text: str) -> set[str]:
    return set("".join(c if c.isalnum() or c == "_" else " " for c in text).split())

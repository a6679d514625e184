"""The rule that temporaries that are alive at the same time share no bytes of the arena."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernelfarm.errors import VerificationError
from kernelfarm.ir.plan_memory import arena_bytes, buffer_uses
from kernelfarm.ir.program_ir import ARENA_ALIGNMENT_BYTES, BufferKind, Plan

# A symbolic layout is checked for these values of every size symbol: odd, small, aligned, large.
_SAMPLE_SIZES = (1, 2, 7, 64, 1000)


@dataclass(frozen=True, slots=True)
class _Lifetime:
    """Bytes of a temporary, and the steps from its first to its last use."""

    name: str
    first_byte: int
    end_byte: int
    first_step: int
    last_step: int
    is_apart: bool


def check_arena(plan: Plan) -> None:
    """Checks that a plan's temporaries fit into the arena, aligned and without overlap.

    A step that reads one temporary and writes another needs both, so they may not share bytes.

    Raises:
        VerificationError: a temporary is outside, is not aligned, or overlaps another.
    """
    symbols = [source.symbol for source in plan.symbols]
    samples = _SAMPLE_SIZES if symbols else (1,)
    uses = buffer_uses(plan)
    for size in samples:
        values = {name: size for name in symbols}
        lives = _lifetimes(plan, uses, values)
        _check_lifetimes(lives, plan.arena_bytes.evaluate(values))
        _check_apart(lives, arena_bytes(plan, values))


def _lifetimes(
    plan: Plan, uses: Mapping[str, tuple[int, int]], values: Mapping[str, int]
) -> list[_Lifetime]:
    lives = []
    for buffer in plan.buffers:
        steps = uses.get(buffer.name)
        if buffer.kind is not BufferKind.TEMPORARY or buffer.offset_bytes is None or not steps:
            continue
        first = buffer.offset_bytes.evaluate(values)
        size = buffer.size_elems.evaluate(values) * buffer.dtype.itemsize_bytes
        lives.append(_Lifetime(buffer.name, first, first + size, *steps, buffer.is_apart))
    return lives


def _check_apart(lives: list[_Lifetime], first_byte: int) -> None:
    for life in lives:
        if not life.is_apart and life.end_byte > first_byte:
            raise VerificationError(
                f"plan: {life.name} ends at byte {life.end_byte}; expected it before those that"
                f" are apart, which begin at byte {first_byte}"
            )


def _check_lifetimes(lives: list[_Lifetime], size_bytes: int) -> None:
    alive: list[_Lifetime] = []
    for life in sorted(lives, key=lambda life: life.first_step):
        if life.first_byte % ARENA_ALIGNMENT_BYTES:
            raise VerificationError(
                f"plan: {life.name} begins at byte {life.first_byte}; expected a multiple of"
                f" {ARENA_ALIGNMENT_BYTES}"
            )
        if life.first_byte < 0 or life.end_byte > size_bytes:
            raise VerificationError(
                f"plan: {life.name} spans bytes {life.first_byte} to {life.end_byte};"
                f" expected them within an arena of {size_bytes}"
            )
        alive = [other for other in alive if other.last_step >= life.first_step]
        for other in alive:
            if life.first_byte < other.end_byte and other.first_byte < life.end_byte:
                raise VerificationError(
                    f"plan: {life.name} and {other.name} share bytes while both are alive, at step"
                    f" {life.first_step}"
                )
        alive.append(life)

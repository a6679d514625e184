"""Hints: what a user asks the compiler to do for an operation; they never change results.

    num_warps=8, async=3

A target knows some names (`TargetFacts.hints`). It ignores a hint that it does not know or that
does not fit the kernel, and the report says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kernelfarm.errors import InvalidGraphError

MAX_HINTS: Final = 64
"""Hints of one operation, and of one user kernel."""
MAX_HINT_VALUE: Final = 9999

PIPELINE_HINTS: Final[Mapping[str, int]] = {"shared_memory": 2, "async": 3}
"""Hints of loads in a loop, which go through shared memory, and the depths of their pipeline.

With two stages one copy is under way while the last one is used; with three there are two.
"""
PIPELINE_STAGES: Final = range(2, 9)

SCHEDULES: Final[Mapping[str, str]] = {
    "sched_iterative_ilp": "iterative-ilp",
    "sched_max_ilp": "max-ilp",
    "sched_memory_clauses": "max-memory-clause",
}
"""Hints of LLVM's strategies for scheduling instructions, with LLVM's names."""
SWITCHES: Final = ("async_copy", "block_pingpong", "buffer_ops", "cu_mode", "passes", *SCHEDULES)
"""Hints that are 0 or 1; without a number 1."""
FLAT_GROUP: Final = "flat_work_group_size"
"""The hint of the most work items of a group, for which registers are shared out."""
MATRIX_SIDE: Final = "matrix_instr_nonkdim"
"""The hint of the rows and columns of the instructions for matrices."""
PRODUCT_HINTS: Final = ("async_copy", "block_pingpong", "kpack", MATRIX_SIDE, "num_stages")
"""Hints that concern the loop of a product of matrices."""
STAGES_OF_PRODUCTS: Final = range(1, 9)
K_PACKS: Final = range(1, 3)

MULTIBUFFER: Final = "multibuffer"
"""The hint that a block which is copied from memory has several buffers."""
DOT_PAD_ONLY_K: Final = "dot_pad_only_k"
"""The hint that an operand of a product needs zeros along the axis of its sums alone."""
_DEFAULT_COPIES: Final = 2

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
_HINT: Final = re.compile(rf"\s*({_NAME.pattern})\s*(?:=\s*([0-9]{{1,4}})\s*)?")


@dataclass(frozen=True, slots=True, order=True)
class KernelHint:
    """A hint by name, with the number that it states or None."""

    name: str
    value: int | None = None

    def __str__(self) -> str:
        """The hint as a user states it."""
        return self.name if self.value is None else f"{self.name}={self.value}"


@dataclass(frozen=True, slots=True)
class NodeHint:
    """A hint for a captured node, by the node's number."""

    node: int
    hint: KernelHint


def block_copies(stated: int | None) -> int:
    """The buffers of a block by the number of a hint `multibuffer`: 2 without one."""
    return _DEFAULT_COPIES if stated is None else stated


def read_hint(text: str) -> KernelHint | None:
    """The hint of a text `NAME` or `NAME=NUMBER`; None if it has another form."""
    found = _HINT.fullmatch(text)
    if found is None:
        return None
    return KernelHint(found[1], None if found[2] is None else int(found[2]))


def read_hints(text: str) -> tuple[KernelHint, ...]:
    """The hints of a text, which has commas between them.

    Raises:
        InvalidGraphError: one has another form, or there are too many.
    """
    parts = text.split(",", MAX_HINTS)
    found = []
    for part in parts[:MAX_HINTS]:
        hint = read_hint(part)
        if hint is None:
            raise InvalidGraphError(
                f"hint {part.strip()[:60]!r}; expected NAME or NAME=NUMBER, several with commas"
                " between them"
            )
        found.append(hint)
    if len(parts) > MAX_HINTS:
        raise InvalidGraphError(f"more than {MAX_HINTS} hints; expected at most as many")
    return tuple(found)


def check_hint(hint: KernelHint, where: str) -> None:
    """Passes a hint of the form that `read_hint` reads.

    Raises:
        InvalidGraphError: it has another form.
    """
    is_number = hint.value is None or 0 <= hint.value <= MAX_HINT_VALUE
    if not _NAME.fullmatch(hint.name) or not is_number:
        raise InvalidGraphError(
            f"{where}: hint {hint.name[:40]!r} of {hint.value}; expected a name, and a number from"
            f" 0 to {MAX_HINT_VALUE} or none"
        )

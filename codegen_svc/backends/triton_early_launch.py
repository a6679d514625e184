"""Programmatic dependent launches: a kernel's blocks may start before the kernel ahead has ended.

A launch that the client marks so starts once all blocks of the kernel ahead run or have ended. Its
own first instruction waits until that kernel has ended and its writes are seen, so what the blocks
gain is the time of their start. The second one lets the kernel behind start in the same way.

Every kernel waits, so the one ahead has ended only after all others before it: the order of a
stream holds, also for memory that is used again.

Source: PTX ISA 9.0, "griddepcontrol"; CUDA programming guide, "programmatic dependent launch".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from kernelfarm.errors import InternalError

PROGRAMMATIC_LAUNCH = "programmatic_launch"
"""The fact of a compilation that the kernel waits for the one ahead itself."""

_INSTRUCTIONS = "\tgriddepcontrol.wait;\n\tgriddepcontrol.launch_dependents;\n"
# What LLVM prints at the begin of a function's first block, behind declarations.
_ENTRY = re.compile(r"^\.visible \.entry .*?^// %bb\.0:[^\n]*\n", re.DOTALL | re.MULTILINE)


def early_launch_stage(
    make_ptx: Callable[[Any, dict[str, Any]], str],
) -> Callable[[Any, dict[str, Any]], str]:
    """Triton's stage `ptx`, with the instructions at the kernel's begin, and the fact of it."""

    def run(source: Any, facts: dict[str, Any]) -> str:
        text = waiting_first(make_ptx(source, facts))
        facts[PROGRAMMATIC_LAUNCH] = True
        return text

    return run


def waiting_first(ptx: str) -> str:
    """The text of one kernel, whose first instructions are those of a programmatic launch.

    Raises:
        InternalError: the text has no kernel.
    """
    found = _ENTRY.search(ptx)
    if found is None:
        raise InternalError("the PTX text has no entry with a first block")
    return ptx[: found.end()] + _INSTRUCTIONS + ptx[found.end() :]

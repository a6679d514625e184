"""A function that kernels call: it marks the operation of a load with numbers.

Only the process that evaluates a kernel imports this module, because it needs Triton.
"""

from __future__ import annotations

from typing import Any

import triton.language as tl
from triton._C.libtriton import ir

from codegen_svc.backends.ascend.marked_loads import MARK


def _mark(value: Any, *numbers: Any, _semantic: Any = None) -> Any:
    """The value of a load, whose operation has the numbers as an attribute."""
    handle = value.handle
    plain = [number.value for number in numbers]  # a kernel's literals are constants of Triton
    handle.set_attr(MARK, ir.make_attr(plain, handle.get_context()))
    return value


mark: Any = tl.core.builtin(_mark)

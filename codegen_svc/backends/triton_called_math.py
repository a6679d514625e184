"""Mathematical functions that a kernel calls instead of holding a copy for each use.

Triton inlines its vendor's library into every element's code: one f32 tangent is 200 KB of LLVM IR
in a block of eight elements for each thread, and 250 of them took 120 s and 1.5 GB of ptxas.
Kernels that would grow so get the library with its larger functions marked `noinline`, and one
element for each thread. Values are those of inlined functions but for the contraction of products
and sums across the call, which `docs/gpu.md` compares.
"""

from __future__ import annotations

import re
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Final

from codegen_svc.backends.wheel_digest import wheel_digest
from codegen_svc.cost_estimate import inlined_math_s
from kernelfarm.errors import UnavailableError
from kernelfarm.ir.loop_ir import Kernel

# A kernel whose inlined functions would compile longer than this calls them. Kernels of models stay
# below: the largest of them use a handful.
_CALLS_ABOVE_S: Final = 2.0
# Smaller functions cost less than a call.
_CALLED_INSTRUCTIONS: Final = 30
_REMEDY: Final = "pip install 'llvmlite==0.50.*'"
_NAME: Final = re.compile(r'@"?([\w.$]+)"?\(')
_ALWAYS_INLINE: Final = re.compile(r"^(attributes #\d+ = \{.*?)\balwaysinline\b", re.MULTILINE)


def calls_math(kernel: Kernel, vendor: str) -> bool:
    """True if the kernel's mathematical functions should be called."""
    return inlined_math_s(kernel, vendor) > _CALLS_ABOVE_S


def rewriter_digest() -> str:
    """What rewrites libraries, for fingerprints.

    Raises:
        UnavailableError: llvmlite is not installed.
    """
    return wheel_digest("llvmlite", _REMEDY)


def called_library(path: str) -> str:
    """A file with the library of a path, in which larger functions are not inlined.

    Raises:
        UnavailableError: llvmlite is not installed.
    """
    file = Path(tempfile.gettempdir(), f"called-{Path(path).stem}.ll")
    if not file.exists():
        file.write_text(_called_text(path))
    return str(file)


@lru_cache(maxsize=2)
def _called_text(path: str) -> str:
    try:
        import llvmlite.binding as llvm  # noqa: PLC0415 - only kernels that call need it
    except ImportError as error:
        raise UnavailableError(f"llvmlite is missing: {_REMEDY}") from error
    module = llvm.parse_bitcode(Path(path).read_bytes())
    large = {
        function.name
        for function in module.functions
        if sum(1 for block in function.blocks for _ in block.instructions) >= _CALLED_INSTRUCTIONS
    }
    text = _ALWAYS_INLINE.sub(r"\1", str(module))
    return "\n".join(_marked(line, large) for line in text.splitlines()) + "\n"


def _marked(line: str, large: set[str]) -> str:
    found = _NAME.search(line) if line.startswith("define ") and line.endswith(" {") else None
    if found is None or found[1] not in large:
        return line
    return line.removesuffix("{") + "noinline {"

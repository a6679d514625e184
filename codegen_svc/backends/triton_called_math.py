"""Libraries of mathematical functions that a kernel calls, instead of holding a copy for each use.

Triton inlines the vendor's library into every element's code. One f32 tangent is 200 KB of LLVM IR
in a block of eight elements for each thread; 250 of them took 120 s and 1.5 GB in ptxas. For a
kernel that would grow so, the library's larger functions are marked `noinline`, and each thread
computes one element. The values are those of inlined functions, except that products and sums are
not contracted across a call (`docs/results/gpu.md` compares them).
"""

from __future__ import annotations

import re
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Final

from codegen_svc.backends.wheel_digest import wheel_digest
from kernelfarm.errors import UnavailableError

# Smaller functions cost less than a call.
_CALLED_INSTRUCTIONS: Final = 30
_REMEDY: Final = "pip install 'llvmlite==0.50.*'"
_NAME: Final = re.compile(r'@"?([\w.$]+)"?\(')
_ALWAYS_INLINE: Final = re.compile(r"^(attributes #\d+ = \{.*?)\balwaysinline\b", re.MULTILINE)


def rewriter_digest() -> str:
    """Digest of the wheel that rewrites libraries, for fingerprints.

    Raises:
        UnavailableError: llvmlite is not installed.
    """
    return wheel_digest("llvmlite", _REMEDY)


def called_library(path: str) -> str:
    """The path of a copy of a library in which larger functions are not inlined.

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

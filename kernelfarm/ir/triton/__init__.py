"""Triton kernels that users bring: their source as text, which is checked and never executed here.

`check_source.py` reads a source and answers with its parts; `language.py` has the closed set of
names. Services parse sources, but only the sandboxed process of a compilation evaluates one.
"""

from kernelfarm.ir.triton.check_source import CheckedSource, check_source

__all__ = ["CheckedSource", "check_source"]

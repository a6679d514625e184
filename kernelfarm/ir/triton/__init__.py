"""Triton kernels that users bring: their source as text, which is checked and never executed here.

`check_source.py` reads a source and answers with its parts; `language.py` has the closed set of
names; `user_kernel.py` is a kernel as data. Services parse sources, but only the sandboxed process
of a compilation evaluates one.
"""

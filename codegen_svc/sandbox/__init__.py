"""Compilations in processes that may do nothing but compile.

A worker process starts one *zygote* (`zygote.py`): a fresh interpreter that imports and warms the
toolchain once. It forks children ahead of time; a child gives up every right that compiling does
not need (`restrictions.py`), then waits for its jobs, all of one namespace (`children.py`). The
worker (`compiler.py`) sends a kernel's bytes, limits the time, and checks what comes back
(`outcome.py`). Keys and credentials are only in the worker.
"""

from codegen_svc.sandbox.compiler import SandboxedBackend
from codegen_svc.sandbox.level import ConfinementLevel, Mechanism

__all__ = ["ConfinementLevel", "Mechanism", "SandboxedBackend"]

"""Compilations in confined processes, which have only the rights that compiling needs.

A worker process starts one *zygote* (`zygote.py`): a new interpreter that imports the toolchain and
warms it up once. The zygote forks children ahead of time. A child gives up every right that
compiling does not need (`restrictions.py`), then waits for its jobs, all of one namespace
(`child.py`, `processes.py`). The worker (`compiler.py`) sends a kernel's bytes, limits the time,
and checks the result (`outcome.py`). Only the worker has keys and credentials.
"""

from codegen_svc.sandbox.compiler import SandboxedBackend
from codegen_svc.sandbox.level import ConfinementLevel, Mechanism

__all__ = ["ConfinementLevel", "Mechanism", "SandboxedBackend"]

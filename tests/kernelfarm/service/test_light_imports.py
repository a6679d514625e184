"""What a service imports: nothing that takes long and serves a feature that it does not use."""

from __future__ import annotations

import subprocess
import sys

IMPORTED = """
import importlib, sys
for name in (
    "frontend_svc.serve", "optimizer_svc.service", "codegen_svc.edge.service",
    "codegen_svc.worker.main_process", "codegen_svc.sandbox.zygote",
):
    importlib.import_module(name)
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_no_service_imports_what_it_does_not_use() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True
    )
    imported = set(done.stdout.split())
    assert {"redis", "structlog", "celery", "grpc"} <= imported
    # Optional parts of redis-py and structlog; what a client needs; what pages need.
    assert imported.isdisjoint({"opentelemetry", "rich", "torch", "jinja2", "starlette"})

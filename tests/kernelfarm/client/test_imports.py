"""What the backend imports beyond PyTorch's own modules, in a new process."""

from __future__ import annotations

import json
import sys

from tests.support.torch_children import run_python

MOST_MODULES = 231
"""It imports 231 modules; pydantic and gRPC alone had 120."""

ALLOWED = {"kernelfarm", "google", "encodings"}
"""Beside the standard library: kernelfarm and protobuf, which every graph needs."""

PROGRAM = """
import json, sys
from importlib import import_module
import torch, torch._dynamo, torch._functorch.aot_autograd
from kernelfarm.client.pytorch.private import LATE_IMPORTS
for name in LATE_IMPORTS:
    import_module(name)
before = set(sys.modules) - {n for n in sys.modules if n.startswith("kernelfarm")}
import kernelfarm.client.torch_backend
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_the_backend_imports_no_grpc_pydantic_cryptography_or_numpy() -> None:
    done = run_python(("-c", PROGRAM))
    assert done.returncode == 0, done.stderr
    modules = json.loads(done.stdout)
    roots = {name.partition(".")[0] for name in modules}
    assert roots - ALLOWED - sys.stdlib_module_names == set()
    assert not [name for name in modules if name.startswith("kernelfarm.client.precompiled")]
    assert len(modules) <= MOST_MODULES

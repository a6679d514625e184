"""Processes that compile with Triton or Inductor alone, and use the farm as their remote cache.

Each prints one line of JSON. The farm's settings come from the environment.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelfarm.signing.key_files import PUBLIC_KEYS, TRACE_KEY
from tests.support.torch_children import run_python
from tests.support.trace_machines import Fleet

TRITON_MANAGER = "kernelfarm.client.drop_in.triton_cache:FarmCacheManager"

_TRITON_KERNEL = """
import triton
import triton.language as tl

@triton.jit
def scale(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, at < n) * NUMBER, at < n)
"""

_TRITON_PROGRAM = """
import hashlib, json, sys
sys.path.insert(0, sys.argv[1])
from kernel import scale, triton
from triton.backends.compiler import GPUTarget
from kernelfarm.client import counters
targets = [GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx942", 64)]
hits = []
triton.knobs.compilation.listener = lambda **seen: hits.append(seen["cache_hit"])
binaries = []
for target in targets:
    signature = {"x": "*fp32", "y": "*fp32", "n": "i32", "BLOCK": "constexpr"}
    source = triton.compiler.ASTSource(scale, signature, {"BLOCK": 64})
    compiled = triton.compile(source, target=target)
    binaries.append(hashlib.sha256(compiled.kernel).hexdigest())
print(json.dumps({"hits": hits, "binaries": binaries, "counters": counters.snapshot()}))
"""

WITH_KERNEL = "lambda x: (x * NUMBER).sin().sum(0)"
"""A graph for which each process starts the C++ compiler, also one that finds it at the farm."""
WITHOUT_KERNEL = "lambda x: torch.addmm(x, x[:, :3], x, alpha=NUMBER)"
"""A graph that PyTorch's own product computes: Inductor starts no compiler."""

# The settings halve the time of the C++ compiler: no headers compiled ahead, no vectors.
_INDUCTOR_PROGRAM = """
import json, os, sys
import torch
from torch._inductor import config
import kernelfarm
os.environ["TORCHINDUCTOR_CACHE_DIR"] = sys.argv[1]
config.compile_threads = 1
config.cpp_cache_precompile_headers = False
config.cpp.vec_isa_ok = False
from kernelfarm.client import counters
INSTALL
torch.manual_seed(0)
x = torch.randn(3, 8)
for function in [FUNCTIONS]:
    torch.testing.assert_close(torch.compile(function)(x), function(x))
seen = torch._dynamo.utils.counters["inductor"]
found = {name: seen[f"fxgraph_cache_{name}"] for name in ("hit", "miss")}
print(json.dumps({**found, "counters": counters.snapshot()}))
"""


def compile_with_triton(fleet: Fleet, folder: str, **settings: str) -> dict[str, Any]:
    """What a process did that compiles a kernel for two chips; Triton's cache is in `folder`."""
    module = fleet.folder / "kernel"
    module.mkdir(exist_ok=True)
    text = _TRITON_KERNEL.replace("NUMBER", str(fleet.number))
    if not (module / "kernel.py").exists():
        (module / "kernel.py").write_text(text)
    variables = {
        "TRITON_CACHE_MANAGER": TRITON_MANAGER,
        "TRITON_CACHE_DIR": str(fleet.folder / folder / "triton"),
        "TRITON_DEFAULT_FP_FUSION": "1",
    }
    return _run(fleet, folder, _TRITON_PROGRAM, (str(module),), {**variables, **settings})


def compile_with_inductor(
    fleet: Fleet,
    folder: str,
    functions: Sequence[str] = (WITHOUT_KERNEL,),
    *,
    install: str = "kernelfarm.use_as_inductor_cache()",
    **settings: str,
) -> dict[str, Any]:
    """What a process did that compiles a graph for each function; Inductor's cache is in `folder`.

    `install` is its line that makes the farm Inductor's cache.
    """
    program = _INDUCTOR_PROGRAM.replace("INSTALL", install)
    program = program.replace("FUNCTIONS", ", ".join(functions))
    program = program.replace("NUMBER", str(fleet.number))
    return _run(fleet, folder, program, (str(fleet.folder / folder / "inductor"),), settings)


def publishing(fleet: Fleet) -> dict[str, str]:
    """The setting of a process that publishes."""
    return {"KERNELFARM_TRACE_KEY_FILE": str(fleet.keys / TRACE_KEY)}


def _run(
    fleet: Fleet, folder: str, program: str, arguments: tuple[str, ...], stated: Mapping[str, str]
) -> dict[str, Any]:
    fleet.meddling.calls.clear()
    environment = {
        **os.environ,
        "KERNELFARM_ENDPOINT": fleet.endpoint,
        "KERNELFARM_DISK_CACHE_DIR": str(fleet.folder / folder / "tier"),
        "KERNELFARM_TRUSTED_KEYS_FILE": str(fleet.keys / PUBLIC_KEYS),
        "KERNELFARM_DROP_IN_CACHES": "trusted",
        **stated,
    }
    done = run_python(("-c", program, *arguments), environment, timeout_s=240)
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**seen, "warnings": done.stderr.count("DropInCacheWarning: "), "said": done.stderr}


def entries_below(folder: Path) -> list[str]:
    """The files that Triton lists as complete kernels."""
    return [path.name for path in folder.rglob("__grp__*")]

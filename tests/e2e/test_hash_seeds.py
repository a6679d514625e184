"""Keys, texts and binaries are equal under any hash seed: caches and signatures depend on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from tests.support.farm import TIMEOUT_S
from tests.support.ir_strategies import GOLDEN

PROGRAM = """
import hashlib, json
from codegen_svc.backends.cpu.backend import BACKEND
from codegen_svc.backends.triton_gpu import scalar_rules
from codegen_svc.emitters.triton.source import emit_triton
from codegen_svc.emitters.triton.tiling import gpu_tiling, needs_64_bit_indices
from kernelfarm.digest import program_key
from kernelfarm.ir.algebra.expr import symbol
from kernelfarm.ir.graph_ir import SizeSymbol
from kernelfarm.ir.text import parse_graph
from kernelfarm.targets import target_facts
from optimizer_svc.pipeline import optimize
from tests.support.ir_strategies import GOLDEN
from tests.support.loop_kernels import emitter_shapes
from tests.support.loop_kernels.optimizer_shapes import softmax as softmax_kernel
from tests.support.prims_graphs import TARGET, Maker, softmax, tensor

def key():
    graph = parse_graph((GOLDEN / "captured.graph").read_text())
    return program_key(graph, "cpu:x86-64-v4", (("deterministic", "false"),)).hex()

def stages():
    make = Maker([SizeSymbol("s0", 2, None), SizeSymbol("s1", 2, None)])
    rows, width = symbol("s0"), symbol("s1")
    inputs = [make.add_input(tensor(rows, width)) for _ in range(3)]
    results = [softmax(make, make.add("exp", x), rows, width) for x in inputs]
    results.append(make.add("cat", *results, dim=1))
    return [str(stage) for stage in optimize(make.returning(*results), TARGET).stages]

def triton():
    target, texts = target_facts("cuda:sm_90a"), []
    for kernel in emitter_shapes.ALL.values():
        tiling = gpu_tiling(kernel, target, 64 if needs_64_bit_indices(kernel) else 32)
        texts.append(emit_triton(kernel, tiling, scalar_rules(target, kernel)).text)
    return texts

def builds():
    kernel, digest = softmax_kernel(symbol("s0"), symbol("s1")), hashlib.sha256()
    for target in ("cpu:aarch64", "cpu:x86-64-v3", "cpu:x86-64-v4"):
        for stage in BACKEND.build(kernel, target_facts(target))[-1].stages:
            digest.update(stage.name.encode() + stage.content)
    return digest.hexdigest()

print(json.dumps({"key": key(), "stages": stages(), "triton": triton(), "builds": builds()}))
"""


def test_nothing_that_is_cached_depends_on_the_hash_seed() -> None:
    first, second = (_made_with(seed) for seed in ("1", "2"))
    assert first == second
    assert len("".join(first["triton"])) > 10_000
    assert first["key"] == json.loads((GOLDEN / "keys.json").read_text())["captured.graph"]


def _made_with(seed: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    made: dict[str, Any] = json.loads(done.stdout)
    return made

"""Texts are byte-equal under any hash seed: keys and caches depend on it."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
from tests.support.prims_graphs import TARGET, Maker, softmax, tensor
from optimizer_svc.pipeline import optimize
from kernelfarm.ir.graph_ir import SizeSymbol
from kernelfarm.ir.algebra.expr import symbol
make = Maker([SizeSymbol("s0", 2, None), SizeSymbol("s1", 2, None)])
rows, width = symbol("s0"), symbol("s1")
inputs = [make.add_input(tensor(rows, width)) for _ in range(3)]
results = [softmax(make, make.add("exp", x), rows, width) for x in inputs]
results.append(make.add("cat", *results, dim=1))
print(optimize(make.returning(*results), TARGET).stages)
"""


def test_stages_do_not_depend_on_the_hash_seed() -> None:
    texts = {_run(seed) for seed in ("1", "2", "3")}
    assert len(texts) == 1


def _run(seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout

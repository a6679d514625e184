"""A process that calls a model by way of packages, for `test_packages`.

Usage: python -m tests.e2e.packaged_client FOLDER

`FOLDER` has a module `packaged_here` with a class `Model`. Prints one JSON line: the error against
eager, the counters, and what was traced.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module

import torch
import torch._dynamo.utils

BEFORE = frozenset(sys.modules)

import kernelfarm  # noqa: E402 -- what this and the call import is reported
from kernelfarm.client import counters  # noqa: E402


def main(folder: str) -> None:
    sys.path.insert(0, folder)
    model = import_module("packaged_here").Model()
    x = torch.randn(4, 12, generator=torch.Generator().manual_seed(1))
    fast = kernelfarm.packaged(model)
    with torch.no_grad():
        error = max((fast(x) - model(x)).abs().max().item() for _ in range(2))
    found = torch._dynamo.utils.counters
    seen = counters.snapshot()
    facts = {
        "error": error,
        "traced": found["aot_autograd"]["total"] + seen.get("traced.short", 0),
        "frames": found["frames"]["total"],
        "counters": seen,
        "imported": sorted({name.partition(".")[0] for name in sys.modules.keys() - BEFORE}),
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main(sys.argv[1])

"""Triton's and Inductor's caches at a farm, on a machine with a GPU.

One process compiles and publishes; a second one with empty folders finds what the first one made.
Both run what they got and compare it with eager.

Usage: python -m tests.gpu.drop_in ENDPOINT KEYS [--json FILE]

KEYS is the folder of the farm's keys. The farm needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelfarm.signing.key_files import PUBLIC_KEYS, TRACE_KEY
from tests.support.drop_in_programs import TRITON_MANAGER

_TIMEOUT_S = 300

TRITON_PROGRAM = """
import json, time, torch, triton
from kernelfarm.client import counters
from tests.support.tutorial_kernels import add_to, softmax_rows
hits = []
triton.knobs.compilation.listener = lambda **seen: hits.append(seen["cache_hit"])
x = torch.randn(512, 781, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
y, total = torch.empty_like(x), x * 1
began = time.monotonic()
softmax_rows[(32,)](y, x, 781, 781, 512, 781, BLOCK=1024, STAGES=2, num_warps=8)
torch.cuda.synchronize()
seconds = time.monotonic() - began
n = x.numel()
add_to[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](total, x, n)
torch.testing.assert_close(y, x.softmax(-1))
torch.testing.assert_close(total, x * 2)
print(json.dumps({"hits": hits, "seconds": seconds, "counters": counters.snapshot()}))
"""

INDUCTOR_PROGRAM = """
import json, time, torch
import kernelfarm
from kernelfarm.client import counters
kernelfarm.use_as_inductor_cache()
torch.manual_seed(0)
block = torch.nn.TransformerEncoderLayer(512, 8, 2048, 0.0, "gelu", batch_first=True)
block = block.cuda().train()
x = torch.randn(4, 128, 512, device="cuda")
expected = block(x)
run = torch.compile(block)
began = time.monotonic()
found = run(x)
torch.cuda.synchronize()
seconds = time.monotonic() - began
torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
seen = torch._dynamo.utils.counters["inductor"]
found = {name: seen[f"fxgraph_cache_{name}"] for name in ("hit", "miss")}
print(json.dumps({**found, "seconds": seconds, "counters": counters.snapshot()}))
"""


@dataclass(frozen=True)
class DropInProcesses:
    """Processes of one farm's clients; each has folders of its own below `folder`."""

    endpoint: str
    keys: Path
    folder: Path

    def run(self, program: str, name: str, *, publishes: bool = False) -> dict[str, Any]:
        """What a new process with empty folders reports.

        Raises:
            RuntimeError: the process failed.
        """
        own = self.folder / name
        settings = {
            "KERNELFARM_ENDPOINT": self.endpoint,
            "KERNELFARM_DISK_CACHE_DIR": str(own / "tier"),
            "KERNELFARM_TRUSTED_KEYS_FILE": str(self.keys / PUBLIC_KEYS),
            "KERNELFARM_DROP_IN_CACHES": "trusted",
            "TRITON_CACHE_MANAGER": TRITON_MANAGER,
            "TRITON_CACHE_AUTOTUNING": "1",
            "TRITON_CACHE_DIR": str(own / "triton"),
            "TORCHINDUCTOR_CACHE_DIR": str(own / "inductor"),
        }
        if publishes:
            settings["KERNELFARM_TRACE_KEY_FILE"] = str(self.keys / TRACE_KEY)
        words = [sys.executable, "-c", program]
        done = subprocess.run(
            words,
            env={**os.environ, **settings},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(done.stderr[-4000:])
        seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return {**seen, "warnings": done.stderr.count("DropInCacheWarning: ")}


def triton_problem(made: dict[str, Any], found: dict[str, Any]) -> str:
    """What is wrong with a publisher's and a reader's reports on Triton's cache; empty if nothing.

    The reader must compile nothing. It measures nothing either, because the autotuner's times are
    shared; so it loads fewer kernels than the publisher compiled.
    """
    if not made["hits"] or any(made["hits"]):
        return f"the publisher found {made['hits']} in an empty farm"
    if not found["hits"] or not all(found["hits"]):
        return f"the reader found {found['hits']}; expected hits only"
    if len(found["hits"]) >= len(made["hits"]):
        return f"the reader loaded {len(found['hits'])} kernels; expected that it measures none"
    return _warned(made, found)


def inductor_problem(made: dict[str, Any], found: dict[str, Any]) -> str:
    """What is wrong with a publisher's and a reader's reports on Inductor's; empty if nothing."""
    if not made["miss"] or made["hit"]:
        return f"the publisher had {made['hit']} hits in an empty farm"
    if found["miss"] or found["hit"] != made["miss"]:
        return f"the reader had {found['hit']} hits of {made['miss']}, {found['miss']} misses"
    return _warned(made, found)


def _warned(made: dict[str, Any], found: dict[str, Any]) -> str:
    return "a process warned" if made["warnings"] or found["warnings"] else ""


CHECKS = {
    "Triton": (TRITON_PROGRAM, triton_problem),
    "Inductor": (INDUCTOR_PROGRAM, inductor_problem),
}


def main() -> int:
    """Prints what the processes reported; 1 if a reader had to compile."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("endpoint")
    parser.add_argument("keys", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    reports: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="kernelfarm-drop-in-") as folder:
        for compiler, (program, problem_in) in CHECKS.items():
            processes = DropInProcesses(options.endpoint, options.keys, Path(folder) / compiler)
            try:
                made = processes.run(program, "publisher", publishes=True)
                found = processes.run(program, "reader")
            except RuntimeError as error:
                reports[compiler] = {"problem": str(error)}
            else:
                problem = problem_in(made, found)
                reports[compiler] = {"problem": problem, "publisher": made, "reader": found}
            print(f"{compiler}: {reports[compiler]['problem'] or 'right'}", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(reports, indent=1))
    return 1 if any(report["problem"] for report in reports.values()) else 0


if __name__ == "__main__":
    sys.exit(main())

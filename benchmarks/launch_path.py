"""Microseconds that Python spends on a launch, and on calls that are replays of CUDA graphs.

Chains of tiny kernels that no compiler fuses: each softmax needs all results of the one before it.
The time of a call is that of the calling thread, which does not wait for the GPU. A launch costs
what the longer chain takes more than the shorter one, divided by their difference in kernels.
Arms take turns in one process:

    kernelfarm, inductor    calls of the compiled chains
    ... reduce-overhead     the same, as replays
    triton                  a kernel that Triton's own launcher starts
    ctypes                  the same kernel by the driver's function, with fixed arguments

`layers` are two layers of a transformer for one token: milliseconds of a call, kernels included.

Usage: python -m benchmarks.launch_path build FOLDER
       python -m benchmarks.launch_path run FOLDER [--json FILE] [--no-inductor]
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)

from benchmarks.timing import median_ms
from kernelfarm.client import counters
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.ir.graph_ir import Graph
from tests.support.prepared_folder import offline, prepare
from tests.support.traced_graphs import recording

TARGET = "cuda:sm_90a"
LENGTHS = (10, 50)
WIDTH = 32
ROUNDS = 15
CALLS = 10
BARE_CALLS = 400
"""Calls in a row; 500 launches are fewer than the driver's queue holds, so that none waits."""

Call = Callable[[], object]
OPTIONS = {"mode": "strict", "timeout_s": 5.0}


class Chain(nn.Module):
    """So many softmaxes, along rows and columns by turns."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The last softmax."""
        for number in range(self.length):
            x = x.softmax(number % 2)
        return x


class Layer(nn.Module):
    """A transformer's layer."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.parts, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's result."""
        q, k, v = self.parts(self.before(x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.after(x))))


def models() -> dict[str, tuple[nn.Module, torch.Tensor]]:
    """The measured models with their arguments."""
    torch.manual_seed(0)
    chains = {f"chain of {n}": (Chain(n), torch.randn(WIDTH, WIDTH)) for n in LENGTHS}
    return {**chains, "layers": (nn.Sequential(Layer(), Layer()).eval(), torch.randn(1, 1, 256))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("build", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", default=TARGET)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--no-inductor", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    return (build if options.command == "build" else run)(options)


def build(options: argparse.Namespace) -> int:
    """Fills the folder; the exit status is 1 if a program did not compile."""
    options.folder.mkdir(parents=True, exist_ok=True)
    prepared = prepare(_captured(), options.folder, options.target, {})
    for name, failure in prepared.failures.items():
        print(f"{name}: {failure}")
    return 1 if prepared.failures else 0


def _captured() -> Iterator[tuple[str, list[Graph]]]:
    for name, (model, x) in models().items():
        found: list[CapturedGraph] = []
        torch._dynamo.reset()
        with torch.no_grad():
            torch.compile(model, backend=recording(found))(x)
        yield name, [captured.graph for captured in found]


def run(options: argparse.Namespace) -> int:
    """Prints the times of the arms; needs the GPU of the prepared programs, but no farm."""
    with offline(options.folder) as prepared, torch.no_grad():
        device = "cpu" if prepared.target.startswith("cpu") else "cuda"
        arms = arms_of(device, with_inductor=not options.no_inductor)
        rows = measured(arms, device)
    where = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    print(where, torch.__version__, counters.snapshot())
    for name, times in rows.items():
        print(f"{name:<24}" + "  ".join(f"{arm} {us:.2f}" for arm, us in times.items()))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


def arms_of(device: str, *, with_inductor: bool) -> dict[str, dict[str, Call]]:
    """The compiled calls of each model, by arm; equal to eager."""
    found: dict[str, dict[str, Call]] = {}
    for name, (source, given) in models().items():
        model, x = source.to(device), given.to(device)
        found[name] = {}
        for arm, how in _hows(with_inductor):
            call = partial(torch.compile(_own_function(model, f"{name}, {arm}"), **how), x)
            for _ in range(4):
                torch.testing.assert_close(call(), model(x), rtol=1e-3, atol=1e-3)
            found[name][arm] = call
    return found


def _own_function(model: nn.Module, name: str) -> Callable[..., Any]:
    """A function with a code object of its own: Dynamo limits the graphs of one code object."""

    def call(x: torch.Tensor) -> Any:
        return model(x)

    call.__code__ = call.__code__.replace(co_name=name)
    return call


def _hows(with_inductor: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "kernelfarm", {"backend": "kernelfarm", "options": OPTIONS}
    again = {**OPTIONS, "cuda_graphs": True}
    yield "kernelfarm reduce-overhead", {"backend": "kernelfarm", "options": again}
    if with_inductor:
        yield "inductor", {}
        yield "inductor reduce-overhead", {"mode": "reduce-overhead"}


def measured(arms: dict[str, dict[str, Call]], device: str) -> dict[str, dict[str, float]]:
    """Microseconds by measurement and arm."""
    rows = {}
    for name in (n for n in arms if n.startswith("chain")):
        rows[f"call, {name}"] = host_us(arms[name], device)
    short, long = (rows[f"call, chain of {length}"] for length in LENGTHS)
    kernels = LENGTHS[1] - LENGTHS[0]
    rows["launch"] = {arm: (long[arm] - short[arm]) / kernels for arm in long}
    if device == "cuda":
        rows["launch, bare"] = host_us(_bare_launches(), device, BARE_CALLS)
    times = median_ms(arms["layers"], device, rounds=ROUNDS, calls=CALLS)
    rows["layers, with kernels"] = {arm: 1e3 * ms for arm, ms in times.items()}
    rows["layers, call"] = host_us(arms["layers"], device)
    return rows


def host_us(arms: dict[str, Call], device: str, calls: int = CALLS) -> dict[str, float]:
    """Microseconds of the calling thread for a call of each arm: the median of some rounds.

    A round times so many calls in a row.
    """
    found: dict[str, list[float]] = {arm: [] for arm in arms}
    for _ in range(ROUNDS):
        for arm, call in arms.items():
            call()
            if device == "cuda":
                torch.cuda.synchronize()
            began_s = time.perf_counter()
            for _ in range(calls):
                call()
            found[arm].append(1e6 * (time.perf_counter() - began_s) / calls)
    return {arm: statistics.median(times) for arm, times in found.items()}


def _bare_launches() -> dict[str, Call]:
    """One launch by Triton's launcher and by the driver's function."""
    from benchmarks.launched_kernel import copy_row  # noqa: PLC0415 (needs Triton)

    source, target = (torch.randn(WIDTH, device="cuda") for _ in range(2))
    kernel = copy_row[(1,)](source, target, WIDTH)
    addresses = [ctypes.c_uint64(t.data_ptr()) for t in (source, target)]
    spare = [ctypes.c_uint64(0) for _ in range(2)]  # Triton's kernels may take scratch memory
    pointers = (ctypes.c_void_p * 4)(*map(ctypes.addressof, (*addresses, *spare)))
    launch = ctypes.CDLL("libcuda.so.1").cuLaunchKernel
    numbers = map(ctypes.c_uint, (1, 1, 1, 32 * kernel.metadata.num_warps, 1, 1))
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    function = ctypes.c_void_p(kernel.function)
    bare = partial(
        launch, function, *numbers, ctypes.c_uint(0), stream, pointers, ctypes.c_void_p()
    )
    assert bare() == 0
    # The kernel reads the addresses at each launch, so they have to live as long as the call.
    kept = (addresses, spare, source, target)
    return {
        "triton": lambda: copy_row[(1,)](source, target, WIDTH),
        "ctypes": lambda _kept=kept: bare(),
    }


if __name__ == "__main__":
    sys.exit(main())

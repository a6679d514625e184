"""Seconds that a client's backend takes for whole models on a CPU: kernelfarm beside Inductor.

The clock starts where Dynamo calls the backend, and ends where the backend returns, in a process
that has imported all modules. kernelfarm's farm and the client have neither program nor kernels;
Inductor's caches are empty. `wall` includes the farm, which shares the processor. `client` is the
processor time of the client's process, for Inductor with its compilers.

Usage: python -m benchmarks.cpu_compile [--models NAME ...] [--dtypes T ...] [--frozen]
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch._inductor.utils import fresh_cache

from benchmarks.cpu.whole_models import MODELS, seeded
from benchmarks.machine import machine
from examples.farm import running_farm
from kernelfarm.client import torch_backend


@dataclass
class Seconds:
    """Wall time, and processor time of the process and of the children that it waited for."""

    wall: float = 0.0
    client: float = 0.0


class Timed:
    """A backend whose calls are timed."""

    def __init__(self, backend: Callable[..., Any], **stated: Any) -> None:
        self.seconds = Seconds()
        self._backend = backend
        self._stated = stated

    def __call__(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """The backend's result."""
        wall, client = time.perf_counter(), _processor_s()
        made: Callable[..., Any] = self._backend(gm, inputs, **self._stated)
        self.seconds.wall += time.perf_counter() - wall
        self.seconds.client += _processor_s() - client
        return made


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="*", choices=tuple(MODELS), default=tuple(MODELS))
    parser.add_argument("--dtypes", nargs="*", default=["float32"])
    parser.add_argument("--frozen", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_grad_enabled(False)
    os.environ["KERNELFARM_DISK_CACHE_BYTES"] = "0"
    torch_backend.preload()
    print(f"{machine()}, torch {torch.__version__}, seconds")
    # Inductor imports its modules with the first model, and starts no processes that stay.
    with torch._inductor.config.patch(compile_threads=1, freezing=options.frozen):
        measured("mobilenet-v3", "float32", frozen=options.frozen)
        ratios = []
        for dtype in options.dtypes:
            for name in options.models:
                ours, peer = measured(name, dtype, frozen=options.frozen)
                ratios.append((peer.wall / ours.wall, peer.client / ours.client))
                figures = f"wall {ours.wall:.2f} {peer.wall:.2f}  client {ours.client:.2f}"
                shown = " ".join(f"{ratio:.1f}" for ratio in ratios[-1])
                print(f"{name} {dtype}: {figures} {peer.client:.2f}  ratios {shown}", flush=True)
    means = (statistics.geometric_mean(each) for each in zip(*ratios, strict=True))
    print("geometric means of Inductor's by ours:", *(f"{mean:.1f}" for mean in means))
    return 0


def measured(name: str, dtype: str, *, frozen: bool) -> tuple[Seconds, Seconds]:
    """The seconds of kernelfarm and of Inductor for a model."""
    with running_farm(vendors="cpu") as farm:
        os.environ["KERNELFARM_ENDPOINT"] = farm.endpoint
        options = {"mode": "strict", "freezing": frozen, "timeout_s": 600.0}
        ours = _first_call(name, dtype, Timed(torch_backend.kernelfarm, options=options))
    inductor = torch._dynamo.lookup_backend("inductor")
    return ours, _first_call(name, dtype, Timed(inductor), fresh_cache())


def _first_call(
    name: str,
    dtype: str,
    backend: Timed,
    caches: AbstractContextManager[Any] | None = None,
) -> Seconds:
    torch._dynamo.reset()
    model, args = seeded(name, 1, getattr(torch, dtype))
    with caches or nullcontext():
        torch.compile(model, backend=backend, dynamic=False)(*args)
    return backend.seconds


def _processor_s() -> float:
    """Processor time of this process and of its children that have ended."""
    of = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in of)


if __name__ == "__main__":
    sys.exit(main())

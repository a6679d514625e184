"""The time after Dynamo's trace: graphs traced by one run, compared with AOT Autograd.

All measurements are in one process, which has imported all modules; the ways alternate. The clock
starts where Dynamo calls the backend, and ends where the backend returns. The process has neither
program nor trace: no disk tier, an empty memory.
    trace   the functional graph and its key alone
    warm    the farm has the program
    cold    the farm is empty; each measurement has a farm of its own

`--clocks trace` needs no farm, and no model runs.

Prints wall time and processor time of the process. The farm's processes are not part of the latter.

Usage: python -m benchmarks.trace_ways [--models NAME ...] [--clocks NAME ...] [--rounds N]
       [--cold-rounds N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.machine import machine
from examples.farm import running_farm
from examples.full_models import DEEP, FULL
from kernelfarm.client import counters, torch_backend
from kernelfarm.client.capture.graph import capture
from kernelfarm.client.capture.inline_regions import inline_regions
from kernelfarm.client.capture.input_order import InputOrder
from kernelfarm.client.capture.preserve_attention import preserve_attention
from kernelfarm.client.capture.short_trace import short_trace
from kernelfarm.client.capture.tracing import traced
from kernelfarm.client.process.garbage_collection import no_collections
from kernelfarm.client.programs import finder
from kernelfarm.client.programs.store import ProgramStore
from kernelfarm.client.pytorch.private import unset_fake_temporarily
from kernelfarm.digest import program_key

MODELS = ("gpt2", "bert-base", "resnet-50")
CLOCKS = ("trace", "warm", "cold")
WAYS = ("long", "short")
Times = tuple[float, float]
"""Wall time and processor time, in seconds."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--clocks", nargs="*", choices=CLOCKS, default=list(CLOCKS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cold-rounds", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(machine(), f"torch {torch.__version__}", time.strftime("%Y-%m-%d"), flush=True)
    os.environ["KERNELFARM_DISK_CACHE_BYTES"] = "0"
    torch_backend.preload()
    rows = []
    for name in options.models:
        rows.append({"model": name, **measure(name, options)})
        print_row(rows[-1])
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


def measure(name: str, options: argparse.Namespace) -> dict[str, dict[str, list[Times]]]:
    """The times by clock and way, for the clocks, `rounds` and `cold_rounds` of the options."""
    source = (FULL | DEEP)[name]()
    found: dict[str, dict[str, list[Times]]] = {
        clock: {way: [] for way in WAYS} for clock in options.clocks
    }
    if "trace" in found:
        for _ in range(options.rounds):
            for way in WAYS:
                found["trace"][way].append(first_call(source, _Traced(way)))
    if "warm" in found:
        with running_farm("cpu") as farm, at(farm.endpoint):
            first_call(source, _Compiled("long"))  # fills the cache, and imports what comes late
            for _ in range(options.rounds):
                for way in WAYS:
                    found["warm"][way].append(first_call(source, _Compiled(way)))
    for _ in range(options.cold_rounds if "cold" in found else 0):
        for way in WAYS:
            with running_farm("cpu") as farm, at(farm.endpoint):
                found["cold"][way].append(first_call(source, _Compiled(way)))
    return found


@contextmanager
def at(endpoint: str) -> Iterator[None]:
    with patch.dict(os.environ, {"KERNELFARM_ENDPOINT": endpoint}):
        yield


def first_call(source: Any, backend: _Timed) -> Times:
    """The time of the backend in the first call of a model, in a process without programs.

    Dynamo calls the backend again if a float that varies must become a constant.
    """
    torch._dynamo.reset()
    finder.accesses.clear()
    counters.reset()
    with torch.no_grad(), patch.object(finder, "_store", ProgramStore()):
        try:
            torch.compile(source.model, backend=backend, dynamic=source.dynamic)(*source.args)
        except torch._dynamo.exc.BackendCompilerFailed as error:
            if not isinstance(error.inner_exception, _TracedOnlyError):
                raise
    wall, processor = zip(*backend.times, strict=True)
    return sum(wall), sum(processor)


class _TracedOnlyError(Exception):
    """Ends the first call before the model runs."""


class _Timed:
    """A backend whose calls are timed."""

    def __init__(self, way: str) -> None:
        self.way = way
        self.times: list[Times] = []

    def __call__(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        begun = time.perf_counter(), time.process_time()
        try:
            return self.made(gm, inputs)
        finally:  # it may ask Dynamo to trace again
            self.times.append((time.perf_counter() - begun[0], time.process_time() - begun[1]))

    def made(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        raise NotImplementedError


class _Traced(_Timed):
    """Traces and computes the key."""

    def __call__(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        super().__call__(gm, inputs)
        raise _TracedOnlyError

    def made(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        inline_regions(gm)
        preserve_attention(gm)
        order = InputOrder(gm)
        if self.way == "short":
            with no_collections():
                self._key(short_trace(order.module, order.of(inputs)))
        else:
            traced(order.module, order.of(inputs), self._compiled)
        return gm.forward

    def _compiled(self, module: torch.fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        with unset_fake_temporarily():
            self._key(module)
        return module.forward

    def _key(self, module: Any) -> None:
        program_key(capture(module).graph, "cpu:x86-64-v3", ())


class _Compiled(_Timed):
    """kernelfarm's backend."""

    def made(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        if self.way == "short":
            made = torch_backend.kernelfarm(gm, inputs, mode="strict")
        else:
            with patch.object(torch_backend, "_short_way", lambda *_: None):
                made = torch_backend.kernelfarm(gm, inputs, mode="strict")
        if counters.snapshot().get("traced.short", 0) != (self.way == "short"):
            raise RuntimeError(f"the graph did not go the {self.way} way")
        return made


def print_row(row: dict[str, Any]) -> None:
    for clock in [clock for clock in CLOCKS if clock in row]:
        for unit, index in (("wall", 0), ("processor", 1)):
            long, short = (statistics.median(t[index] for t in row[clock][way]) for way in WAYS)
            print(
                f"{row['model']:<12}{clock:<8}{unit:<11}long {long:8.3f} s   short {short:8.3f} s"
                f"   saved {long - short:7.3f} s   ratio {long / short:5.2f}",
                flush=True,
            )


if __name__ == "__main__":
    sys.exit(main())

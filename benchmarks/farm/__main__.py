"""The speed of a farm's edge and workers, beside the bare toolchain in one pool of processes.

    python -m benchmarks.farm [--targets cpu:x86-64-v3 cuda:sm_90a] [--processes 1 2 4]
                              [--rounds 3] [--seconds 2.5] [--kernels 2000] [--json FILE]
                              [--tables rates overhead memory] [--markdown FILE]

The kernels are those of real models. Both arms compile the same ones, by turns. The exit status is
1 if the farm makes fewer kernels a second than `BAR` times the pool, or if the worker's memory
grows.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path

from benchmarks.machine import machine

TARGETS = ("cpu:x86-64-v3", "cuda:sm_90a")
MODELS = ("bert", "llama", "t5-encoder", "vit", "resnet", "efficientnet", "unet", "lstm")
TABLES = ("rates", "overhead", "memory")
BAR = 0.95
"""Smallest rate of the farm, as a part of the pool's."""
OVERHEAD_KERNELS = 60


def main() -> int:
    options = _options()
    # Not at the top: processes of the pool import this module, and need no torch.
    from benchmarks.farm.kernels import Captures, distinct  # noqa: PLC0415

    captures = Captures(options.models)
    kernels = {target: distinct(captures.kernels(target)) for target in options.targets}
    lines = [f"Machine: {machine()}.", ""]
    is_met, results = True, {}
    for name, rows, is_good, facts in _measured(options, kernels):
        lines += [f"## {name}", "", *rows, ""]
        print("\n".join([f"## {name}", *rows]), flush=True)
        is_met &= is_good
        results[name] = facts
    lines += [f"Load average at the end: {os.getloadavg()[0]:.1f}."]
    text = "\n".join(lines)
    print(text)
    if options.markdown:
        options.markdown.write_text(text + "\n")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    return 0 if is_met else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--targets", nargs="+", default=TARGETS)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.5, help="of the pool in one round")
    parser.add_argument("--kernels", type=int, default=2000, help="for the worker's memory")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES)
    parser.add_argument("--markdown", type=Path, help="writes the tables there too")
    parser.add_argument("--json", type=Path, help="writes each round and sample there")
    return parser.parse_args()


def _measured(
    options: argparse.Namespace, kernels: dict[str, Iterator]
) -> Iterator[tuple[str, list[str], bool, object]]:
    """Name, table, whether its bar is met, and the values of each requested table."""
    from benchmarks.farm.bare_farm import bare_farm  # noqa: PLC0415 (as above)
    from benchmarks.farm.queue_overhead import measure_steps, steps_table  # noqa: PLC0415
    from benchmarks.farm.throughput import (  # noqa: PLC0415
        Rounds,
        cpu_table,
        measure_rates,
        rates_table,
    )
    from benchmarks.farm.worker_memory import measure_memory, memory_table  # noqa: PLC0415

    if "rates" in options.tables:
        rounds, rates = Rounds(options.rounds, options.seconds), []
        for target in options.targets:
            with bare_farm(target) as farm:
                for processes in options.processes:
                    rates.append(measure_rates(farm, target, kernels[target], processes, rounds))
        is_good = all(row.ratio >= BAR for row in rates)
        facts = [asdict(row) for row in rates]
        yield "Kernels a second", list(rates_table(rates)), is_good, facts
        yield "Processor time, ms for a kernel", list(cpu_table(rates)), True, None
    if "overhead" in options.tables:
        steps = {
            target: measure_steps(target, list(islice(kernels[target], OVERHEAD_KERNELS)))
            for target in options.targets
        }
        yield "Time of one kernel, ms", list(steps_table(steps)), True, steps
    if "memory" in options.tables:
        target = options.targets[0]
        growths, samples = measure_memory(target, kernels[target], options.kernels)
        rows = list(memory_table(growths))
        name = f"Memory of a worker over {options.kernels} kernels"
        series = {part: [asdict(s) for s in taken] for part, taken in samples.items()}
        yield name, rows, all(growth.is_flat for growth in growths), series


if __name__ == "__main__":
    raise SystemExit(main())

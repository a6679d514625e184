"""Whole models on a CPU: kernelfarm, also frozen, beside eager, Inductor and the machine's limits.

`run` measures: all arms of a model take turns in one process. Weights are random, from configs;
batch norms have random statistics. It adds its rows to a JSON file, and skips those that are in it.
`errors` prints the largest error of eager and of each arm of ours against float64, relative to the
largest result. With `--varying`, the arms that compile do so for a varying number of tokens, or of
images. `memory` prints the peak bytes of a call beside weights and arguments, as
`benchmarks.peak_memory` counts them. `page` writes the tables and the plot of a JSON file.

Usage: python -m benchmarks.cpu_models run FILE [--models NAME ...] [--batches N ...]
           [--dtypes T ...] [--threads N ...] [--arms ARM ...] [--rounds N] [--varying]
       python -m benchmarks.cpu_models errors [--models NAME ...] [--dtypes T ...]
       python -m benchmarks.cpu_models memory [--models NAME ...] [--dtypes T ...] [--batches N ...]
       python -m benchmarks.cpu_models page FILE [--markdown FILE] [--plot FILE]
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import groupby, product
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.cpu.whole_models import INTEGER_MODELS, MODELS, seeded
from benchmarks.machine import machine
from benchmarks.timing import Call, median_ms
from examples.farm import running_farm
from kernelfarm.client.runtime import arena
from tests.support.allocations import peak_of

ARMS: dict[str, dict[str, Any] | None] = {
    "eager": None,
    "ours": {"backend": "kernelfarm", "options": {"mode": "strict"}},
    "ours frozen": {"backend": "kernelfarm", "options": {"mode": "strict", "freezing": True}},
    "inductor": {"backend": "inductor"},
    "inductor frozen": {"backend": "inductor", "options": {"freezing": True}},
    "inductor tuned": {
        "backend": "inductor",
        "options": {
            "freezing": True,
            "max_autotune": True,
            "max_autotune_gemm_backends": "CPP,ATEN",
        },
    },
}
_OURS = ("ours", "ours frozen")
_PEERS = ("inductor", "inductor frozen", "inductor tuned")


@dataclass
class Measured:
    """Median milliseconds of a call by arm, and what the processor needs at least.

    `first_s` has the seconds of each arm's first call, which compiles. Arms that failed are in
    `failures`.
    """

    model: str
    dtype: str
    batch: int
    threads: int
    ms: dict[str, float] = field(default_factory=dict)
    first_s: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    flops: int = 0
    read_bytes: int = 0
    least_ms: float = 0.0
    machine: str = ""
    is_varying: bool = False

    @property
    def settings(self) -> tuple[str, int, int, str]:
        """What rows of a table share."""
        sizes = "varying sizes" if self.is_varying else "static sizes"
        return self.dtype, self.batch, self.threads, sizes

    def best(self, arms: Sequence[str]) -> float:
        """The least time of some arms."""
        return min(self.ms[arm] for arm in arms if arm in self.ms)


def main() -> int:
    options = _options()
    warnings.simplefilter("ignore")
    torch.set_grad_enabled(False)
    if options.command == "run":
        _run(options)
    elif options.command == "errors":
        _print_errors(options)
    elif options.command == "memory":
        _print_memory(options)
    else:
        rows = [Measured(**row) for row in json.loads(options.file.read_text())]
        text = "\n".join(_page(rows))
        print(text)
        if options.markdown:
            options.markdown.write_text(text + "\n")
        if options.plot:
            _plot(rows, options.plot)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run, errors, memory, page = map(commands.add_parser, ("run", "errors", "memory", "page"))
    for command in (run, errors, memory):
        command.add_argument(
            "--models", nargs="*", choices=(*MODELS, *INTEGER_MODELS), default=tuple(MODELS)
        )
        command.add_argument("--dtypes", nargs="*", default=["float32"])
    for command in (run, page):
        command.add_argument("file", type=Path)
    for command in (run, memory):
        command.add_argument("--batches", nargs="*", type=int, default=[1])
    run.add_argument("--threads", nargs="*", type=int, default=[1])
    run.add_argument("--arms", nargs="*", choices=tuple(ARMS), default=tuple(ARMS))
    run.add_argument("--rounds", type=int, default=9)
    run.add_argument("--varying", action="store_true")
    page.add_argument("--markdown", type=Path)
    page.add_argument("--plot", type=Path)
    return parser.parse_args()


def _run(options: argparse.Namespace) -> None:
    from benchmarks.cpu.ceilings import ceilings  # noqa: PLC0415 -- `page` needs no llvmlite

    rows: list[dict[str, Any]] = []
    if options.file.exists():
        rows = json.loads(options.file.read_text())
    known = {(row["model"], *Measured(**row).settings) for row in rows}
    # The threads that compile for Inductor would run while arms are measured.
    with _farm(), torch._inductor.config.patch(compile_threads=1):
        for dtype, batch, threads in product(options.dtypes, options.batches, options.threads):
            limits = ceilings(getattr(torch, dtype), threads)
            for name in options.models:
                row = Measured(name, dtype, batch, threads, is_varying=options.varying)
                if (name, *row.settings) in known:
                    continue
                row.machine = machine()
                _measure(row, options)
                row.least_ms = limits.least_ms(row.flops, row.read_bytes)
                rows.append(asdict(row))
                options.file.write_text(json.dumps(rows, indent=1) + "\n")
                print(name, dtype, batch, threads, _figures(row), flush=True)


@contextmanager
def _farm() -> Iterator[None]:
    """A new farm, which the arms of this process use."""
    with running_farm(vendors="cpu") as farm:
        os.environ["KERNELFARM_ENDPOINT"] = farm.endpoint
        yield


def _figures(row: Measured) -> str:
    times = "  ".join(f"{arm} {ms:.2f}" for arm, ms in row.ms.items())
    return "  ".join([times, f"least {row.least_ms:.2f}", *row.failures.values()])


def _measure(row: Measured, options: argparse.Namespace) -> None:
    torch._dynamo.reset()
    torch.set_num_threads(row.threads)
    model, args = seeded(row.model, row.batch, getattr(torch, row.dtype))
    with FlopCounterMode(display=False) as counter:
        model(*args)
    row.flops = counter.get_total_flops()
    row.read_bytes = _read_bytes(model)
    calls: dict[str, Call] = {}
    for arm in options.arms:
        began_s = time.perf_counter()
        try:
            calls[arm] = _call(model, args, ARMS[arm], is_varying=row.is_varying)
        except Exception as error:  # an arm that fails is a note of the row
            row.failures[arm] = f"{arm}: {type(error).__name__}: {str(error)[:200]}"
            continue
        row.first_s[arm] = time.perf_counter() - began_s
    row.ms = median_ms(calls, "cpu", rounds=options.rounds, calls=1)


def _read_bytes(model: nn.Module) -> int:
    """The bytes of the weights that a call reads whole: all but those of embeddings alone."""
    read = {
        id(weight): weight.numel() * weight.element_size()
        for module in model.modules()
        if not isinstance(module, nn.Embedding)
        for weight in module.parameters(recurse=False)
    }
    return sum(read.values())


def _call(
    model: nn.Module,
    args: tuple[torch.Tensor, ...],
    stated: dict[str, Any] | None,
    *,
    is_varying: bool = False,
) -> Call:
    """A call of the model, compiled for this size, or for a varying number of tokens or images."""
    if stated is None:
        model(*args)
        return lambda: model(*args)
    function = torch.compile(copy.deepcopy(model), dynamic=None if is_varying else False, **stated)
    if is_varying:
        args = tuple(arg.clone() for arg in args)
        torch._dynamo.mark_dynamic(args[0], 0 if args[0].is_floating_point() else 1)
    # Dynamo reads Inductor's own setting as it traces: an option would come too late.
    is_frozen = stated["backend"] == "inductor" and "freezing" in stated.get("options", {})
    with torch._inductor.config.patch(freezing=is_frozen):
        function(*args)
    return lambda: function(*args)


def _print_errors(options: argparse.Namespace) -> None:
    with _farm():
        for name, dtype in product(options.models, options.dtypes):
            torch._dynamo.reset()
            model, args = seeded(name, 1, getattr(torch, dtype))
            exact, wide = seeded(name, 1, torch.float64)
            expected = exact(*wide)
            found = {
                arm: float((_call(model, args, ARMS[arm])().double() - expected).abs().max())  # type: ignore[attr-defined]
                for arm in ("eager", *_OURS)
            }
            scale = float(expected.abs().max())
            print(name, dtype, *(f"{arm} {error / scale:.2e}" for arm, error in found.items()))


def _print_memory(options: argparse.Namespace) -> None:
    """Prints peaks in MiB, and the means of their ratios: ours by Inductor's, frozen by frozen."""
    arms = ("eager", *_OURS, "inductor", "inductor frozen")
    found = []
    with _farm():
        for name, dtype, batch in product(options.models, options.dtypes, options.batches):
            peaks = {}
            for arm in arms:
                torch._dynamo.reset()
                call = _call(*seeded(name, batch, getattr(torch, dtype)), ARMS[arm])
                call()
                arena.release()
                peaks[arm] = peak_of(call) / 2**20
            texts = (f"{arm} {peak:.2f}" for arm, peak in peaks.items())
            print(name, dtype, batch, "MiB:", "  ".join(texts), flush=True)
            found.append(
                [peaks[ours] / peaks[peer] for ours, peer in zip(_OURS, arms[3:], strict=True)]
            )
    means = (statistics.geometric_mean(ratios) for ratios in zip(*found, strict=True))
    print("geometric means of ours by Inductor's:", *(f"{mean:.2f}" for mean in means))


def _page(rows: Sequence[Measured]) -> Iterator[str]:
    """A table for each combination of type, batch, threads and kind of sizes."""
    for settings, group in groupby(
        sorted(rows, key=lambda row: row.settings), lambda r: r.settings
    ):
        dtype, batch, threads, sizes = settings
        found = list(group)
        yield f"### {dtype}, batch {batch}, threads: {threads}, {sizes}"
        yield ""
        yield "| model | " + " | ".join(ARMS) + " | least | eager / ours | Inductor / ours |"
        yield "|---" + "|---:" * (len(ARMS) + 3) + "|"
        ratios = []
        for row in found:
            ours, peer = row.best(_OURS), row.best(_PEERS)
            ratios.append((row.ms["eager"] / ours, peer / ours))
            times = " | ".join(f"{row.ms[arm]:.2f}" if arm in row.ms else "-" for arm in ARMS)
            shown = " | ".join(f"{ratio:.2f}" for ratio in ratios[-1])
            yield f"| {row.model} | {times} | {row.least_ms:.2f} | {shown} |"
        means = " | ".join(
            f"**{statistics.geometric_mean(each):.2f}**" for each in zip(*ratios, strict=True)
        )
        yield "| **geometric mean** |" + " |" * (len(ARMS) + 1) + f" {means} |"
        yield ""


def _plot(rows: Sequence[Measured], path: Path) -> None:
    """Writes an SVG: for each model, the processor's least time in percent of each arm's."""
    import matplotlib as mpl  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    mpl.rcParams["svg.hashsalt"] = "kernelfarm"
    groups = groupby(sorted(rows, key=lambda row: row.settings), lambda row: row.settings)
    tables = [(settings, list(found)) for settings, found in groups]
    figure = Figure(figsize=(10, 2.8 * len(tables)), layout="constrained")
    bars = {"eager": ("eager",), "best of Inductor": _PEERS, "best of kernelfarm": _OURS}
    for axes, (settings, found) in zip(
        figure.subplots(len(tables), squeeze=False)[:, 0], tables, strict=True
    ):
        for at, (label, arms) in enumerate(bars.items()):
            places = [number + 0.27 * (at - 1) for number in range(len(found))]
            axes.bar(places, [100 * r.least_ms / r.best(arms) for r in found], 0.25, label=label)
        axes.set_xticks(range(len(found)), [row.model for row in found], rotation=20)
        axes.set(title="{}, batch {}, threads: {}, {}".format(*settings), ylabel="% of the limit")
        axes.axhline(100, color="#999999", linewidth=0.8, linestyle=":")
    axes.legend(loc="upper right", fontsize="small")
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    raise SystemExit(main())

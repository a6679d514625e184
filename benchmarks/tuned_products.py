"""Products that the fleet chooses, on this processor, with a real farm.

    python -m benchmarks.tuned_products [--models NAME ...] [--dtype T] [--target cpu:x86-64-v3]
                                        [--threads N] [--rounds N] [--markdown FILE]

A model of `benchmarks.cpu.whole_models` is compiled with each value of the option `products`. The
first client with `tuned` has a fleet that has measured nothing: it runs as with `auto`, while it
measures each different product in the background. Then the program is swapped. `--target` names
another target that the processor runs, so that `auto` has the times of other chips. All arms
alternate in one process: a round calls each arm once. The exit status is 1 if a result is wrong.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.machine import machine

_ARMS: Final = ("auto", "library", "own", "tuned")
_MOST_S: Final = 600.0
_ERROR_OF_ITS_TYPE: Final = {"float32": 1e-3, "bfloat16": 0.1, "float16": 0.05}
"""The largest error, as a part of the largest result: layers sum up rounding errors."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A subject: its product, how many the model has, what the fleet chose, measured times."""

    name: str
    count: int
    choice: str
    times_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of one model.

    `before_s` is the time of the first call, `tuned_s` the time from there until the swap.
    """

    model: str
    before_s: float
    tuned_s: float
    chosen: tuple[Chosen, ...]
    call_ms: dict[str, float]
    is_right: bool


def main() -> int:
    options = _options()
    if options.target:
        os.environ["KERNELFARM_HOST_TARGET"] = options.target
    from examples.farm import running_farm  # noqa: PLC0415 -- after the target is stated

    seen = []
    with running_farm(vendors="cpu") as farm, tempfile.TemporaryDirectory() as disk:
        os.environ["KERNELFARM_ENDPOINT"] = farm.endpoint
        os.environ["KERNELFARM_DISK_CACHE_DIR"] = disk
        seen = [_measure(name, options) for name in options.models]
    lines = [*_conditions(options), "", *_calls(seen), "", *_products(seen)]
    print("\n".join(lines))
    if options.markdown:
        options.markdown.write_text("\n".join(lines) + "\n")
    return 0 if all(found.is_right for found in seen) else 1


def _measure(name: str, options: argparse.Namespace) -> Seen:
    import torch  # noqa: PLC0415 -- as above

    from benchmarks.cpu.whole_models import seeded  # noqa: PLC0415
    from benchmarks.timing import rounds_ms  # noqa: PLC0415
    from kernelfarm.client import counters  # noqa: PLC0415
    from kernelfarm.client.programs.product_tuner import TUNER  # noqa: PLC0415

    torch.set_num_threads(options.threads)
    torch._dynamo.reset()
    TUNER.clear()
    counters.reset()
    model, args = seeded(name, 1, getattr(torch, options.dtype))
    with torch.no_grad():
        expected = _first(model(*args))
        arms: dict[str, Any] = {arm: _compiled(model, args, arm) for arm in _ARMS}
        began_s = time.monotonic()
        results = {"tuned before": arms["tuned"]()}
        first_s = time.monotonic()
        while not counters.snapshot().get("runner.programs_replaced"):
            arms["tuned"]()
            if time.monotonic() - first_s > _MOST_S:
                raise SystemExit(f"{name}: not tuned within {_MOST_S:.0f} s")
        tuned_s = time.monotonic() - first_s
        for arm, call in arms.items():
            results[arm] = call()
        # Winners may change until all are final; then the process measures nothing any more.
        while not all(found.is_final for found in TUNER.all_progress()):
            time.sleep(0.5)
        times = rounds_ms(arms, "cpu", rounds=options.rounds, calls=1)
    bound = _ERROR_OF_ITS_TYPE[options.dtype] * expected.abs().max()
    is_right = all((_first(found) - expected).abs().max() <= bound for found in results.values())
    call_ms = {arm: statistics.median(found) for arm, found in times.items()}
    return Seen(name, first_s - began_s, tuned_s, tuple(_chosen()), call_ms, is_right)


def _compiled(model: Any, args: Sequence[Any], products: str) -> Any:
    import torch  # noqa: PLC0415 -- as above

    options = {"products": products, "mode": "strict"}
    compiled = torch.compile(model, backend="kernelfarm", options=options)
    return lambda: compiled(*args)


def _first(results: Any) -> Any:
    """The first tensor of a model's results, in f64."""
    found = results
    while not hasattr(found, "double"):
        found = next(iter(found.values() if hasattr(found, "values") else found))
    return found.double()


def _chosen() -> Iterator[Chosen]:
    from kernelfarm.client.programs.product_subjects import CANDIDATES  # noqa: PLC0415
    from kernelfarm.client.programs.product_tuner import TUNER  # noqa: PLC0415

    for found in TUNER.all_progress():
        choice = "none" if found.winner is None else CANDIDATES[found.winner].value
        yield Chosen(found.name, found.count, choice, found.times_ms)


def _conditions(options: argparse.Namespace) -> list[str]:
    import torch  # noqa: PLC0415 -- as above

    from kernelfarm.client.loaders.host_target import host_cpu_target  # noqa: PLC0415

    return [
        f"{machine()}, torch {torch.__version__}, target `{host_cpu_target()}`, {options.dtype},"
        f" {options.threads} threads, {options.rounds} rounds."
    ]


def _calls(seen: Sequence[Seen]) -> list[str]:
    lines = [
        "| model | first call s | tuned after s | auto ms | library ms | own ms | tuned ms"
        " | auto / tuned | right |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for found in seen:
        times = " | ".join(f"{found.call_ms[arm]:.2f}" for arm in _ARMS)
        ratio = found.call_ms["auto"] / found.call_ms["tuned"]
        lines.append(
            f"| {found.model} | {found.before_s:.1f} | {found.tuned_s:.1f} | {times}"
            f" | {ratio:.2f} | {'yes' if found.is_right else 'no'} |"
        )
    return lines


def _products(seen: Sequence[Seen]) -> list[str]:
    lines = [
        "| model | product | in the model | library ms | own ms | choice |",
        "|---|---|---:|---:|---:|---|",
    ]
    for found in seen:
        for chosen in found.chosen:
            times = " | ".join(f"{time_ms:.3f}" for time_ms in chosen.times_ms) or " | "
            name = chosen.name.removeprefix("product: ")
            lines.append(f"| {found.model} | {name} | {chosen.count} | {times} | {chosen.choice} |")
    return lines


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=["bert-base"])
    parser.add_argument("--dtype", default="float32", choices=sorted(_ERROR_OF_ITS_TYPE))
    parser.add_argument("--target", default="", help="another CPU target that this machine runs")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--markdown", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())

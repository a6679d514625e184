"""Attention with its gradients by kernels, beside the framework's and Inductor's.

On a CPU (`cpu`), a farm in this process's machine compiles, and arms are calls. For a GPU, `build`
compiles by a farm into a folder, without a GPU; `run` needs that folder and a GPU, but no farm, and
arms are replays of CUDA graphs. Arms take turns; each is the forward pass, or both passes. The
difference is the time of the gradients.

Usage: python -m benchmarks.attention_gradients cpu [--threads N ...] [--types T ...]
       python -m benchmarks.attention_gradients build FOLDER [--target T] [--types T ...]
       python -m benchmarks.attention_gradients run FOLDER [--types T ...] [--no-inductor]
       (with --only TEXT ..., for some cases)
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from benchmarks.attention_cases import Case
from benchmarks.prepared_cases import (
    Layer,
    build,
    captured,
    compiled,
    many_compilations,
    parser_of,
    print_rows,
)
from benchmarks.timing import Call, median_ms, replayed
from examples.farm import running_farm
from tests.support.prepared_folder import offline

ROUNDS, CALLS = 9, 3
_STRICT = {"mode": "strict", "timeout_s": 60.0}

CASES = (
    Case(4, 32, 32, 4096, 128, queries=4096),
    Case(4, 32, 32, 4096, 128, queries=4096, is_causal=True),
    Case(4, 32, 32, 4096, 64, queries=4096),
    Case(4, 32, 32, 4096, 64, queries=4096, is_causal=True),
    # Llama, GPT-2, BERT-large (also padded) and ViT-large.
    Case(1, 32, 8, 2048, 128, queries=2048, is_causal=True),
    Case(2, 32, 8, 2048, 128, queries=2048, is_causal=True),
    Case(8, 32, 8, 2048, 128, queries=2048, is_causal=True),
    Case(8, 12, 12, 1024, 64, queries=1024, is_causal=True),
    Case(8, 16, 16, 512, 64, queries=512),
    Case(8, 16, 16, 512, 64, queries=512, has_mask=True),
    Case(32, 16, 16, 197, 64, queries=197),
    # Other widths, few programs, and a text's keys.
    Case(32, 12, 12, 256, 32, queries=256),
    Case(2, 8, 8, 4096, 40, queries=4096),
    Case(2, 8, 8, 77, 40, queries=4096),
    Case(2, 8, 8, 1024, 80, queries=1024),
    Case(8, 16, 16, 729, 72, queries=729),
    Case(1, 32, 32, 2048, 96, queries=2048, is_causal=True),
    Case(1, 8, 1, 1024, 128, queries=1024, is_causal=True),
    Case(1, 12, 12, 512, 64, queries=512),
    Case(4, 12, 12, 128, 64, queries=128),
    # Windows of Swin's first and third stage for 32 images, and T5-base.
    Case(2048, 3, 3, 49, 32, queries=49, has_bias=True),
    Case(128, 12, 12, 49, 32, queries=49, has_bias=True),
    Case(8, 12, 12, 512, 64, queries=512, has_bias=True),
)
CPU_CASES = (
    # Layers of BERT-base, GPT-2, ViT-small, Swin and Llama, and longer ones.
    Case(1, 12, 12, 128, 64, queries=128),
    Case(4, 12, 12, 128, 64, queries=128),
    Case(4, 12, 12, 128, 64, queries=128, has_mask=True),
    Case(1, 12, 12, 512, 64, queries=512),
    Case(1, 12, 12, 512, 64, queries=512, is_causal=True),
    Case(8, 6, 6, 197, 64, queries=197),
    Case(64, 3, 3, 49, 32, queries=49),
    Case(1, 16, 16, 512, 64, queries=512, is_causal=True),
    Case(1, 16, 4, 512, 64, queries=512, is_causal=True),
    Case(1, 8, 8, 1024, 64, queries=1024),
    Case(1, 8, 8, 1024, 128, queries=1024, is_causal=True),
    Case(1, 16, 16, 2048, 64, queries=2048, is_causal=True),
    Case(1, 16, 16, 4096, 64, queries=4096),
    Case(1, 16, 16, 4096, 64, queries=4096, is_causal=True),
    # Windows of Swin's first and third stage, and T5-small.
    Case(64, 3, 3, 49, 32, queries=49, has_bias=True),
    Case(4, 12, 12, 49, 32, queries=49, has_bias=True),
    Case(1, 8, 8, 512, 64, queries=512, has_bias=True),
    Case(8, 8, 8, 512, 64, queries=512, has_bias=True),
)


def main() -> int:
    options = _options()
    warnings.simplefilter("ignore")
    with many_compilations():
        return {"build": _build, "run": _run, "cpu": _on_cpu}[options.command](options)


def _options() -> argparse.Namespace:
    parser = parser_of(__doc__, "cpu")
    parser.add_argument("--threads", type=int, nargs="*", default=[1], help="for cpu")
    parser.add_argument("--types", nargs="*", default=["bfloat16"])
    parser.add_argument("--only", nargs="*", default=[], help="cases whose names hold any of these")
    return parser.parse_args()


def _cases(options: argparse.Namespace) -> Iterator[tuple[torch.dtype, Case]]:
    for name in options.types:
        for case in CPU_CASES if options.command == "cpu" else CASES:
            if not options.only or any(text in str(case) for text in options.only):
                yield getattr(torch, name), case


def _operands(case: Case, dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
    """Queries, keys and values with gradients, and a mask if the case has one.

    Numbers of heads that are a mask have gradients, too.
    """
    query, key, value, *masks = case.operands(dtype, device)
    leaves = (tensor.requires_grad_() for tensor in (query, key, value))
    return *leaves, *(mask.requires_grad_(case.has_bias) for mask in masks)


def _both_passes(
    layer: Layer, operands: tuple[Tensor, ...], grad: Tensor
) -> Callable[[], tuple[Tensor, ...]]:
    leaves = tuple(operand for operand in operands if operand.requires_grad)
    return lambda: torch.autograd.grad(layer(*operands), leaves, grad)


def _build(options: argparse.Namespace) -> int:
    cases = _cases(options)
    graphs = (
        (
            f"{dtype} {case}",
            captured(case.attend, _operands(case, dtype, "cpu"), has_gradients=True),
        )
        for dtype, case in cases
    )
    return build(graphs, options)


def _run(options: argparse.Namespace) -> int:
    print(torch.cuda.get_device_name(), torch.__version__)
    print("case: microseconds of eager's forward pass and gradients; eager / arm of the forward")
    print("pass, of gradients and of both; errors of ours and of eager, / the largest gradient")
    with offline(options.folder):
        return print_rows(
            (f"{case!s:<62}", partial(_line, case, dtype, options))
            for dtype, case in _cases(options)
        )


def _on_cpu(options: argparse.Namespace) -> int:
    print("case: milliseconds of eager's forward pass and gradients; eager / arm of the forward")
    print("pass, of gradients and of both; errors of ours and of eager, / the largest gradient")
    failures = 0
    with running_farm(vendors="cpu") as farm:
        os.environ["KERNELFARM_ENDPOINT"] = farm.endpoint
        for threads in options.threads:
            torch.set_num_threads(threads)
            failures += print_rows(
                (f"{threads} {dtype!s:<15}{case!s:<62}", partial(_line, case, dtype, options))
                for dtype, case in _cases(options)
            )
    return 1 if failures else 0


def _line(case: Case, dtype: torch.dtype, options: argparse.Namespace) -> str:
    torch.manual_seed(0)
    device = "cpu" if options.command == "cpu" else "cuda"
    operands = _operands(case, dtype, device)
    timeout_s = 60.0 if device == "cpu" else 2.0
    layers: dict[str, Layer] = {
        "eager": case.attend,
        "ours": compiled(case.attend, "kernelfarm", {**_STRICT, "timeout_s": timeout_s}),
    }
    grad = torch.randn_like(layers["eager"](*operands))
    both = {"ours": _both_passes(layers["ours"], operands, grad)}
    both["ours"]()
    if not options.no_inductor:
        layers["inductor"] = compiled(case.attend, "inductor")
        both["inductor"] = _both_passes(layers["inductor"], operands, grad)
        both["inductor"]()
    both["eager"] = _both_passes(layers["eager"], operands, grad)
    errors = _errors(case, {arm: both[arm]() for arm in ("ours", "eager")}, operands, grad)
    calls = {
        **{f"{arm} forward": _forward(layers[arm], operands) for arm in layers},
        **{f"{arm} both": call for arm, call in both.items()},
    }
    times = _times_us(calls, device)
    for arm in layers:
        times[f"{arm} gradients"] = times[f"{arm} both"] - times[f"{arm} forward"]
    ratios = "  ".join(
        f"{arm} "
        + " ".join(
            f"{times[f'eager {kind}'] / times[f'{arm} {kind}']:5.2f}"
            for kind in ("forward", "gradients", "both")
        )
        for arm in layers
        if arm != "eager"
    )
    unit, scale = ("ms", 1e-3) if device == "cpu" else ("us", 1.0)
    digits = 2 if device == "cpu" else 1
    shown = " ".join(
        f"{scale * times[f'eager {kind}']:8.{digits}f}" for kind in ("forward", "gradients")
    )
    return f"{shown} {unit}  {ratios}  {errors['ours']:.1e} {errors['eager']:.1e}"


def _times_us(calls: dict[str, Call], device: str) -> dict[str, float]:
    """Microseconds of a call of each arm; on a GPU, of its replay."""
    if device == "cuda":
        calls = {arm: replayed(call) for arm, call in calls.items()}
    found = median_ms(calls, device, rounds=ROUNDS, calls=CALLS if device == "cuda" else 1)
    return {arm: 1e3 * ms for arm, ms in found.items()}


def _forward(layer: Layer, operands: tuple[Tensor, ...]) -> Callable[[], Tensor]:
    """The pass that also saves what gradients need."""
    return lambda: layer(*operands)


def _errors(
    case: Case,
    gradients: dict[str, tuple[Tensor, ...]],
    operands: tuple[Tensor, ...],
    grad: Tensor,
) -> dict[str, float]:
    """The largest differences from float64 in the first sequence, in its largest gradients.

    Gradients of a mask are none of one sequence.
    """
    exact = [tensor[:1].detach().double() for tensor in operands]
    for tensor in exact[:3]:
        tensor.requires_grad_()
    wanted = torch.autograd.grad(case.attend(*exact), exact[:3], grad[:1].double())
    return {
        arm: max(
            ((one[:1].double() - other).abs().max() / other.abs().max()).item()
            for one, other in zip(found[:3], wanted, strict=True)
        )
        for arm, found in gradients.items()
    }


if __name__ == "__main__":
    sys.exit(main())

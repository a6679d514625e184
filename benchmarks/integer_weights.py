"""Products of few rows by weights of 8 or 4 bits: kernels beside libraries.

A model computes such a weight from integers or 8-bit floats and scales, or multiplies integers of 8
bits that it makes of x (`int8-dynamic`, on a CPU). `own`: kernels that multiply compute it, too.
`library`: a kernel stores it, and the framework's library multiplies. `dense`: the library
multiplies by a weight that was stored as bf16 before. Also eager and Inductor. In each arm, copies
of the weights take turns, so that they come from memory; on a GPU, an arm is a replay of a CUDA
graph.

Usage: python -m benchmarks.integer_weights cpu [--threads N] [--rows M ...] [--no-inductor]
       python -m benchmarks.integer_weights build FOLDER [--target T] [--rows M ...]
       python -m benchmarks.integer_weights run FOLDER [--rows M ...] [--no-inductor]

All take `--only FORM ...` and `--shapes NxK ...`. On a CPU (`cpu`), a farm on this machine
compiles; with `--cached`, there is one copy of the weights, which caches may hold. For a GPU,
`build` compiles by a farm into a folder, without a GPU; `run` needs that folder and a GPU, but no
farm.
"""

from __future__ import annotations

import argparse
import sys
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.machine import machine
from benchmarks.products import Layer, rotated
from benchmarks.timing import median_ms, replayed
from examples.farm import running_farm
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.product_choice import ProductChoice
from tests.support.integer_weights import DYNAMIC_FORMS, FORMS, Form, operands
from tests.support.prepared_folder import offline, prepare
from tests.support.traced_graphs import recording

SHAPES = ((1024, 1024), (3072, 1024), (4096, 4096), (14336, 4096), (4096, 14336))
"""Results n and terms k of the weights: those of BERT-large and of an 8B Llama."""
ROWS = (1, 4, 16, 64)
ROUNDS, CALLS = 7, 3
_FORMS = {**FORMS, **DYNAMIC_FORMS}
_CHOICES = {"own": ProductChoice.OWN, "library": ProductChoice.LIBRARY}
_COLD_BYTES = 160 << 20
"""Copies of weights that take turns have so many bytes: three times an H100's cache, and more than
the last-level cache of a processor's core complex."""
_MAX_COPIES = 64
_CACHED_CALLS = 20


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("cpu", "build", "run"))
    parser.add_argument("folder", type=Path, nargs="?", help="for build and run")
    parser.add_argument("--threads", type=int, default=1, help="for cpu")
    parser.add_argument("--target", default="cuda:sm_90a", help="for build")
    parser.add_argument("--rows", type=int, nargs="*", default=ROWS)
    parser.add_argument("--only", nargs="*", choices=tuple(_FORMS), default=tuple(FORMS))
    parser.add_argument("--cached", action="store_true", help="for cpu")
    parser.add_argument("--shapes", nargs="*", type=_shape, default=SHAPES, metavar="NxK")
    parser.add_argument("--no-inductor", action="store_true")
    options = parser.parse_args()
    if options.command != "cpu" and options.folder is None:
        parser.error(f"{options.command} needs a folder")
    if options.command != "cpu" and (options.cached or {*options.only} & DYNAMIC_FORMS.keys()):
        parser.error("int8-dynamic and --cached are for cpu alone")
    warnings.simplefilter("ignore")
    commands = {"cpu": _on_cpu, "build": _build, "run": _run}
    limits = {"recompile_limit": 1000, "accumulated_recompile_limit": 1000}
    with torch._dynamo.config.patch(limits), torch.no_grad():
        return commands[options.command](options)


def _shape(text: str) -> tuple[int, int]:
    n, _, k = text.partition("x")
    return int(n), int(k)


def _build(options: argparse.Namespace) -> int:
    """Fills the folder; the exit status is 1 if a program did not compile."""
    options.folder.mkdir(parents=True, exist_ok=True)
    stated = [CompileOptions(products=choice) for choice in _CHOICES.values()]
    prepared = prepare(_captured(options), options.folder, options.target, {}, stated)
    for name, failure in prepared.failures.items():
        print(f"{name}: {failure}")
    return 1 if prepared.failures else 0


def _captured(options: argparse.Namespace) -> Iterator[tuple[str, list[Graph]]]:
    for name, form, shape, m in _cases(options):
        found: list[CapturedGraph] = []
        _compiled(form, recording(found, runs=False))(*operands(form, m, *shape))
        yield name, [captured.graph for captured in found]


def _cases(options: argparse.Namespace) -> Iterator[tuple[str, Form, tuple[int, int], int]]:
    for name in options.only:
        for n, k in options.shapes:
            for m in options.rows:
                yield f"{name}, {n} x {k}, {m}", _FORMS[name], (n, k), m


def _compiled(form: Form, backend: Any, options: Any = None) -> Layer:
    torch._dynamo.reset()
    compiled: Layer = torch.compile(form.layer, backend=backend, dynamic=False, options=options)
    return compiled


def _on_cpu(options: argparse.Namespace) -> int:
    torch.set_num_threads(options.threads)
    print(f"{machine()}, torch {torch.__version__}, threads: {options.threads}")
    with running_farm(vendors="cpu") as farm:
        return _measured(options, "cpu", {"endpoint": farm.endpoint, "timeout_s": 600.0})


def _run(options: argparse.Namespace) -> int:
    print(torch.cuda.get_device_name(), torch.__version__)
    with offline(options.folder):
        return _measured(options, "cuda", {"timeout_s": 2.0})


def _measured(options: argparse.Namespace, device: str, stated: dict[str, Any]) -> int:
    """Prints a line for each case; the exit status is 1 if one failed."""
    print("case: microseconds of the library with a dense weight; dense / arm; error own / eager")
    failures = 0
    for name, form, shape, m in _cases(options):
        arms: dict[str, Any] = {
            arm: ("kernelfarm", {"mode": "strict", "products": choice.value, **stated})
            for arm, choice in _CHOICES.items()
        }
        if not options.no_inductor:
            arms["inductor"] = ("inductor", None)
        try:
            bytes_ = 0 if options.cached else _COLD_BYTES
            print(_line(name, form, (m, *shape), device, arms, bytes_))
        except Exception as error:  # a case that fails is one row of the table
            failures += 1
            text = "".join(traceback.format_exception_only(error)).strip()
            print(f"{name}: FAILED {text[:400]}")
        sys.stdout.flush()
    return 1 if failures else 0


def _line(
    name: str,
    form: Form,
    sizes: tuple[int, int, int],
    device: str,
    arms: dict[str, Any],
    bytes_: int,
) -> str:
    """The times of a form for (rows, n, k) on a device; `arms` are backends and their options.

    Copies of weights have so many bytes, or there is one.
    """
    torch.manual_seed(0)
    rows, n, k = sizes
    copies = [operands(form, rows, n, k, device)]
    for _ in range(_copies(copies[0][1:], bytes_) - 1):
        copies.append((copies[0][0], *form.store(n, k, device)))
    layers: dict[str, Layer] = {"eager": form.layer}
    for arm, (backend, stated) in arms.items():
        layers[arm] = _compiled(form, backend, stated)
        layers[arm](*copies[0])
    exact = form.layer(*(t.double() if t.is_floating_point() else t for t in copies[0]))
    errors = [(layers[a](*copies[0]).double() - exact).abs().max().item() for a in ("own", "eager")]
    made = replayed if device == "cuda" else lambda call: call
    calls = {arm: made(rotated(layer, copies)) for arm, layer in layers.items()}
    dense = [(copies[0][0], torch.randn(n, k, device=device).bfloat16())]
    dense += [(dense[0][0], dense[0][1].clone()) for _ in range(_copies(dense[0][1:], bytes_) - 1)]
    calls["dense"] = made(rotated(functional.linear, dense))
    count = CALLS if device == "cuda" else 1 if bytes_ else _CACHED_CALLS
    times = median_ms(calls, device, rounds=ROUNDS, calls=count)
    each_us = {arm: 1e3 * ms / len(copies) for arm, ms in times.items()}
    each_us["dense"] = 1e3 * times["dense"] / len(dense)
    ratios = " ".join(
        f"{arm} {each_us['dense'] / us:5.2f}" for arm, us in each_us.items() if arm != "dense"
    )
    return f"{name:<32} {each_us['dense']:8.2f} us  {ratios}  error {errors[0] / errors[1]:.2f}"


def _copies(stored: tuple[Tensor, ...], bytes_: int) -> int:
    """How many copies of what is stored have so many bytes; one if there are none."""
    if not bytes_:
        return 1
    size_bytes = sum(tensor.numel() * tensor.itemsize for tensor in stored)
    return max(2, min(_MAX_COPIES, -(-_COLD_BYTES // size_bytes)))


if __name__ == "__main__":
    sys.exit(main())

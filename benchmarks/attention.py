"""Attention by kernels beside the framework's: of one query for each head, and of several.

On a CPU (`cpu`), a farm in this process's machine compiles. For a GPU, `build` compiles by a farm
into a folder, without a GPU; `run` needs that folder and a GPU, but no farm. Arms take turns. On a
GPU each is a replay of a CUDA graph in which copies of keys and values take turns, so that they
come from memory.

Usage: python -m benchmarks.attention cpu [--threads N ...] [--types T ...] [--only TEXT ...]
       python -m benchmarks.attention build FOLDER [--target T] [--types T ...] [--several]
       python -m benchmarks.attention run FOLDER [--types T ...] [--several] [--no-inductor]
       (with --varying, both for numbers of rows that vary; --only TEXT ... for some cases)
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.products import Layer, rotated
from benchmarks.timing import Call, median_ms, replayed
from examples.farm import running_farm
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.ir.graph_ir import Graph
from tests.support.prepared_folder import offline, prepare
from tests.support.traced_graphs import recording

ROUNDS, CALLS = 7, 3
_COLD_BYTES = 160 << 20
_MAX_COPIES = 16
_STRICT = {"mode": "strict", "timeout_s": 60.0}


@dataclass(frozen=True)
class Case:
    """Queries (batch, heads, queries, width), keys and values (batch, groups, keys, width).

    One query has a mask, several queries have none or are causal, or `has_mask`. A mask shows the
    first `seen` keys, or three quarters of them if that is 0.
    """

    batch: int
    heads: int
    groups: int
    keys: int
    width: int
    queries: int = 1
    is_causal: bool = False
    has_mask: bool = False
    seen: int = 0

    def __str__(self) -> str:
        heads = f"{self.heads} heads of {self.width}, {self.groups} of keys"
        queries = "" if self.queries == 1 else f", {self.queries} queries"
        kind = " causal" * self.is_causal + " masked" * self.has_mask
        kind += f", {self.seen} seen" * bool(self.seen)
        return f"batch {self.batch}, {heads}, {self.keys} keys{queries}{kind}"

    def attend(self, *operands: Tensor) -> Tensor:
        """What a layer does: its next product reads the heads beside each other."""
        query, key, value, *masks = operands
        found = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=masks[0] if masks else None,
            is_causal=self.is_causal,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return found.transpose(1, 2).flatten(2) + 0

    def flops(self) -> float:
        """Multiplications and additions of both products, without those of hidden keys."""
        seen = self.queries * self.keys / (2 if self.is_causal else 1)
        return 4 * self.batch * self.heads * seen * self.width

    def operands(self, dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
        """Queries, keys, values; for one query a mask that hides the last keys."""
        query = torch.randn(self.batch, self.heads, self.queries, self.width, device=device)
        shape = (self.batch, self.groups, self.keys, self.width)
        key, value = torch.randn(shape, device=device), torch.randn(shape, device=device)
        mask = torch.zeros(self.batch, 1, 1, self.keys, device=device)
        mask[..., self.seen or 3 * self.keys // 4 :] = -torch.inf
        has_mask = self.queries == 1 or self.has_mask
        found = (query, key, value, mask) if has_mask else (query, key, value)
        return tuple(tensor.to(dtype) for tensor in found)


CPU_CASES = (
    Case(1, 12, 12, 64, 64),
    Case(1, 12, 12, 512, 64),
    Case(8, 12, 12, 512, 64),
    Case(1, 16, 4, 512, 64),
    Case(8, 16, 4, 512, 64),
    Case(1, 32, 8, 2048, 128),
    Case(4, 32, 8, 2048, 128),
    Case(1, 8, 1, 4096, 256),
    # A cache with room for more keys, and a full one.
    Case(1, 12, 12, 512, 64, seen=129),
    Case(8, 12, 12, 512, 64, seen=129),
    Case(8, 12, 12, 512, 64, seen=512),
    Case(8, 16, 4, 512, 64, seen=129),
    Case(8, 16, 4, 512, 64, seen=512),
    # Layers of Swin, ViT-small, BERT-base and Llama, and longer ones.
    Case(64, 3, 3, 49, 32, queries=49),
    Case(1, 24, 24, 49, 32, queries=49),
    Case(1, 6, 6, 197, 64, queries=197),
    Case(1, 12, 12, 128, 64, queries=128),
    Case(8, 12, 12, 128, 64, queries=128),
    Case(1, 12, 12, 128, 64, queries=128, is_causal=True),
    Case(1, 8, 8, 512, 64, queries=32),
    Case(1, 16, 4, 512, 64, queries=128),
    Case(8, 16, 4, 512, 64, queries=128),
    Case(1, 8, 8, 1024, 64, queries=1024),
    Case(1, 8, 8, 1024, 128, queries=1024, is_causal=True),
    Case(1, 12, 12, 512, 64, queries=512),
    Case(1, 16, 16, 512, 64, queries=512, is_causal=True),
    Case(1, 16, 16, 2048, 64, queries=2048, is_causal=True),
    Case(1, 16, 16, 4096, 64, queries=4096),
    Case(1, 16, 16, 4096, 64, queries=4096, is_causal=True),
)
GPU_CASES = (
    Case(1, 12, 12, 128, 64),
    Case(1, 32, 8, 512, 128),
    Case(1, 32, 8, 1024, 128),
    Case(1, 32, 8, 4096, 128),
    Case(1, 32, 8, 16384, 128),
    Case(1, 32, 32, 16384, 128),
    Case(8, 32, 8, 512, 128),
    Case(8, 32, 8, 4096, 128),
    Case(8, 32, 8, 16384, 128),
    Case(64, 32, 8, 1024, 128),
    Case(64, 32, 8, 4096, 128),
    # Several queries: long ones, and those of Llama, GPT-2, BERT-large (also padded) and ViT-large.
    Case(4, 32, 32, 4096, 128, queries=4096),
    Case(4, 32, 32, 4096, 128, queries=4096, is_causal=True),
    Case(4, 32, 32, 4096, 64, queries=4096),
    Case(4, 32, 32, 4096, 64, queries=4096, is_causal=True),
    Case(1, 32, 8, 512, 128, queries=512, is_causal=True),
    Case(1, 32, 8, 2048, 128, queries=2048, is_causal=True),
    Case(8, 32, 8, 2048, 128, queries=2048, is_causal=True),
    Case(1, 32, 8, 4096, 128, queries=512, has_mask=True),
    Case(8, 12, 12, 1024, 64, queries=1024, is_causal=True),
    Case(1, 12, 12, 128, 64, queries=128),
    Case(8, 16, 16, 512, 64, queries=512),
    Case(8, 16, 16, 512, 64, queries=512, has_mask=True),
    Case(32, 16, 16, 197, 64, queries=197),
    # Other widths: MiniLM, diffusion U-Nets (also of a text's keys), SigLIP, Phi-3.
    Case(32, 12, 12, 128, 32, queries=128, has_mask=True),
    Case(32, 12, 12, 256, 32, queries=256),
    Case(2, 8, 8, 4096, 40, queries=4096),
    Case(2, 8, 8, 77, 40, queries=4096),
    Case(2, 8, 8, 1024, 80, queries=1024),
    Case(8, 16, 16, 729, 72, queries=729),
    Case(1, 32, 32, 2048, 96, queries=2048, is_causal=True),
    # Few queries, as of a checked draft.
    Case(1, 32, 8, 4096, 128, queries=2, has_mask=True),
    Case(1, 32, 8, 1024, 128, queries=4, has_mask=True),
    Case(1, 32, 8, 16384, 128, queries=8, has_mask=True),
    Case(8, 32, 8, 2048, 128, queries=4, has_mask=True),
    Case(8, 12, 12, 1024, 64, queries=8, has_mask=True),
    Case(64, 32, 8, 1024, 128, queries=4, has_mask=True),
    Case(1, 32, 8, 4096, 128, queries=16, has_mask=True),
    Case(1, 32, 8, 4096, 128, queries=32, has_mask=True),
    Case(8, 32, 8, 2048, 128, queries=32, has_mask=True),
    Case(8, 16, 16, 32, 64, queries=32),
)


def main() -> int:
    options = _options()
    warnings.simplefilter("ignore")
    limits = {"recompile_limit": 1000, "accumulated_recompile_limit": 1000}
    with torch._dynamo.config.patch(limits), torch.no_grad():
        commands = {"cpu": _on_cpu, "build": _build, "run": _run}
        return commands[options.command](options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("cpu", "build", "run"))
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--target", default="cuda:sm_90a", help="for build")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--types", nargs="*")
    parser.add_argument("--no-inductor", action="store_true")
    parser.add_argument("--only", nargs="*", default=[], help="cases whose names hold any of these")
    parser.add_argument("--varying", action="store_true", help="numbers of rows vary")
    parser.add_argument("--several", action="store_true", help="only those of several queries")
    return parser.parse_args()


def _types(options: argparse.Namespace, usual: tuple[str, ...]) -> list[torch.dtype]:
    return [getattr(torch, name) for name in options.types or usual]


def _marked(operands: tuple[Tensor, ...], options: argparse.Namespace) -> tuple[Tensor, ...]:
    """The operands; if sizes vary, those of heads do not."""
    if options.varying:
        for operand in operands[:3]:
            torch._dynamo.mark_static(operand, [1, 3])
    return operands


def _gpu_cases(options: argparse.Namespace) -> list[Case]:
    cases = [case for case in GPU_CASES if case.queries > 1 or not options.several]
    return _named(cases, options)


def _named(cases: Sequence[Case], options: argparse.Namespace) -> list[Case]:
    """The cases that are to be measured."""
    return [c for c in cases if not options.only or any(text in str(c) for text in options.only)]


def _compiled(case: Case, backend: Any, options: Any = None, *, varies: bool = False) -> Layer:
    torch._dynamo.reset()
    compiled: Layer = torch.compile(case.attend, backend=backend, dynamic=varies, options=options)
    return compiled


def _on_cpu(options: argparse.Namespace) -> int:
    print("threads, type, case: milliseconds of the framework; ours / framework; errors of both")
    with running_farm(vendors="cpu") as farm:
        os.environ["KERNELFARM_ENDPOINT"] = farm.endpoint
        for threads in options.threads:
            torch.set_num_threads(threads)
            for dtype in _types(options, ("bfloat16", "float16", "float32")):
                for case in _named(CPU_CASES, options):
                    operands = case.operands(dtype, "cpu")
                    layers = {
                        "framework": case.attend,
                        "ours": _compiled(case, "kernelfarm", _STRICT),
                    }
                    errors = _errors(case, layers, operands)
                    calls = {arm: _call(layer, operands) for arm, layer in layers.items()}
                    times = median_ms(calls, "cpu", rounds=ROUNDS, calls=CALLS)
                    ratio = times["ours"] / times["framework"]
                    name = str(dtype).removeprefix("torch.")
                    print(
                        f"{threads} {name:<9}{case!s:<66}{times['framework']:8.3f} {ratio:6.2f}"
                        f"  {errors['ours']:.1e} {errors['framework']:.1e}",
                        flush=True,
                    )
    return 0


def _errors(case: Case, layers: dict[str, Layer], operands: tuple[Tensor, ...]) -> dict[str, float]:
    """The largest differences from float64 in the first sequence, whose scores fit the memory."""
    exact = case.attend(*(operand[:1].double() for operand in operands))
    return {
        arm: (layer(*operands)[:1].double() - exact).abs().max().item()
        for arm, layer in layers.items()
    }


def _call(layer: Layer, operands: tuple[Tensor, ...]) -> Call:
    return lambda: layer(*operands)


def _build(options: argparse.Namespace) -> int:
    """Fills the folder; the exit status is 1 if a program did not compile."""
    options.folder.mkdir(parents=True, exist_ok=True)
    prepared = prepare(_captured(options), options.folder, options.target, {})
    for name, failure in prepared.failures.items():
        print(f"{name}: {failure}")
    return 1 if prepared.failures else 0


def _captured(options: argparse.Namespace) -> Iterator[tuple[str, list[Graph]]]:
    for dtype in _types(options, ("bfloat16",)):
        for case in _gpu_cases(options):
            found: list[CapturedGraph] = []
            operands = _marked(case.operands(dtype, "cpu"), options)
            _compiled(case, recording(found, runs=False), varies=options.varying)(*operands)
            yield f"{dtype} {case}", [captured.graph for captured in found]


def _run(options: argparse.Namespace) -> int:
    print(torch.cuda.get_device_name(), torch.__version__)
    print("case: microseconds of eager; GB/s of ours; eager / arm; errors of ours and eager")
    print("with several queries, TFLOP/s")
    failures = 0
    with offline(options.folder):
        for dtype in _types(options, ("bfloat16",)):
            for case in _gpu_cases(options):
                try:
                    print(_line(case, dtype, options), flush=True)
                except Exception as error:  # a case that fails is one row of the table
                    failures += 1
                    text = "".join(traceback.format_exception_only(error)).strip()
                    print(f"{case}: FAILED {text[:400]}", flush=True)
    return 1 if failures else 0


def _line(case: Case, dtype: torch.dtype, options: argparse.Namespace) -> str:
    torch.manual_seed(0)
    copies = [case.operands(dtype, "cuda")]
    size_bytes = sum(tensor.numel() * tensor.itemsize for tensor in copies[0])
    count = max(2, min(_MAX_COPIES, -(-_COLD_BYTES // size_bytes)))
    copies += [case.operands(dtype, "cuda") for _ in range(count - 1)]
    copies = [_marked(operands, options) for operands in copies]
    varies = options.varying
    ours = _compiled(case, "kernelfarm", {**_STRICT, "timeout_s": 2.0}, varies=varies)
    layers = {"eager": case.attend, "ours": ours}
    layers["ours"](*copies[0])
    if not options.no_inductor:
        layers["inductor"] = _compiled(case, "inductor", varies=varies)
        layers["inductor"](*copies[0])
    errors = _errors(case, {arm: layers[arm] for arm in ("ours", "eager")}, copies[0])
    calls = {arm: replayed(rotated(layer, copies)) for arm, layer in layers.items()}
    times = median_ms(calls, "cuda", rounds=ROUNDS, calls=CALLS)
    each_us = {arm: 1e3 * ms / count for arm, ms in times.items()}
    ratios = " ".join(
        f"{arm} {each_us['eager'] / us:5.2f}" for arm, us in each_us.items() if arm != "eager"
    )
    rate = f"{size_bytes / each_us['ours'] / 1e3:6.0f} GB/s"
    if case.queries > 1:
        rate = f"{case.flops() / each_us['ours'] / 1e6:6.0f} TFLOP/s"
    return (
        f"{case!s:<66} {each_us['eager']:8.2f} us {rate}  {ratios}"
        f"  {errors['ours']:.1e} {errors['eager']:.1e}"
    )


if __name__ == "__main__":
    sys.exit(main())

"""The tiles of products of matrices with few rows, compared on a GPU with the framework's library.

`build` compiles a product for each tile and number of slices, on a machine without a GPU. `run`
times them, each beside the library: replays of a CUDA graph in which copies of the weight take
turns, so that they come from memory. A sum in slices has a second kernel, which is timed with it.
`product_tiling.py` and `[few_rows]` of the chip's facts follow from the numbers.

Usage: python -m benchmarks.product_tiles build FOLDER [--target T] [--only TEXT]
       python -m benchmarks.product_tiles run FOLDER
"""

from __future__ import annotations

import argparse
import ctypes
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import torch
from torch import Tensor

from benchmarks.timing import median_ms, replayed
from kernelfarm.ir.algebra.expr import as_expr
from kernelfarm.ir.artifact import LaunchFacts

ROUNDS, CALLS = 7, 3
_COLD_BYTES = 160 << 20
"""Copies of a weight that take turns have so many bytes: three times an H100's cache."""
_MAX_COPIES = 64
_ARCHIVE = "cubins.zip"


@dataclass(frozen=True)
class Case:
    """x (m, k) by a weight with contiguous `rows` (n, k) or `columns` (k, n), bf16."""

    m: int
    n: int
    k: int
    layout: str

    def __str__(self) -> str:
        return f"{self.m:>3} rows, {self.n} x {self.k}, {self.layout}"


@dataclass(frozen=True)
class Tile:
    """The sides of a tile, its warps and stages, and the slices of the sum."""

    x: int
    r: int
    k: int
    warps: int
    stages: int
    slices: int

    def __str__(self) -> str:
        return f"{self.x}x{self.r}x{self.k} w{self.warps} s{self.stages} /{self.slices}"


ROWS = ((4096, 4096), (14336, 4096), (4096, 14336), (1024, 4096), (1024, 1024), (4096, 1024))
"""Weights (n, k) of a Llama of 8B parameters and of BERT-large."""
COLUMNS = ((2304, 768), (768, 768), (3072, 768), (768, 3072), (6400, 1600), (1600, 6400))
"""Weights (k, n), here as (n, k), of GPT-2 and GPT-2 XL."""
# r, k, warps, stages
_FEW = (
    *((16, 256, 2, 4), (16, 128, 4, 6), (32, 128, 4, 5)),
    *((32, 256, 4, 4), (64, 64, 4, 6), (64, 128, 4, 4)),
    *((16, 256, 4, 6), (16, 512, 4, 4), (32, 128, 2, 8)),
)
_MORE = (
    *((32, 128, 4, 5), (32, 256, 4, 3), (64, 64, 4, 6), (64, 128, 4, 4)),
    *((64, 128, 8, 4), (128, 64, 4, 5), (128, 64, 8, 5), (128, 128, 8, 3)),
    *((32, 128, 4, 8), (64, 128, 4, 6), (128, 64, 4, 7)),
)
_PROGRAMS = 132


def cases() -> Iterator[Case]:
    """All products."""
    for m, (n, k) in product((16, 32, 64), ROWS):
        if m != 32 or n == k:
            yield Case(m, n, k, "rows")
    for m, (n, k) in product((1, 16, 64), COLUMNS):
        if m == 64 or n < 6400:
            yield Case(m, n, k, "columns")


def tiles(case: Case) -> Iterator[Tile]:
    """The tiles to compare; those whose programs are few or many have other numbers of slices."""
    x = max(16, case.m)
    for r, k, warps, stages in _FEW if x == 16 else _MORE:
        for slices in (1, 2, 3, 4, 6, 8):
            programs = -(-case.n // r) * slices
            is_divided = case.k % (slices * k) == 0 and case.k // slices >= 2 * k
            is_filling = _PROGRAMS / 2 <= programs <= 2.2 * _PROGRAMS
            if programs >= _PROGRAMS / 6 if slices == 1 else is_divided and is_filling:
                yield Tile(x, r, k, warps, stages, slices)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("build", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", default="cuda:sm_90a")
    parser.add_argument("--only", default="", help="a part of the names of cases")
    options = parser.parse_args()
    if options.command == "build":
        _build(options)
    else:
        _run(options.folder)


def _build(options: argparse.Namespace) -> None:
    from codegen_svc.backends.cuda.backend import TOOLCHAIN  # noqa: PLC0415  # `run` has no Triton
    from codegen_svc.backends.triton_gpu import build_gpu_kernel, build_with_tiling  # noqa: PLC0415
    from codegen_svc.emitters.triton.tiling import Tiling  # noqa: PLC0415
    from kernelfarm.errors import KernelRejectedError  # noqa: PLC0415
    from kernelfarm.targets import target_facts  # noqa: PLC0415

    target = target_facts(options.target)
    options.folder.mkdir(parents=True, exist_ok=True)
    found: list[dict[str, Any]] = []

    archive = ZipFile(options.folder / _ARCHIVE, "w", ZIP_DEFLATED)

    def saved(built: Any) -> dict[str, Any]:
        name = f"{len(archive.namelist())}.cubin"
        binary = next(s.content for s in built.stages if s.name == built.binary_stage)
        archive.writestr(name, binary)
        facts = asdict(built.launch) | {"grid": [e.as_int() for e in built.launch.grid]}
        return {"file": name, "launch": facts}

    for case in cases():
        if options.only not in str(case):
            continue
        totals: dict[int, dict[str, Any]] = {}
        for tile in tiles(case):
            tiling = Tiling(
                tile.x, tile.x, tile.r, False, 32, tile.warps, tile.stages, kblock=tile.k
            )
            try:
                built = build_with_tiling(_product(case, tile.slices), target, TOOLCHAIN, tiling)
            except KernelRejectedError as error:
                print(case, tile, str(error)[:100], flush=True)
                continue
            kernels = [saved(built)]
            if tile.slices > 1 and tile.slices not in totals:
                built = build_gpu_kernel(_total(case, tile.slices), target, TOOLCHAIN)[0]
                totals[tile.slices] = saved(built)
            if tile.slices > 1:
                kernels.append(totals[tile.slices])
            found.append({"case": asdict(case), "tile": asdict(tile), "kernels": kernels})
        print(case, len(found), flush=True)
    archive.close()
    (options.folder / "tiles.json").write_text(json.dumps(found))


def _product(case: Case, slices: int) -> Any:
    """The kernel of a product, or of its sums in slices."""
    from kernelfarm.ir.text import parse_kernel  # noqa: PLC0415

    m, n, k = case.m, case.n, case.k
    part = k // slices
    weight = f"{k}*d2 + r0" if case.layout == "rows" else f"d2 + {n}*r0"
    step = part if case.layout == "rows" else n * part
    outer = f"for d0 in {slices}\n" if slices > 1 else ""
    x_at, w_at, y_at = (f"{s}*d0 + " if slices > 1 else "" for s in (part, step, m * n))
    dtype = "f32" if slices > 1 else "bf16"
    return parse_kernel(f"""\
kernel product
param in in0: bf16[{m * k}]
param in in1: bf16[{n * k}]
param out out0: {dtype}[{slices * m * n}]
{outer}for d1 in {m}
for d2 in {n}
reduce r0 in {part}
  %0: bf16 = load in0[{x_at}{k}*d1 + r0]
  %1: f32 = convert %0
  %2: bf16 = load in1[{w_at}{weight}]
  %3: f32 = convert %2
  %4: f32 = mul %1, %3
  %5: f32 = sum %4
{"" if slices > 1 else "  %6: bf16 = convert %5"}
  store out0[{y_at}{n}*d1 + d2] = %{5 if slices > 1 else 6}
""")


def _total(case: Case, slices: int) -> Any:
    """The kernel that adds the sums of slices."""
    from kernelfarm.ir.text import parse_kernel  # noqa: PLC0415

    points = case.m * case.n
    return parse_kernel(f"""\
kernel total
param in in0: f32[{slices * points}]
param out out0: bf16[{points}]
for d0 in {points}
reduce r0 in {slices}
  %0: f32 = load in0[d0 + {points}*r0]
  %1: f32 = sum %0
  %2: bf16 = convert %1
  store out0[d0] = %2
""")


def _run(folder: Path) -> None:
    print(torch.cuda.get_device_name(), torch.__version__)
    by_case: dict[Case, list[tuple[Tile, list[Any]]]] = {}
    for entry in json.loads((folder / "tiles.json").read_text()):
        found = by_case.setdefault(Case(**entry["case"]), [])
        found.append((Tile(**entry["tile"]), entry["kernels"]))
    for case, candidates in by_case.items():
        _measure(folder, case, candidates)


def _measure(folder: Path, case: Case, candidates: list[tuple[Tile, list[Any]]]) -> None:
    torch.manual_seed(0)
    copies = max(2, min(_MAX_COPIES, -(-_COLD_BYTES // (2 * case.n * case.k))))
    shape = (case.n, case.k) if case.layout == "rows" else (case.k, case.n)
    x = torch.randn(case.m, case.k, device="cuda").bfloat16()
    weights = [torch.randn(shape, device="cuda").bfloat16() for _ in range(copies)]
    right = [w.t() if case.layout == "rows" else w for w in weights]
    out = torch.empty(case.m, case.n, device="cuda", dtype=torch.bfloat16)
    exact = x.double() @ right[-1].double()

    def library() -> None:
        for weight in right:
            torch.mm(x, weight, out=out)

    arms: dict[str, Callable[[], object]] = {"library": replayed(library)}
    errors: dict[str, float] = {}
    arms["library"]()
    errors["library"] = (out.double() - exact).abs().max().item()
    for tile, kernels in candidates:
        partial = torch.empty(tile.slices, case.m, case.n, device="cuda", dtype=torch.float32)
        call = _calls(folder, kernels, x, weights, partial, out)
        out.zero_()
        arms[str(tile)] = replayed(call)
        arms[str(tile)]()
        errors[str(tile)] = (out.double() - exact).abs().max().item()
    times = median_ms(arms, "cuda", rounds=ROUNDS, calls=CALLS)
    base = times["library"]
    gbs = 2e-6 * case.n * case.k * copies / base
    print(f"{case}: library {1e3 * base / copies:.2f} us ({gbs:.0f} GB/s)", flush=True)
    for arm in sorted(times, key=times.__getitem__):
        if arm != "library":
            ratio = errors[arm] / errors["library"]
            mark = "" if ratio <= 1.5 else f"  WRONG {ratio:.2f}"
            print(f"    {base / times[arm]:5.2f} {1e3 * times[arm] / copies:8.2f} us  {arm}{mark}")


def _calls(
    folder: Path, kernels: list[Any], x: Tensor, weights: list[Tensor], partial: Tensor, out: Tensor
) -> Callable[[], None]:
    """Launches for each weight, on torch's current stream."""
    from kernelfarm.client.loaders.cuda import CudaLoader  # noqa: PLC0415  # `build` has no GPU

    loader, archive = CudaLoader(0), ZipFile(folder / _ARCHIVE)
    bound = []
    for entry in kernels:
        stated = dict(entry["launch"])
        stated["grid"] = tuple(as_expr(extent) for extent in stated["grid"])
        stated["arguments"] = tuple(stated["arguments"])
        stated["extras"] = ()
        loaded = loader.load(archive.read(entry["file"]), LaunchFacts(**stated))
        bound.append(loaded.bind(()))
    tables = []
    for weight in weights:
        lists = [[x, weight, partial], [partial, out]] if len(bound) > 1 else [[x, weight, out]]
        tables.append([_table(tensors) for tensors in lists])

    def call() -> None:
        stream = torch.cuda.current_stream().cuda_stream
        for found in tables:
            for kernel, table in zip(bound, found, strict=True):
                status = kernel(ctypes.addressof(table), stream)()
                if status:
                    raise RuntimeError(f"a launch failed with status {status}")

    return call


def _table(tensors: list[Tensor]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))


if __name__ == "__main__":
    main()

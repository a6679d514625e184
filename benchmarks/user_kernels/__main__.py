"""Users' Triton kernels on a GPU: compiled by the farm, and by the installed Triton's JIT.

Both arms launch the same kernel with the same grid, arguments, constants and options, as replays of
CUDA graphs, and take turns. `ratio` is the median of the rounds' ratios, ours by Triton's; less is
better. Errors are differences from what PyTorch computes in f64, relative to its largest element.

Usage: python -m benchmarks.user_kernels build FOLDER [--target T]
       python -m benchmarks.user_kernels run FOLDER [--json FILE]
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
import triton

from benchmarks.timing import replayed, rounds_ms
from benchmarks.user_kernels.cases import KernelCase, Launch, all_cases
from kernelfarm.client.compile_triton import compile_triton
from kernelfarm.client.loaders.cuda import CudaLoader
from kernelfarm.client.loaders.variants import LoadedVariant, address_holds, bind_variants
from kernelfarm.client.programs.saved_files import read_manifest
from kernelfarm.ir.artifact import scratch_bytes
from kernelfarm.v1 import compile_service_pb2
from kernelfarm.wire import guard_from_proto, launch_facts_from_proto
from tests.support.prepared_folder import environment

_TYPES: Final[Mapping[torch.dtype, str]] = {
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
_DIVISOR = 16
"""Triton's JIT knows integers that are multiples of this, and those that are 1."""
_ROUNDS, _CALLS = 21, 20
_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Measured:
    """A case's times in milliseconds, their ratio, and the errors of both arms."""

    ours_ms: float
    triton_ms: float
    ratio: float
    our_error: float
    triton_error: float
    is_equal: bool
    tolerance: float

    @property
    def is_right(self) -> bool:
        """Whether our result is as near to PyTorch's as it must be."""
        return self.our_error <= self.tolerance


def _build(options: argparse.Namespace) -> int:
    from tests.support.farm import running_farm  # noqa: PLC0415  # a run needs no farm

    options.folder.mkdir(parents=True, exist_ok=True)
    vendor = options.target.split(":", maxsplit=1)[0]
    disk = str((options.folder / "disk").resolve())
    with (
        running_farm(options.folder / "farm", vendor) as farm,
        environment({"KERNELFARM_DISK_CACHE_DIR": disk}),
    ):
        for case in all_cases():
            signature, constants = _specialized(case.launch_on("meta").arguments)
            compiled = compile_triton(
                case.function,
                signature,
                {**constants, **case.constants},
                [options.target],
                options=case.options,
                endpoint=farm.endpoint,
                timeout_s=_TIMEOUT_S,
            )
            compiled.save(_folder_of(case, options.folder))
            print(f"{case.name}: compiled for {options.target}", flush=True)
    return 0


def _folder_of(case: KernelCase, folder: Path) -> Path:
    return folder / case.name.replace(" ", "_")


def _specialized(arguments: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, int]]:
    """Types and constants of arguments, specialized as Triton's JIT does it."""
    signature, constants = {}, {}
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor):
            signature[name] = _TYPES[value.dtype]
        elif isinstance(value, float):
            signature[name] = "fp32"
        elif value == 1:
            constants[name] = value
        else:
            signature[name] = f"i32:{_DIVISOR}" if value % _DIVISOR == 0 else "i32"
    return signature, constants


def _our_launch(case: KernelCase, launch: Launch, folder: Path) -> Callable[[], object]:
    """A call that launches the farm's kernel on torch's current stream."""
    loader = CudaLoader(torch.cuda.current_device())
    signature, _ = _specialized(launch.arguments)
    names = [name for name in case.function.arg_names if name in signature]
    given = [launch.arguments[name] for name in names]
    tensors = [value for value in given if isinstance(value, torch.Tensor)]
    scalars = [_bits(value) for value in given if not isinstance(value, torch.Tensor)]
    sizes = (*scalars, *case.grid, *(1,) * (3 - len(case.grid)))
    variants = bind_variants(
        _loaded(_folder_of(case, folder), loader), [t.numel() for t in tensors], sizes
    )
    addresses = [tensor.data_ptr() for tensor in tensors]
    chosen = next(
        variant
        for variant in variants
        if all(address_holds(atom, addresses[int(atom.name)]) for atom in variant.guard)
    )
    size_bytes = chosen.scratch_bytes * math.prod(case.grid)
    scratch = torch.empty(size_bytes, dtype=torch.uint8, device="cuda")
    table = (ctypes.c_uint64 * (len(addresses) + 1))(*addresses, scratch.data_ptr())

    def call() -> object:
        run = chosen.kernel(ctypes.addressof(table), loader.context())
        status = run()
        if status:
            loader.failed(status, run, case.name)
        return scratch  # it must live as long as the call

    return call


def _bits(value: float) -> int:
    """A number as a launch passes it: floats by the bits of f32."""
    return (
        value
        if isinstance(value, int)
        else ctypes.c_uint32.from_buffer(ctypes.c_float(value)).value
    )


def _loaded(folder: Path, loader: CudaLoader) -> list[LoadedVariant]:
    """The variants of the only kernel in a folder that `CompiledTriton.save` filled."""
    (program,) = read_manifest(folder)
    content = (folder / program["content"]).read_bytes()
    message = compile_service_pb2.ProgramResult.FromString(content)
    (kernel,) = program["kernels"]
    found = []
    for files, artifact in zip(kernel["variants"], message.artifacts, strict=True):
        facts = launch_facts_from_proto(artifact.launch)
        binary = (folder / files["stages"][files["binary"]]).read_bytes()
        guard = guard_from_proto(artifact.guard)
        found.append(LoadedVariant(guard, loader.load(binary, facts), scratch_bytes(facts)))
    return found


def _tritons_launch(case: KernelCase, launch: Launch) -> Callable[[], object]:
    bound = case.function[case.grid]
    return lambda: bound(**launch.arguments, **case.constants, **case.options)


def _measured(case: KernelCase, folder: Path) -> Measured:
    launch = case.launch_on("cuda")
    arms = {"ours": _our_launch(case, launch, folder), "triton": _tritons_launch(case, launch)}
    results: dict[str, torch.Tensor] = {}
    for arm, call in arms.items():
        launch.result.fill_(math.nan)  # so that no arm passes with the result of the other
        call()
        results[arm] = launch.result.clone()
    replays = {arm: replayed(call) for arm, call in arms.items()}
    times = rounds_ms(replays, "cuda", rounds=_ROUNDS, calls=_CALLS)
    ratios = [ours / theirs for ours, theirs in zip(times["ours"], times["triton"], strict=True)]
    return Measured(
        statistics.median(times["ours"]),
        statistics.median(times["triton"]),
        statistics.median(ratios),
        launch.error_of(results["ours"]),
        launch.error_of(results["triton"]),
        torch.equal(results["ours"], results["triton"]),
        case.tolerance,
    )


def _run(options: argparse.Namespace) -> int:
    triton.set_allocator(
        lambda size_bytes, _align, _stream: torch.empty(size_bytes, dtype=torch.int8, device="cuda")
    )
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    print("| kernel | ours, ms | triton, ms | ratio | our error | triton's | equal bits |")
    print("|---|---:|---:|---:|---:|---:|---|")
    found: dict[str, Measured] = {}
    for case in all_cases():
        found[case.name] = row = _measured(case, options.folder)
        shown = f"{row.ours_ms:.4f} | {row.triton_ms:.4f} | {row.ratio:.3f}"
        errors = f"{row.our_error:.1e} | {row.triton_error:.1e}"
        print(f"| {case.name} | {shown} | {errors} | {row.is_equal} |", flush=True)
    ratios = [row.ratio for row in found.values()]
    print(f"median of the ratios {statistics.median(ratios):.3f}, largest {max(ratios):.3f}")
    wrong = [name for name, row in found.items() if not row.is_right]
    print(f"wrong: {', '.join(wrong) or 'none'}")
    if options.json is not None:
        rows = {name: asdict(row) for name, row in found.items()}
        options.json.write_text(json.dumps(rows, indent=1))
    return 1 if wrong else 0


def main() -> int:
    """Fills a folder, or measures its kernels; 1 if a result is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("build", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", default="cuda:sm_90a")
    parser.add_argument("--json", type=Path, help="(run) where to write the table")
    options = parser.parse_args()
    return (_build if options.command == "build" else _run)(options)


if __name__ == "__main__":
    sys.exit(main())

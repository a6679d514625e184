"""One pass or two over long rows on an NVIDIA GPU: both forms, and eager, in one run.

`build` compiles into a folder, without a GPU; `run` needs torch, NumPy, protobuf and that folder on
a machine with an H100 or H200.

Usage: python -m benchmarks.row_statistics_cuda build FOLDER
       python -m benchmarks.row_statistics_cuda run FOLDER
"""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Callable
from pathlib import Path

import torch

from kernelfarm.client.loaders.cuda import CudaLoader
from kernelfarm.v1 import artifact_pb2 as pb
from kernelfarm.wire.launch_facts import launch_facts_from_proto, launch_facts_to_proto

TARGET = "cuda:sm_90a"
ELEMS = 1 << 28
WIDTHS = (16384, 32768, 131072, 1 << 20)
NAMES = ("softmax", "logsumexp", "variance", "layer_norm")
EAGER: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softmax": lambda x: x.softmax(1),
    "logsumexp": lambda x: x.logsumexp(1),
    "variance": lambda x: x.var(1, correction=0),
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x, x.shape[1:]),
}
CALLS = 10
ROUNDS = 5


def build(folder: Path) -> None:
    """Compiles both forms of every statistic for every width."""
    from benchmarks.row_statistics import in_one_pass, kernel_of  # noqa: PLC0415  # `run` needs no compiler
    from codegen_svc.backends.cuda.backend import BACKEND  # noqa: PLC0415  # `run` needs no compiler
    from kernelfarm.targets import target_facts  # noqa: PLC0415  # `run` needs no compiler

    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        for width in WIDTHS:
            two = kernel_of(name, "rows", ELEMS // width, width)
            for passes, kernel in ((1, in_one_pass(two)), (2, two)):
                # The most specific variant: memory of torch is aligned as its guard requires.
                built = BACKEND.build(kernel, target_facts(TARGET))[0]
                stem = folder / f"{name}_{width}_{passes}"
                code = next(s.content for s in built.stages if s.name == built.binary_stage)
                stem.with_suffix(".cubin").write_bytes(code)
                launch = launch_facts_to_proto(built.launch).SerializeToString()
                stem.with_suffix(".launch").write_bytes(launch)
    print(f"{folder}: {len(list(folder.iterdir()))} files")


def run(folder: Path) -> None:
    """Compares the kernels of `build` with eager, then measures them."""
    print(torch.cuda.get_device_name(), f"{ELEMS} elements of f32")
    print("statistic     width   one ms   two ms eager ms  two/one eager/one")
    for name in NAMES:
        for width in WIDTHS:
            x = torch.randn(ELEMS // width, width, device="cuda")
            wanted = EAGER[name](x)
            runs = [launcher(folder / f"{name}_{width}_{p}", x, wanted) for p in (1, 2)]
            del wanted
            one, two, eager = best_ms([*runs, lambda: EAGER[name](x)])  # noqa: B023  # called here
            print(
                f"{name:10} {width:8} {one:8.3f} {two:8.3f} {eager:8.3f}"
                f" {two / one:8.2f} {eager / one:9.2f}",
                flush=True,
            )


def launcher(stem: Path, x: torch.Tensor, wanted: torch.Tensor) -> Callable[[], object]:
    """A call that launches a built kernel; its result has been compared with eager's."""
    facts = launch_facts_from_proto(
        pb.LaunchFacts.FromString(stem.with_suffix(".launch").read_bytes())
    )
    loader = CudaLoader(x.device.index)
    bound = loader.load(stem.with_suffix(".cubin").read_bytes(), facts).bind(())
    out = torch.empty_like(wanted)
    table = (ctypes.c_void_p * 2)(x.data_ptr(), out.data_ptr())

    run = bound(ctypes.addressof(table), loader.context())

    def call() -> object:
        run()
        return out, table  # both must outlive the calls

    call()
    torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-5)
    return call


def best_ms(runs: list[Callable[[], object]]) -> list[float]:
    """Milliseconds of each run, the best of some alternating rounds."""
    best = [float("inf")] * len(runs)
    for _ in range(ROUNDS):
        for position, call in enumerate(runs):
            start, end = (_event() for _ in range(2))
            start.record()
            for _ in range(CALLS):
                call()
            end.record()
            end.synchronize()
            best[position] = min(best[position], start.elapsed_time(end) / CALLS)
    return best


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's own


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("build", "run"))
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    (build if options.command == "build" else run)(options.folder)


if __name__ == "__main__":
    main()

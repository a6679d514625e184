"""Kernels that are bound by memory: a copy, eager, kernelfarm and Inductor in one run.

`build` compiles by a farm into a folder, without a GPU. `run` needs that folder and the device, but
no farm. For each case it reports the time that a copy of as many bytes takes in percent of each
arm's time, so 100 is the speed of a copy. On a GPU all arms are replayed as CUDA graphs, which
leaves out Python and launches, and the copy is the faster of a kernel and the driver's copy. The
latter is called directly, because a graph may give it to a copy engine, which takes 1.6 times as
long. A graph has so many calls, each with operands and results of its own, that they move 1 GiB: no
cache holds what a call reads, and the launch of the graph takes a small share of its time.

Usage: python -m benchmarks.memory_bound build FOLDER [--target TARGET] [--elems N]
       python -m benchmarks.memory_bound run FOLDER [--json FILE] [--no-inductor]

Both take `--only NAME ...`, the programs of `benchmarks/memory_bound/programs.py`, `--types`, and
`--sizes static` or `--sizes varying`.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.memory_bound.programs import PROGRAMS, Case, cases
from benchmarks.timing import Call, median_ms, replayed
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.ir.graph_ir import Graph
from tests.support.prepared_folder import offline, prepare
from tests.support.traced_graphs import recording

TARGET = "cuda:sm_90a"
ELEMS = 1 << 29
ROUNDS = 5
CALLS = 8
# A round reads and writes several times what the second-level cache of a chip holds.
ROUND_BYTES = 1 << 30
_COPIES = ("copy kernel", "driver's copy")
_TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_SIZES = {"static": False, "varying": True}
_STRICT = {"mode": "strict", "timeout_s": 2.0}


@dataclass
class Measured:
    """One case: milliseconds of each arm, and the largest difference from eager's result."""

    case: str
    moved_bytes: int = 0
    ms: dict[str, float] = field(default_factory=dict)
    difference: float = 0.0
    largest: float = 0.0
    limit: float = 0.0
    failure: str = ""

    @property
    def is_good(self) -> bool:
        """True if the kernel's result is eager's within a few units in the last place."""
        return not self.failure and self.difference <= self.limit

    def percent_of_copy(self, arm: str) -> float:
        """The speed of an arm in percent of the faster copy's."""
        return 100 * self.copy_ms / self.ms[arm]

    @property
    def copy_ms(self) -> float:
        """The time of the faster copy."""
        return min(ms for arm, ms in self.ms.items() if arm in _COPIES)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("build", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", default=TARGET, help="for build")
    parser.add_argument("--elems", type=int, default=ELEMS, help="of a row program; for build")
    parser.add_argument("--only", nargs="*", choices=tuple(PROGRAMS), default=tuple(PROGRAMS))
    parser.add_argument("--types", nargs="*", choices=tuple(_TYPES), default=tuple(_TYPES))
    parser.add_argument("--sizes", nargs="*", choices=tuple(_SIZES), default=tuple(_SIZES))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--no-inductor", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    # Each width of a program with static sizes is compiled anew.
    limits = {"recompile_limit": 1000, "accumulated_recompile_limit": 1000}
    with torch._dynamo.config.patch(limits):
        return (_build if options.command == "build" else _run)(options)


def _build(options: argparse.Namespace) -> int:
    """Fills the folder; the exit status is 1 if a program did not compile."""
    options.folder.mkdir(parents=True, exist_ok=True)
    notes = {"elems": options.elems}
    prepared = prepare(_captured(options), options.folder, options.target, notes)
    for name, failure in prepared.failures.items():
        print(f"{name}: {failure}")
    print(f"{len(prepared.graphs)} cases")
    return 1 if prepared.failures else 0


def _captured(options: argparse.Namespace) -> Iterator[tuple[str, list[Graph]]]:
    """The graphs of all cases; nothing is computed."""
    for case in cases(options.elems, [_TYPES[name] for name in options.types]):
        if _is_chosen(case, options):
            found: list[CapturedGraph] = []
            _compiled(case, case.operands("cpu", has_values=False), recording(found, runs=False))
            yield str(case), [captured.graph for captured in found]


def _is_chosen(case: Case, options: argparse.Namespace) -> bool:
    return case.name in options.only and case.is_varying in [_SIZES[n] for n in options.sizes]


def _compiled(
    case: Case, operands: list[Tensor], backend: Any, options: Any = None
) -> Callable[..., Tensor]:
    """The compiled function of the case, which has been called once."""
    torch._dynamo.reset()
    function = torch.compile(
        case.program.function, backend=backend, dynamic=case.is_varying, options=options
    )
    case.call(function, operands)
    return function


def _run(options: argparse.Namespace) -> int:
    """Measures the programs of `build`; the exit status is 1 if one failed or has wrong results."""
    rows = []
    with offline(options.folder) as prepared:
        device = "cuda" if prepared.target.startswith("cuda") else "cpu"
        print(torch.cuda.get_device_name() if device == "cuda" else device, torch.__version__)
        for case in cases(prepared.notes["elems"], [_TYPES[name] for name in options.types]):
            if not _is_chosen(case, options) or str(case) not in prepared.graphs:
                continue
            row = Measured(str(case))
            try:
                _measure(row, case, device, with_inductor=not options.no_inductor)
            except Exception as error:  # a case that fails is one row of the table
                row.failure = "".join(traceback.format_exception_only(error)).strip()[:600]
            rows.append(row)
            print(_line(row), flush=True)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return 0 if all(row.is_good for row in rows) else 1


def _measure(row: Measured, case: Case, device: str, *, with_inductor: bool) -> None:
    operands = case.operands(device)
    expected = case.call(case.program.function, operands).clone()
    ours = _compiled(case, operands, "kernelfarm", _STRICT)
    _compare(row, case.call(ours, operands), expected)
    row.moved_bytes = case.moved_bytes(operands, expected)
    functions = {"eager": case.program.function, "kernelfarm": ours}
    if with_inductor:
        functions["inductor"] = _compiled(case, operands, "inductor")
    count = -(-ROUND_BYTES // row.moved_bytes) if device == "cuda" else 1
    sets = [operands, *(case.operands(device) for _ in range(1, count))]
    arms = {name: _all_of(case, function, sets) for name, function in functions.items()}
    arms = _arms(device, arms, row.moved_bytes, count)
    found = median_ms(arms, device, rounds=ROUNDS, calls=CALLS)
    row.ms = {arm: ms / count for arm, ms in found.items()}


def _all_of(case: Case, function: Callable[..., Tensor], sets: list[list[Tensor]]) -> Call:
    """A call for each set of operands; the results are kept until the last one."""
    return lambda: [case.call(function, operands) for operands in sets]


def _arms(device: str, arms: dict[str, Call], moved_bytes: int, count: int) -> dict[str, Call]:
    """The arms as they are measured on a device, with copies that move as many bytes."""
    shape = (count, moved_bytes // 2 // 4)
    sources, targets = (torch.empty(shape, dtype=torch.float32, device=device) for _ in range(2))
    pairs = [*zip(sources, targets, strict=True)]
    driver, kernel = _COPIES[1], _COPIES[0]
    direct: dict[str, Call] = {driver: lambda: [target.copy_(source) for source, target in pairs]}
    if device != "cuda":
        return direct | arms
    by_kernel: Call = lambda: [torch.mul(s, 1.0, out=t) for s, t in pairs]  # noqa: E731
    return direct | {arm: replayed(call) for arm, call in ({kernel: by_kernel} | arms).items()}


def _compare(row: Measured, result: object, expected: Tensor) -> None:
    assert isinstance(result, Tensor)
    row.largest = float(expected.abs().max())
    row.difference = float((result.double() - expected.double()).abs().max())
    row.limit = 8 * torch.finfo(expected.dtype).eps * row.largest


def _line(row: Measured) -> str:
    head = f"{row.case:<56}"
    if row.failure:
        return f"{head} FAILED {row.failure[:300]}"
    mark = "" if row.is_good else f"  WRONG by {row.difference:.2g} of {row.largest:.2g}"
    arms = (arm for arm in row.ms if arm not in _COPIES)
    speeds = " ".join(f"{arm} {row.percent_of_copy(arm):5.1f}%" for arm in arms)
    return f"{head} copy {1e3 * row.copy_ms:9.1f} us  {speeds}{mark}"


if __name__ == "__main__":
    sys.exit(main())

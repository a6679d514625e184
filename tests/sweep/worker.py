"""The process that runs samples: tasks come as JSON lines, records go out as JSON lines.

The process writes the number of each sample before it runs, so that a crash belongs to a sample.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, TextIO

import torch

from tests.support.in_process_compiler import Compile, compile_here
from tests.sweep.one_sample import run_sample
from tests.sweep.records import Outcome, Record, done_line
from tests.sweep.samples import Task, operators, samples


def run_task(fields: dict[str, Any], compile_graph: Compile, out: TextIO) -> None:
    """Runs the samples of a task that are not among those to skip."""
    task = Task(fields["op"], fields["dtype"], fields["mode"])
    seed = int(fields["seed"])
    _send(out, {"begin": -1})
    try:
        found = samples(operators()[task.op], task, seed, int(fields["count"]))
    except Exception as error:
        reason = f"the database makes no sample: {type(error).__name__}: {error}"[:300]
        found = []
        record = Record(task.op, task.dtype, task.mode, 0, seed, Outcome.UNTRACEABLE, reason)
        print(record.line(), file=out, flush=True)
    skipped = set(fields["skip"])
    for number, sample in enumerate(found):
        if number in skipped:
            continue
        _send(out, {"begin": number})
        started_s = time.perf_counter()
        result = run_sample(task.op, sample, task.mode, compile_graph)
        record = Record(
            task.op,
            task.dtype,
            task.mode,
            number,
            seed,
            result.outcome,
            result.reason,
            result.counts.launches,
            tuple(result.counts.externs),
            round(time.perf_counter() - started_s, 3),
        )
        print(record.line(), file=out, flush=True)
    print(done_line(task), file=out, flush=True)


def _send(out: TextIO, message: dict[str, int]) -> None:
    print(json.dumps(message), file=out, flush=True)


def main() -> None:
    """Serves tasks until the input ends."""
    # Operators print; what they print must not be taken for our lines.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    torch.set_num_threads(1)
    compile_graph = compile_here
    if len(sys.argv) > 1:
        from tests.sweep.through_farm import compile_by  # noqa: PLC0415 (needs a farm)

        compile_graph = compile_by(sys.argv[1])
    _send(out, {"ready": 1})
    for line in sys.stdin:
        run_task(json.loads(line), compile_graph, out)


if __name__ == "__main__":
    main()
